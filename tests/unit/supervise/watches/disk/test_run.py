"""What the disk watch takes from a run and its state: where it looks, what must stay, when the next save is due."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from prime_train.config import detect
from prime_train.core.rundir import RunDir
from prime_train.events import Progress, Record, TrainerStarted
from prime_train.programs import bundled, prime_rl
from prime_train.programs.prime_rl.run_directory import find_folder
from prime_train.programs.prime_rl.settings import prepare_run
from prime_train.spec import Checkpoint, Data, Run, RunSpec, Source
from prime_train.spec.command import CommandSpec
from prime_train.supervise.core.state import AttemptState, Live, State
from prime_train.supervise.watches.disk.judge import predict_next_save
from prime_train.supervise.watches.disk.watch import keep_while_running, read_doing
from tests.unit.programs.prime_rl.test_program import HEAD, MAY

RUN = RunSpec(
    run=Run(name="small", max_steps=250),
    data=Data(sources=(Source(kind="python-stdlib"),)),
    checkpoint=Checkpoint(interval_steps=100, keep_last=3, keep_every_steps=200),
)
KEEP = bundled.PROGRAM.keep(RUN)
LIVE = Live(2, 1.0, first_progress=Record(1.0, "trainer", 1, Progress(2, 101, 1.0, 1.0, 1)))
TRAINING = State(max_steps=250, step=130, attempts=(AttemptState(1), AttemptState(2, resume_step=100)), live=LIVE)


def of_prime_rl(text: str, tmp_path: Path) -> RunSpec:
    reading = detect.read(text, "rl.toml")
    assert reading.run is not None
    return prepare_run(reading.run, "words", tmp_path)


def test_what_stays_follows_the_state() -> None:
    keep = keep_while_running(KEEP, TRAINING)
    assert (keep.keep_last, keep.keep_every_steps, keep.saving_step, keep.loading_step) == (3, 200, None, None)
    loading = replace(TRAINING, live=replace(LIVE, first_progress=None), unreadable=(120,), saving_step=7)
    keep = keep_while_running(KEEP, loading)
    assert (keep.saving_step, keep.loading_step, keep.unreadable) == (7, 100, frozenset({120}))
    fresh = replace(loading, attempts=(AttemptState(2, resume_step=0),))
    assert keep_while_running(KEEP, fresh).loading_step is None
    assert (KEEP.writing, keep_while_running(KEEP, TRAINING).writing) == (False, True)


def test_the_next_save_is_the_next_multiple_or_the_end() -> None:
    assert [read_doing(RUN, replace(TRAINING, step=step)).next_save_step for step in (0, 99, 100, 199, 200, 249)] == [
        100,
        100,
        200,
        200,
        250,
        250,
    ]
    only_at_the_end = replace(RUN, checkpoint=Checkpoint(interval_steps=None))
    assert read_doing(only_at_the_end, TRAINING).next_save_step == 250


def test_the_next_save_of_a_command_is_measured() -> None:
    """[checkpoint] is not read for it, so its interval of 100 says nothing."""
    of_command = replace(RUN, command=CommandSpec(argv=("python", "train.py")))
    doing = read_doing(of_command, replace(TRAINING, step=130))
    assert (doing.next_save_step, doing.last_step) == (None, 250)
    expected = {
        (): None,
        (120,): None,
        (100, 125): 150,
        (75, 100, 125): 150,
        (75, 100, 127): None,  # one was asked for, or the interval is one of time
        (20, 70): None,  # overdue: it was another interval
        (50, 125): 200,
        (0, 125): 250,
        (-100, 100): 250,  # at its end at the latest
    }
    assert {saves: predict_next_save(saves, doing) for saves in expected} == expected


def test_a_first_checkpoint_is_reckoned_from_the_parameters_of_the_bundled_trainer(tmp_path: Path) -> None:
    started = replace(TRAINING, started=TrainerStarted(2, 1, 0, 1, "cpu", "fp32", 1000, 10, 0))
    assert read_doing(RUN, started).first_save_bytes == 12_000
    assert read_doing(of_prime_rl(HEAD, tmp_path), TRAINING).first_save_bytes is None  # it never says how many it has


def test_a_run_is_settled_once_it_has_taken_a_step() -> None:
    assert read_doing(RUN, TRAINING).is_running
    assert not read_doing(RUN, replace(TRAINING, live=None)).is_running
    assert not read_doing(RUN, replace(TRAINING, live=replace(LIVE, first_progress=None))).is_running


def test_where_a_run_keeps_what_grows(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path / "runs" / "small")
    assert bundled.PROGRAM.places(RUN, run_dir).folders == (run_dir.checkpoints,)
    for text in (HEAD, MAY):
        run = of_prime_rl(text, tmp_path)
        places = prime_rl.PROGRAM.places(run, run_dir)
        root = find_folder(run)
        assert (places.root, len(places.layout.markers)) == (root, 2)
        assert {root / "checkpoints", root / "broadcasts", root / "rollouts"} <= set(places.folders)
        assert root / "run_default" / "checkpoints" in places.folders
