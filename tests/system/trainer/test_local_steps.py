"""Replicas that make some steps alone: equal after each round, also after kills, and a checkpoint fits any number."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from prime_train import spec
from prime_train.checkpoints import layout
from prime_train.core.plans import ChangePlan, write_plan
from prime_train.core.rundir import RunDir
from prime_train.events import ReplicaLost, ReplicasJoined, SettingsApplied, TrainerFailed, TrainerStopped
from prime_train.spec import RunSpec
from prime_train.trainer.replicas.life_sign import folder_of, read_sign
from tests.drills.replica_launcher import DIARY_ENV
from tests.unit.trainer import tiny

pytest.importorskip("torchft", reason="torchft is not installed: pip install 'prime-train[replicas]'")
pytestmark = pytest.mark.timeout(600)

EVERY = 4
ROWS = 5  # of a step: two replicas have different parts
_ENDLESS = 10**6
BOTH = pytest.mark.parametrize("sync", ["local_sgd", "diloco"])


def _run(texts: Path, replicas: int, steps: int, sync: Any = "local_sgd") -> RunSpec:
    rounds = {"sync_every": EVERY, "sync": sync} if replicas else {}
    return tiny.run_spec(
        texts,
        run=spec.Run(name="tiny", max_steps=steps, seed=7),
        parallel=spec.Parallel(processes=max(1, replicas), replicas=replicas, collective_limit_s=60.0, **rounds),
        batch=spec.Batch(micro_batch=2 if replicas else ROWS, global_batch=ROWS),
        schedule=spec.Schedule(kind="constant", warmup_steps=3),
        checkpoint=spec.Checkpoint(interval_steps=8, keep_last=100),
        eval=spec.Eval(interval_steps=100, held_out_ratio=0.1, batches=1),
    )


@dataclass
class Diary:
    """What the replicas of a run wrote down, in their order."""

    path: Path

    def lines(self) -> Iterator[tuple[int, list[str]]]:
        for number in range(3):
            path = Path(f"{self.path}-{number}")
            for line in path.read_text().splitlines() if path.exists() else ():
                yield number, line.split()

    def begins(self) -> list[tuple[int, int, str]]:
        """(replica, step, training) of each begin of a round."""
        found = (each for each in self.lines() if each[1][0] == "begin")
        return [(number, int(words[1]), words[3]) for number, words in found]

    def judge(self) -> int:
        """The step that was committed last. In each committed round all began equal, and used each row once."""
        parts: dict[tuple[str, ...], dict[int, dict[int, range]]] = defaultdict(lambda: defaultdict(dict))
        trainings: dict[tuple[str, ...], set[str]] = defaultdict(set)
        sizes: dict[tuple[str, ...], int] = {}
        ends: dict[tuple[str, ...], int] = {}
        for number, words in self.lines():
            key = (words[1], words[2])
            match words[0]:
                case "begin":
                    trainings[key].add(words[3])
                    sizes[key] = int(words[4])
                case "part":
                    parts[key][int(words[3])][number] = range(int(words[4]), int(words[5]))
                case "commit":
                    ends[key] = int(words[3])
        for committed, end in ends.items():
            assert len(trainings[committed]) == 1
            assert sorted(parts[committed]) == [*range(int(committed[0]) + 1, end + 1)]
            for shares in parts[committed].values():
                assert len(shares) == sizes[committed]
                assert sorted(row for share in shares.values() for row in share) == [*range(ROWS)]
        return max(ends.values())


def _command(run_dir: RunDir, attempt: int, resume_step: int) -> list[str]:
    words = [sys.executable, "-m", "tests.drills.round_launcher", str(run_dir.path), "--attempt", str(attempt)]
    return [*words, "--resume-step", str(resume_step)]


def _environment(diary: Path, **more: str) -> dict[str, str]:
    own = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "RUST_LOG": "warn", DIARY_ENV: str(diary)}
    return os.environ | own | more


def _train(run_dir: RunDir, attempt: int = 1, resume_step: int = 0, **more: str) -> None:
    diary = _environment(run_dir.path / "diary", **more)
    ended = subprocess.run(
        _command(run_dir, attempt, resume_step),
        env=diary,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=tiny.DEADLINE_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout


@contextmanager
def _started(run_dir: RunDir, **more: str) -> Iterator[subprocess.Popen[bytes]]:
    """The launcher, which is killed with its replicas at the end of the block, where they still run."""
    with open(run_dir.path / "log", "ab") as log:
        environment = _environment(run_dir.path / "diary", **more)
        process = subprocess.Popen(_command(run_dir, 1, 0), env=environment, stdout=log, stderr=log)
    try:
        yield process
    finally:
        signs = [read_sign(folder_of(run_dir, 1), number) for number in range(2)]
        if process.poll() is None:
            process.kill()
            process.wait()
            for sign in signs:
                if sign is not None:
                    _kill(sign.pid)


def _kill(pid: int) -> None:
    try:
        os.kill(pid, 9)
    except ProcessLookupError:
        return


def _await(process: subprocess.Popen[bytes], run_dir: RunDir, holds: Any) -> None:
    def is_so() -> bool:
        assert process.poll() is None, (run_dir.path / "log").read_text()[-4000:]
        return bool(holds())

    tiny.until(is_so)


def _losses(run_dir: RunDir) -> list[float]:
    return [line["loss"] for line in tiny.metrics(run_dir)]


def _tensors(run_dir: RunDir, step: int) -> dict[str, Any]:
    from prime_train.trainer.saves.dcp_reader import SavedTensors

    saved = SavedTensors(run_dir.checkpoint(step))
    return {each.name: saved.load(each.name) for each in saved.list_tensors("")}


def _equal(ours: dict[str, Any], theirs: dict[str, Any]) -> bool:
    return ours.keys() == theirs.keys() and all(bool((value == theirs[name]).all()) for name, value in ours.items())


@BOTH
def test_replicas_are_equal_after_each_round(sync: str, texts: Path, tmp_path: Path) -> None:
    run_dir = tiny.prepare(tmp_path / "run", _run(texts, 2, 10, sync))
    _train(run_dir)
    diary = Diary(run_dir.path / "diary")
    assert diary.judge() == 10
    assert [step for number, step, _ in diary.begins() if number == 0] == [0, 4, 8]
    lines = tiny.metrics(run_dir)
    assert [(line["step"], line["round"]) for line in lines] == [(step, -(-step // EVERY)) for step in range(1, 11)]
    assert run_dir.checkpoint(8).is_dir()
    names = _tensors(run_dir, 8)
    assert any(name.startswith("outer.") for name in names) == (sync == "diloco")


@BOTH
def test_the_loss_falls_as_in_training_that_sums_each_step(sync: str, texts: Path, tmp_path: Path) -> None:
    steps = 60
    plain = tiny.prepare(tmp_path / "plain", _run(texts, 0, steps))
    assert tiny.train(plain)[0] == 0
    run_dir = tiny.prepare(tmp_path / "run", _run(texts, 2, steps, sync))
    _train(run_dir)
    ours, theirs = tiny.metrics(run_dir), tiny.metrics(plain)
    assert [line["tokens_seen"] for line in ours] == [line["tokens_seen"] for line in theirs]
    assert ours[0]["loss"] == pytest.approx(theirs[0]["loss"], abs=1e-4)  # before any weight has changed
    fallen, expected = (_mean(each[:1]) - _mean(each[-8:]) for each in (_losses(run_dir), _losses(plain)))
    assert fallen > 0.7 * expected


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


@BOTH
def test_a_replica_that_is_killed_in_a_round_comes_back(sync: str, texts: Path, tmp_path: Path) -> None:
    run_dir = tiny.prepare(tmp_path / "run", _run(texts, 2, _ENDLESS, sync))
    diary = Diary(run_dir.path / "diary")

    def has_come_back() -> bool:
        joined = [event.members for event in tiny.events(run_dir) if isinstance(event, ReplicasJoined)]
        return joined[-1:] == [("0", "1")] and len(joined) > 1

    with _started(run_dir, REPLICA_KILL="1 7") as process:
        _await(process, run_dir, has_come_back)
        reached = diary.judge()
        _await(process, run_dir, lambda: diary.judge() >= reached + 3 * EVERY)
        run_dir.stop_request(1).touch()
        assert process.wait(tiny.DEADLINE_S) == 0, (run_dir.path / "log").read_text()[-4000:]
    last = diary.judge()
    lost = [event for event in tiny.events(run_dir) if isinstance(event, ReplicaLost)]
    assert [(event.replica, event.step) for event in lost] == [(1, 4)]
    stopped = [event for event in tiny.events(run_dir) if isinstance(event, TrainerStopped)]
    assert [event.step for event in stopped] == [last]
    assert run_dir.checkpoint(last).is_dir()
    lines = tiny.metrics(run_dir)
    assert [line["step"] for line in lines] == [*range(1, last + 1)]
    # The round that was broken off was made again by the other one, from the same weights on.
    assert {step for number, step, _ in diary.begins() if number == 0} == {*range(0, last, EVERY)}
    again = {training for number, step, training in diary.begins() if number == 0 and step == EVERY}
    assert len(again) == 1
    # Its rows are those of training without a kill.
    plain = tiny.prepare(tmp_path / "plain", _run(texts, 0, 12))
    assert tiny.train(plain)[0] == 0
    assert [line["tokens_seen"] for line in lines[:12]] == [line["tokens_seen"] for line in tiny.metrics(plain)]


@BOTH
def test_a_run_that_was_killed_goes_on_as_one_that_was_not(sync: str, texts: Path, tmp_path: Path) -> None:
    straight = tiny.prepare(tmp_path / "straight", _run(texts, 2, 20, sync))
    _train(straight)
    run_dir = tiny.prepare(tmp_path / "run", _run(texts, 2, _ENDLESS, sync))
    with _started(run_dir) as process:
        _await(process, run_dir, lambda: not layout.problem(run_dir.checkpoint(8)))
    tiny.prepare(run_dir.path, _run(texts, 2, 20, sync))
    _train(run_dir, 2, 8)
    assert _losses(run_dir) == _losses(straight)
    assert [line["round"] for line in tiny.metrics(run_dir)] == [line["round"] for line in tiny.metrics(straight)]
    assert _equal(_tensors(run_dir, 20), _tensors(straight, 20))


def test_a_run_goes_on_with_another_number_of_replicas_and_without(texts: Path, tmp_path: Path) -> None:
    plain = tiny.prepare(tmp_path / "plain", _run(texts, 0, 16))
    assert tiny.train(plain)[0] == 0
    run_dir = tiny.prepare(tmp_path / "run", _run(texts, 2, 6, "diloco"))
    _train(run_dir)
    tiny.prepare(run_dir.path, _run(texts, 3, 12, "diloco"))
    _train(run_dir, 2, 6)
    tiny.prepare(run_dir.path, _run(texts, 0, 16))
    code, output = tiny.train(run_dir, 3, 12)
    assert code == 0, output
    ours, theirs = tiny.metrics(run_dir), tiny.metrics(plain)
    assert [line["step"] for line in ours] == [*range(1, 17)]
    assert [line["tokens_seen"] for line in ours] == [line["tokens_seen"] for line in theirs]
    assert [line.get("round") for line in ours[4:]] == [2, 2, 3, 3, 4, 4, 4, 4, None, None, None, None]
    assert ours[-1]["loss"] == pytest.approx(theirs[-1]["loss"], rel=0.2)


def test_the_length_of_a_round_changes_between_two_rounds(texts: Path, tmp_path: Path) -> None:
    run_dir = tiny.prepare(tmp_path / "run", _run(texts, 2, 12))
    values: dict[str, Any] = {"parallel.sync_every": 2}
    run_dir.settings.mkdir()
    plan = ChangePlan(version=1, values=values, before={}, config={"parallel.sync_every": EVERY})
    write_plan(run_dir.settings, plan)
    _train(run_dir)
    diary = Diary(run_dir.path / "diary")
    assert diary.judge() == 12
    assert [step for number, step, _ in diary.begins() if number == 1] == [0, 4, 6, 8, 10]
    applied = [event for event in tiny.events(run_dir) if isinstance(event, SettingsApplied)]
    assert [(event.version, event.step) for event in applied] == [(1, 5)]


def test_a_step_without_rows_for_each_replica_ends_the_attempt_with_its_reason(texts: Path, tmp_path: Path) -> None:
    run = _run(texts, 2, 4)
    run_dir = tiny.prepare(tmp_path / "run", replace(run, batch=spec.Batch(micro_batch=1, global_batch=1)))
    ended = subprocess.run(
        _command(run_dir, 1, 0),
        env=_environment(tmp_path / "diary"),
        capture_output=True,
        timeout=tiny.DEADLINE_S,
        check=False,
    )
    assert ended.returncode == 5, ended.stderr
    failed = [event for event in tiny.events(run_dir) if isinstance(event, TrainerFailed)]
    assert [(event.where, event.cause_class) for event in failed] == [("batch.global_batch", "config")]
