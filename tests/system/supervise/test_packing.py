"""The child that packs beside a run: what it packs, when it runs, and that a deletion during its work does no harm."""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from prime_train import spec
from prime_train.checkpoints import in_use, layout, removal
from prime_train.checkpoints.packing import archive, packing_plan
from prime_train.checkpoints.packing.packed import SUFFIX
from prime_train.core.rundir import RunDir
from prime_train.events import CheckpointPacked, CheckpointSaved, Progress, Record
from prime_train.supervise.core.state import Live, Sent, State
from prime_train.supervise.services import packing_program
from prime_train.supervise.services.packing import PackingChild
from tests.system.checkpoints.test_archive import content
from tests.unit.checkpoints.packing.test_planes import numbers
from tests.unit.trainer import tiny

WEIGHTS = numbers("f", 40_000)
DEADLINE_S = 60.0
EFFECTS = {"open", "os.remove", "os.rename", "os.truncate"}


def write_step(run_dir: RunDir, step: int, weights: bytes = WEIGHTS) -> Path:
    folder = run_dir.checkpoint(step)
    folder.mkdir(parents=True)
    (folder / "__0_0.distcp").write_bytes(weights)
    (folder / ".metadata").write_bytes(b"")
    layout.write_manifest(folder, step)
    return folder


def training(newest: int, attempt: int = 1) -> State:
    progress = Record(0.0, "trainer-001-rank0", 1, Progress(attempt, newest, 1.0, 1.0, 1))
    return State(live=Live(attempt, 0.0, first_progress=progress), newest_complete=newest)


def loading(newest: int) -> State:
    return State(live=Live(2, 0.0), newest_complete=newest)


def until(condition: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline_s, "it did not come about"
        time.sleep(0.01)


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    found = RunDir(tmp_path)
    for step in (10, 20, 30):
        write_step(found, step)
    return found


@pytest.fixture
def packing(run_dir: RunDir) -> Iterator[PackingChild]:
    made = PackingChild(run_dir, enabled=True)
    yield made
    made.end()


def test_it_takes_what_is_superseded_that_which_stays_longest_first(run_dir: RunDir) -> None:
    write_step(run_dir, 40)
    (run_dir.checkpoint(20) / layout.MANIFEST).unlink()
    (run_dir.checkpoint(50)).mkdir()  # it is being written
    assert [found.step for found in packing_program.list_unpacked(run_dir.checkpoints, 40)] == [30, 10]
    assert [found.step for found in packing_program.list_unpacked(run_dir.checkpoints, 30)] == [10]
    assert packing_program.list_unpacked(run_dir.checkpoints, 10) == []


def test_never_the_newest_that_is_there_for_any_request(run_dir: RunDir) -> None:
    assert [found.step for found in packing_program.list_unpacked(run_dir.checkpoints, 10**9)] == [20, 10]


def test_one_in_use_is_left_alone(run_dir: RunDir) -> None:
    folder = run_dir.checkpoint(10)
    with in_use.using(folder):
        assert "uses it" in packing_program.pack(folder)
    assert not packing_plan.is_packed(folder)
    (folder / f"{in_use.MARK}.1").write_text("1:1")  # of a process that was killed
    assert packing_program.pack(folder) == ""
    assert packing_plan.is_packed(folder)
    assert not list(folder.glob(f"{in_use.MARK}*"))


def test_one_that_is_damaged_is_reported(run_dir: RunDir) -> None:
    (run_dir.checkpoint(10) / "__0_0.distcp").write_bytes(WEIGHTS[::-1])
    assert packing_program.pack(run_dir.checkpoint(10)) == "__0_0.distcp does not match its SHA-256"


def test_one_that_is_deleted_is_not_reported(run_dir: RunDir) -> None:
    folder = run_dir.checkpoint(10)
    removal.remove(folder)
    assert packing_program.pack(folder) == ""


def deleted_under(folder: Path, effects: int) -> bool:
    """Pack in a process that deletes the checkpoint before it changes or opens a file for the n-th time.

    False where it came to its end before. It fails where the packing tells anything, or leaves anything.
    """
    pid = os.fork()
    if not pid:
        try:
            left = effects

            def delete(event: str, arguments: tuple[Any, ...]) -> None:
                nonlocal left
                if event in EFFECTS and str(arguments[0]).startswith(str(folder)):
                    left -= 1
                    if left == -1:
                        removal.remove(folder)

            sys.addaudithook(delete)
            assert packing_program.pack(folder) == ""
            assert left >= 0 or list(folder.parent.iterdir()) == []
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0 if left < 0 else 3)
    ended = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert ended in (0, 3)
    return ended == 0


def test_a_deletion_at_each_moment_succeeds_and_leaves_nothing(tmp_path: Path) -> None:
    effects = 0
    while deleted_under(write_step(RunDir(tmp_path / str(effects)), 10), effects):
        effects += 1
    assert effects > 8


def test_older_ones_are_packed_beside_a_run_that_trains(run_dir: RunDir, packing: PackingChild) -> None:
    before = content(run_dir.checkpoint(30))
    told: list[CheckpointPacked] = []

    def packed() -> bool:
        packing.consider(training(30))
        told.extend(packing.results())
        return len(told) == 2 and not packing.processes()

    until(packed)
    assert [(one.step, one.problem, one.size_bytes) for one in told] == [(20, "", 160_000), (10, "", 160_000)]
    assert all(one.stored_bytes < 0.9 * one.size_bytes for one in told)
    assert packing_plan.is_packed(run_dir.checkpoint(10))
    assert content(run_dir.checkpoint(30)) == before
    packing.consider(training(30))
    assert packing.processes() == ()  # nothing is left until a newer one is complete
    write_step(run_dir, 40)

    told.clear()

    def packed_again() -> bool:
        packing.consider(training(40))
        told.extend(packing.results())
        return packing_plan.is_packed(run_dir.checkpoint(30)) and not packing.processes()

    until(packed_again)
    assert [one.step for one in told] == [30]  # what was packed before is no news


