"""The disk watch with real processes, on real and on small disks: seen, told, freed, and nothing left behind."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from prime_train.checkpoints import in_use, layout, listing, removal
from prime_train.checkpoints.cleanup import Deletion, Keep, list_deletable
from prime_train.checkpoints.listing import ListedFolder, NamedStep
from prime_train.checkpoints.step_folders import StepPlaces
from prime_train.checkpoints.stock import Stock
from prime_train.core.rundir import RunDir
from prime_train.events import Progress, Record
from prime_train.programs.bundled import PROGRAM
from prime_train.programs.prime_rl.run_directory import locate_places as places_of
from prime_train.spec import Checkpoint, Data, Run, RunSpec, Source
from prime_train.spec.supervision import Cleanup, PrimeTrain
from prime_train.supervise.core.state import AttemptState, Live, State
from prime_train.supervise.watches.disk import disk_program
from prime_train.supervise.watches.disk.removal_program import Order, carry_out
from prime_train.supervise.watches.disk.watch import DiskWatch
from prime_train.supervise.watches.sample_lines import dump, load
from prime_train.supervise.watches.watch import Alarm, Freed
from tests.unit.programs.prime_rl.test_layout import write_rollouts

MB = 10**6
DEADLINE_S = 60.0


def write(run_dir: RunDir, step: int, size_bytes: int = 4 * MB) -> Path:
    folder = run_dir.checkpoint(step)
    folder.mkdir(parents=True)
    (folder / "0.distcp").write_bytes(os.urandom(size_bytes))
    (folder / ".metadata").write_bytes(b"")
    layout.write_manifest(folder, step)
    return folder


def run_of(run_dir: RunDir, cleanup: Cleanup, keep_last: int = 2) -> RunSpec:
    return RunSpec(
        run=Run(name="small", max_steps=1000, dir=str(run_dir.path.parent)),
        data=Data(sources=(Source(kind="python-stdlib"),)),
        checkpoint=Checkpoint(interval_steps=100, keep_last=keep_last),
        prime_train=PrimeTrain(cleanup=cleanup),
    )


def training(step: int = 450) -> State:
    progress = Record(1.0, "trainer", 1, Progress(1, step, 1.0, 1.0, 1))
    return State(
        run="small",
        max_steps=1000,
        step=step,
        attempts=(AttemptState(1),),
        live=Live(1, 1.0, phase="train", first_progress=progress),
    )


@contextlib.contextmanager
def watching(run: RunSpec, run_dir: RunDir) -> Iterator[DiskWatch]:
    watch = DiskWatch(run, run_dir, partial(PROGRAM.places, run, run_dir), PROGRAM.keep(run), interval_s=0.1)
    watch.begin()
    try:
        yield watch
    finally:
        begun = watch.processes()
        watch.end()
        wait_until(lambda: not any(identity.alive for identity in begun))


def wait_until(holds: Callable[[], bool]) -> None:
    give_up_s = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < give_up_s, "not within a minute"
        time.sleep(0.02)


def until(
    watch: DiskWatch, holds: Callable[[tuple[Alarm, ...], list[Freed]], bool], state: State | None = None
) -> None:
    """Look until what is wrong, and what was freed so far, is as it should be."""
    freed: list[Freed] = []

    def looked() -> bool:
        alarms = watch.look(state or training(), time.time())
        freed.extend(watch.freed())
        return holds(alarms, freed)

    wait_until(looked)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 32 MiB."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount")
    point = tmp_path / "disk"
    point.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=32m", "tmpfs", str(point)], check=False)
    if mounted.returncode:
        pytest.skip("mounting is not allowed here")
    try:
        yield point
    finally:
        subprocess.run(["umount", "--lazy", str(point)], check=True)


# --- the look --------------------------------------------------------------------------------------


def test_all_files_of_a_run_are_counted_once(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path / "small")
    write(run_dir, 100, 5000)
    (run_dir.checkpoint(200)).mkdir()
    (run_dir.checkpoint(200) / "half").write_bytes(bytes(700))
    run_dir.metrics.write_bytes(bytes(30))
    (run_dir.attempt(1)).mkdir(parents=True)
    run_dir.log(1, "trainer").write_bytes(bytes(8))
    places = StepPlaces(run_dir.path, (run_dir.checkpoints,))
    sample = disk_program.look(places, Stock(places))
    manifest_bytes = (run_dir.checkpoint(100) / layout.MANIFEST).stat().st_size
    assert sample.own_bytes == 5000 + manifest_bytes + 700 + 30 + 8
    assert sum(item.size_bytes for item in sample.items) == 5000 + manifest_bytes + 700
    assert (sample.refusals, len(sample.spaces)) == ((), 1)
    assert 0 < sample.spaces[0].free_bytes <= sample.spaces[0].total_bytes


def test_a_run_that_has_no_folder_yet_is_looked_at_above_it(tmp_path: Path) -> None:
    places = StepPlaces(tmp_path / "runs" / "new", (tmp_path / "runs" / "new" / "checkpoints",))
    sample = disk_program.look(places, Stock(places))
    assert (sample.own_bytes, sample.items, sample.spaces[0].path) == (0, (), str(tmp_path))


def test_a_refused_block_is_seen(tmp_path: Path) -> None:
    """RLIMIT_FSIZE refuses as a quota does, at the write."""
    program = (
        "import resource, signal, sys; from pathlib import Path\n"
        "from prime_train.checkpoints.step_folders import StepPlaces\n"
        "from prime_train.checkpoints.stock import Stock\n"
        "from prime_train.supervise.watches.disk.disk_program import look\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n"
        "root = Path(sys.argv[1]); places = StepPlaces(root, (root,))\n"
        "found = look(places, Stock(places)).refusals\n"
        "print([(refusal.path, refusal.message) for refusal in found], file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == str([(str(tmp_path), "File too large")])


def test_a_whole_checkpoint_is_walked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_dir = RunDir(tmp_path / "small")
    for step in (100, 200):
        write(run_dir, step, 100)
    run_dir.checkpoint(300).mkdir()
    walked: list[str] = []

    def counted(folder: NamedStep) -> ListedFolder:
        walked.append(Path(folder.folder).name)
        return real(folder)

    real = listing.list_and_read
    monkeypatch.setattr(layout, "list_and_read", counted)
    places = StepPlaces(run_dir.path, (run_dir.checkpoints,))
    stock = Stock(places)
    first = disk_program.look(places, stock)
    assert disk_program.look(places, stock).items == first.items
    assert walked == ["step_100", "step_200", "step_300", "step_300"]


def test_of_a_long_run_the_oldest_rollouts_are_reported(tmp_path: Path) -> None:
    for step in range(300):
        write_rollouts(tmp_path, "2026-08", step)
    places = places_of(tmp_path, orchestrated=False)
    sample = disk_program.look(places, Stock(places))
    assert [item.step for item in sample.items] == list(range(200))
    assert sample.own_bytes == 300 * 300


# --- the deletions ---------------------------------------------------------------------------------


def ordered(run_dir: RunDir, keep: Keep) -> Order:
    places = StepPlaces(run_dir.path, (run_dir.checkpoints,))
    now_s = time.time()
    return Order(places, keep, list_deletable(Stock(places).take(now_s), keep, now_s))


def steps(run_dir: RunDir) -> list[int]:
    return [found.step for found in layout.scan(run_dir.checkpoints) if found.complete]


def results(done: Iterator[tuple[Deletion, str]]) -> list[tuple[int, str]]:
    return [(one.item.step, problem) for one, problem in done]


def test_an_order_is_carried_out_by_what_is_there_then(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    for step in (10, 20, 30, 40, 50):
        write(run_dir, step, 100)
    order = load(Order, json.loads(dump(ordered(run_dir, Keep(keep_last=1)))))
    (run_dir.checkpoint(10) / layout.PIN).touch()
    removal.remove(run_dir.checkpoint(20))
    with in_use.using(run_dir.checkpoint(30)):
        done = results(carry_out(order))
    assert done[:2] == [(10, "it is pinned"), (20, "it is gone")]
    assert done[2][0] == 30
    assert done[2][1].startswith(f"process {os.getpid()} on ")
    assert done[3] == (40, "")
    assert steps(run_dir) == [50, 30, 10]


def test_nothing_goes_once_the_newest_has_turned_out_damaged(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    for step in (10, 20, 30):
        write(run_dir, step, 100)
    order = ordered(run_dir, Keep(keep_last=1))
    layout.mark_damaged(run_dir.checkpoint(30), "a bit flipped")
    assert results(carry_out(order)) == [(10, ""), (20, "it is needed again")]
    assert steps(run_dir) == [20]


def test_the_only_one_that_would_be_left_is_read_first(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    for step in (10, 20):
        write(run_dir, step, 100)
    (run_dir.checkpoint(20) / "0.distcp").write_bytes(os.urandom(100))  # the sizes still hold
    [(step, problem)] = results(carry_out(ordered(run_dir, Keep(keep_last=2))))
    assert (step, problem) == (10, "the run would be left with step 20, and its 0.distcp does not match its SHA-256")
    assert steps(run_dir) == [20, 10]


def test_a_file_that_another_process_reads_keeps_its_checkpoint(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    for step in (10, 20):
        write(run_dir, step, 100)
    reader = subprocess.Popen(["tail", "-f", str(run_dir.checkpoint(10) / "0.distcp")], stdout=subprocess.DEVNULL)
    try:
        wait_until(lambda: in_use.opened_by([run_dir.checkpoint(10)]) != "")
        [(step, problem)] = results(carry_out(ordered(run_dir, Keep(keep_last=1))))
        assert (step, problem) == (10, f"process {reader.pid} has 0.distcp open, and reads or writes it")
        assert steps(run_dir) == [20, 10]
    finally:
        reader.kill()
        reader.wait()
    assert results(carry_out(ordered(run_dir, Keep(keep_last=1)))) == [(10, "")]


def test_a_deletion_that_fails_is_reported_and_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_dir = RunDir(tmp_path)
    for step in (10, 20, 30):
        write(run_dir, step, 100)
    real = shutil.rmtree

    def busy(folder: Path) -> None:
        if "step_10" in str(folder):
            raise OSError(16, "Device or resource busy", str(folder / ".nfs01"))
        real(folder)

    monkeypatch.setattr(shutil, "rmtree", busy)
    done = results(carry_out(ordered(run_dir, Keep(keep_last=1))))
    assert done[0][1].startswith("Device or resource busy: ")
    assert done[1] == (20, "")
    monkeypatch.undo()
    assert results(carry_out(ordered(run_dir, Keep(keep_last=1)))) == [(-1, "")]  # what was left of it
    assert sorted(path.name for path in run_dir.checkpoints.iterdir()) == ["step_30"]


# --- the watch -------------------------------------------------------------------------------------


def test_a_budget_is_kept_by_deleting_the_oldest(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path / "small")
    for step in (100, 200, 300, 400):
        write(run_dir, step)
    (run_dir.checkpoint(100) / layout.PIN).touch()
    cleanup = Cleanup(max_disk_gb=0.014, max_used_ratio=1.0)  # of 16 MB
    with watching(run_of(run_dir, cleanup, keep_last=4), run_dir) as watch:
        until(watch, lambda _, freed: [one.step for one in freed] == [200, 300])
        until(watch, lambda _, freed: not freed and not watch._removal)
        assert steps(run_dir) == [400, 100]


def test_nothing_is_deleted_where_that_is_not_enabled_and_while_nothing_lives(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path / "small")
    for step in (100, 200, 300):
        write(run_dir, step)
    tight = Cleanup(max_disk_gb=0.001, max_used_ratio=1.0)
    with watching(run_of(run_dir, tight), run_dir) as watch:
        idle = State(run="small", max_steps=1000)
        until(watch, lambda alarms, _: [alarm.name for alarm in alarms] == ["disk_budget"], idle)
        assert steps(run_dir) == [300, 200, 100]
    with watching(run_of(run_dir, Cleanup(enabled=False, max_disk_gb=0.001, max_used_ratio=1.0)), run_dir) as watch:
        until(watch, lambda alarms, _: "disk_budget" in [alarm.name for alarm in alarms])
    assert steps(run_dir) == [300, 200, 100]


def test_on_a_full_disk_room_is_made_and_else_the_run_is_paused(small_disk: Path) -> None:
    run_dir = RunDir(small_disk / "small")
    for step in (100, 200, 300):
        write(run_dir, step, 9 * MB)
    run = run_of(run_dir, Cleanup(max_used_ratio=1.0), keep_last=3)
    with watching(run, run_dir) as watch:
        watch._limits = type(watch._limits)(max_used_ratio=1.0, margin_bytes=MB)
        until(watch, lambda _, freed: [(one.step, one.failed) for one in freed] == [(100, "")])
        until(watch, lambda alarms, _: alarms == ())
        assert steps(run_dir) == [300, 200]
        for step in (200, 300):
            (run_dir.checkpoint(step) / layout.PIN).touch()
        (small_disk / "others").write_bytes(bytes(8 * MB))
        until(watch, lambda alarms, _: [(a.name, a.answer) for a in alarms] == [("disk_no_room", "pause")])
        assert steps(run_dir) == [300, 200]


def test_a_look_that_dies_or_hangs_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prime_train.supervise.watches.sampler._RETRY_S", 0.5)
    run_dir = RunDir(tmp_path / "small")
    write(run_dir, 100, 100)
    with watching(run_of(run_dir, Cleanup(max_used_ratio=1.0)), run_dir) as watch:
        until(watch, lambda alarms, _: alarms == () and watch._memory.steps != ())
        [looking] = watch.processes()
        os.kill(looking.pid, signal.SIGSTOP)  # as a network disk does that has gone
        monkeypatch.setattr("prime_train.supervise.watches.disk.watch._SILENT_S", 0.5)
        until(watch, lambda alarms, _: [alarm.name for alarm in alarms] == ["disk_silent"])
        os.kill(looking.pid, signal.SIGKILL)
        until(watch, lambda *_: [one for one in watch.processes() if one != looking] != [])
        monkeypatch.setattr("prime_train.supervise.watches.disk.watch._SILENT_S", 45.0)
        until(watch, lambda alarms, _: alarms == ())


def test_a_deletion_that_was_interrupted_is_brought_back_or_to_its_end(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path / "small")
    for step in (100, 200, 300):
        write(run_dir, step, 100)
    undecided = run_dir.checkpoints / f"{removal.ASIDE}step_100.1"
    decided = run_dir.checkpoints / f"{removal.ASIDE}step_50.1"
    run_dir.checkpoint(100).rename(undecided)
    decided.mkdir()
    (decided / "0.distcp").write_bytes(b"rest")
    with watching(run_of(run_dir, Cleanup(max_used_ratio=1.0)), run_dir) as watch:
        assert steps(run_dir) == [300, 200, 100]
        until(watch, lambda _, freed: [(one.kind, one.failed) for one in freed] == [("leftover", "")])
        assert not decided.exists()
        assert steps(run_dir) == [300, 200, 100]


def test_a_watch_that_never_began_ends(tmp_path: Path) -> None:
    run, run_dir = run_of(RunDir(tmp_path), Cleanup()), RunDir(tmp_path)
    watch = DiskWatch(run, run_dir, partial(PROGRAM.places, run, run_dir), PROGRAM.keep(run))
    assert watch.processes() == ()
    watch.end()