def test_one_that_stays_damaged_is_reported_once(run_dir: RunDir, packing: PackingChild) -> None:
    (run_dir.checkpoint(10) / "__0_0.distcp").write_bytes(WEIGHTS[::-1])
    told: list[CheckpointPacked] = []
    for newest in (30, 40, 50):
        if newest > 30:
            write_step(run_dir, newest)

        def rests(newest: int = newest) -> bool:
            packing.consider(training(newest))
            told.extend(packing.results())
            return packing_plan.is_packed(run_dir.checkpoint(newest - 10)) and not packing.processes()

        until(rests)
    assert [one.step for one in told if one.problem] == [10]


def test_it_gives_way_and_ends_with_the_attempt(run_dir: RunDir, packing: PackingChild) -> None:
    for step in (1, 2, 3):
        write_step(run_dir, step, 200 * WEIGHTS)
    packing.consider(training(30))
    (child,) = packing.processes()
    until(lambda: os.getpriority(os.PRIO_PROCESS, child.pid) == 19)
    packing.consider(loading(30))
    assert not child.alive
    assert packing.processes() == ()
    assert all(found.complete for found in layout.scan(run_dir.checkpoints, hashes=True))
    packing.consider(training(30, attempt=2))
    assert packing.processes() != ()


def test_a_child_that_was_not_waited_for_is_gone_at_the_end_of_the_run(packing: PackingChild) -> None:
    packing.consider(training(30))
    (child,) = packing.processes()
    packing.end(limit_s=0.0)
    assert packing.processes() == ()
    packing.close()
    assert not child.alive


def test_a_trainer_that_was_asked_to_stop_is_not_kept_from_its_disk(packing: PackingChild) -> None:
    packing.consider(training(30))
    stopping = training(30)
    assert stopping.live is not None
    packing.consider(
        State(live=Live(1, 0.0, first_progress=stopping.live.first_progress, sent=(Sent("SIGTERM", 1.0),)))
    )
    assert packing.processes() == ()


def test_a_child_that_dies_is_not_started_again_and_again(run_dir: RunDir, packing: PackingChild) -> None:
    for step in (1, 2, 3):
        write_step(run_dir, step, 200 * WEIGHTS)
    packing.consider(training(30))
    (child,) = packing.processes()
    os.kill(child.pid, signal.SIGKILL)
    until(lambda: not child.alive)

    def given_up() -> bool:
        packing.consider(training(30))
        return packing._child is None

    until(given_up)
    packing.consider(training(30))
    assert packing.processes() == ()


def test_it_does_nothing_where_it_is_not_asked_to(run_dir: RunDir) -> None:
    packing = PackingChild(run_dir, enabled=False)
    packing.consider(training(30))
    assert packing.processes() == ()
    packing.end()


def test_pieces_of_a_packing_that_was_killed_go_at_the_end_of_the_run(run_dir: RunDir, packing: PackingChild) -> None:
    piece = run_dir.checkpoint(10) / f"__0_0.distcp{SUFFIX}0"
    piece.write_bytes(b"half")
    packing.end()
    assert piece.exists()  # the next child deletes it before it begins
    packing.close()
    assert not piece.exists()
    assert layout.inspect(run_dir.checkpoint(10), hashes=True).complete


def test_what_a_run_resumes_from_is_never_packed_by_it(run_dir: RunDir, packing: PackingChild) -> None:
    packing.consider(loading(30))
    packing.consider(State(newest_complete=30))
    assert packing.processes() == ()
    archive.restore(run_dir.checkpoint(30))


def test_a_trainer_saves_and_deletes_beside_it_and_never_notices(tmp_path: Path) -> None:
    texts = tiny.write_texts(tmp_path / "texts")
    run = tiny.run_spec(
        texts,
        run=spec.Run(name="tiny", max_steps=120, seed=7),
        checkpoint=spec.Checkpoint(interval_steps=5, keep_last=3),
        eval=spec.Eval(interval_steps=None),
    )
    run_dir = tiny.prepare(tmp_path / "run", run)
    trainer = tiny.start(run_dir)
    packing = PackingChild(run_dir, enabled=True)
    told: list[CheckpointPacked] = []
    try:
        while trainer.poll() is None:
            saved = [event.step for event in tiny.events(run_dir) if isinstance(event, CheckpointSaved)]
            if saved:
                packing.consider(training(saved[-1]))
            told.extend(packing.results())
            time.sleep(0.05)
        output, _ = trainer.communicate()
    finally:
        packing.end()
        trainer.kill()
    assert trainer.returncode == 0, output
    assert told
    assert [one.problem for one in told if one.problem] == []
    kept = layout.scan(run_dir.checkpoints, hashes=True)
    assert all(found.complete for found in kept)
    # A packed checkpoint is deleted after a later save; the last save deletes none.
    assert [found.step for found in kept] in ([120, 115, 110], [120, 115, 110, 105])
    assert {path.name for path in run_dir.checkpoints.iterdir()} == {found.path.name for found in kept}


def test_a_child_that_cannot_be_started_is_reported_once_and_tried_after_the_next_save(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    run_dir.watches.write_text("a file where the folder of its log is to be", encoding="utf-8")
    packing = PackingChild(run_dir, enabled=True)
    for newest in (30, 30, 40):
        packing.consider(training(newest))
    told = [(packed.step, packed.problem) for packed in packing.results()]
    assert told == [(step, "no program can be started: File exists") for step in (30, 40)]
    assert packing.processes() == ()
