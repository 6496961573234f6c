"""Pretraining with the settings of the step. Other whole runs are in test_main.py and test_resume.py."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict_loader import load

from prime_train import spec
from prime_train.checkpoints import layout
from prime_train.core.errors import UserError
from prime_train.core.rundir import RunDir
from prime_train.events import (
    CheckpointSaved,
    Evaluated,
    Sampled,
    StepSkipped,
    TrainerFailed,
    TrainerFinished,
    TrainerStopped,
)
from prime_train.spec import RunSpec
from prime_train.trainer import build
from prime_train.trainer.attempt import StopFlag
from prime_train.trainer.batch import MicroBatch
from prime_train.trainer.device import Device
from prime_train.trainer.loops import pretrain, work
from prime_train.trainer.loops.step import loss_sum
from prime_train.trainer.saves.checkpoint import TrainPosition
from prime_train.trainer.saves.dcp_reader import Planner, Reader
from tests.system.trainer.test_expert_runs import MODEL as EXPERTS
from tests.system.trainer.test_resume import contents, differences
from tests.unit.trainer import tiny

COMPILER = shutil.which("g++")
# How long a step took, and how much memory was in use.
MEASURED = frozenset({"step_s", "data_s", "forward_backward_s", "optimizer_s", "checkpoint_s", "tokens_per_s", "mfu"})
MEASURED |= {"peak_memory_gib"}


@pytest.mark.skipif(COMPILER is None, reason="torch.compile needs g++ on a CPU, and there is none")
def test_a_compiled_run_is_the_same_training_and_its_checkpoint_goes_on_without(texts: Path, tmp_path: Path) -> None:
    run = tiny.run_spec(texts, checkpoint=spec.Checkpoint(interval_steps=5), eval=spec.Eval(interval_steps=None))
    plain = tiny.prepare(tmp_path / "plain", run)
    assert tiny.train(plain)[0] == 0

    halfway = replace(run, model=replace(run.model, compile=True), run=replace(run.run, max_steps=5))
    # The rate of the first steps does not depend on where the run ends: warm-up, then the plateau.
    halfway = replace(halfway, schedule=spec.Schedule(kind="constant", warmup_steps=3))
    compiled = tiny.prepare(tmp_path / "compiled", halfway)
    code, output = tiny.train(compiled)
    assert code == 0, output
    tiny.prepare(compiled.path, run)
    code, output = tiny.train(compiled, number=2, resume_step=5)
    assert code == 0, output
    expected = [line["loss"] for line in tiny.metrics(plain)]
    assert [line["loss"] for line in tiny.metrics(compiled)] == pytest.approx(expected, abs=1e-4)


def test_without_a_compiler_a_compiled_run_ends_for_good_and_states_what_is_missing(
    texts: Path, tmp_path: Path
) -> None:
    run = tiny.run_spec(texts)
    run_dir = tiny.prepare(tmp_path / "run", replace(run, model=replace(run.model, compile=True)))
    nowhere = {"PATH": str(tmp_path), "CXX": str(tmp_path / "g++"), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    code, output = tiny.train(run_dir, environment=nowhere)
    assert code == 5, output
    (failed,) = (event for event in tiny.events(run_dir) if isinstance(event, TrainerFailed))
    assert (failed.cause_class, failed.fix) == ("env", "apt install g++, or model.compile = false")


def test_a_run_with_every_setting_of_the_step_goes_on_as_if_it_had_not_been_killed(texts: Path, tmp_path: Path) -> None:
    """Muon, a growing batch, recompute, a padded vocabulary, no decay of embeddings, and steps that may be skipped."""
    run = tiny.run_spec(texts, checkpoint=spec.Checkpoint(interval_steps=5), eval=spec.Eval(interval_steps=None))
    run = replace(
        run,
        model=replace(run.model, recompute="selective", recompute_every=2, pad_vocab=True),
        optim=spec.Optim(kind="muon", muon_lr=0.01, decay_embeddings=False, on_spike="skip"),
        schedule=spec.Schedule(kind="inverse-sqrt", warmup_steps=3),
        batch=spec.Batch(micro_batch=2, global_batch=8, start_batch=2, ramp_steps=4),
        checkpoint=spec.Checkpoint(interval_steps=5, final="hf"),
    )
    run_dir = tiny.prepare(tmp_path / "run", run)
    code, output = tiny.train(run_dir)
    assert code == 0, output
    straight, exported = tiny.metrics(run_dir), (run_dir.final / "model.safetensors").read_bytes()
    assert [line["tokens"] > 0 and not line["skipped"] for line in straight] == [True] * 10
    assert 3 * straight[0]["tokens"] < straight[-1]["tokens"]
    shutil.rmtree(run_dir.checkpoint(10))
    code, output = tiny.train(run_dir, number=2, resume_step=5)
    assert code == 0, output
    assert [line["loss"] for line in tiny.metrics(run_dir)] == [line["loss"] for line in straight]
    assert (run_dir.final / "model.safetensors").read_bytes() == exported
    assert len(saved_position(run_dir, 10).spikes["norms"]) == 10


def saved_position(run_dir: RunDir, step: int) -> TrainPosition:
    folder = run_dir.checkpoint(step)
    state = {"reached": ""}
    reader = Reader(folder, {entry.name for entry in layout.entries(folder)})
    load(state, storage_reader=reader, planner=Planner(), no_dist=True)
    return TrainPosition(**json.loads(state["reached"]))


Train = Callable[..., RunDir]


@pytest.fixture
def train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Train]:
    """Trains a run in this process; its loop reads a step `behind` steps after it was launched, as on a GPU."""

    def train(name: str, run: RunSpec, behind: int, number: int = 1, resume_step: int = 0) -> RunDir:
        monkeypatch.setattr(build, "pick", lambda *_: replace(tiny.CPU, read_behind_steps=behind))
        run_dir = tiny.prepare(tmp_path / name, run)
        attempt = tiny.attempt(run_dir, run, resume_step, number)
        pretrain.main(attempt, StopFlag(run_dir.stop_request(number)))
        return run_dir

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield train
    torch.set_num_threads(threads)


def kept(texts: Path, **parts: Any) -> RunSpec:
    """A run that keeps both of its checkpoints."""
    return tiny.run_spec(texts, checkpoint=spec.Checkpoint(interval_steps=5, keep_every_steps=5), **parts)


def numbers(run_dir: RunDir) -> list[dict[str, Any]]:
    return [{name: line[name] for name in line.keys() - MEASURED} for line in tiny.metrics(run_dir)]


def assert_same(one: RunDir, other: RunDir, out: Path) -> None:
    """The same metrics, evaluations, and bits in each checkpoint."""
    assert numbers(one) == numbers(other)
    shown = (Evaluated, Sampled, StepSkipped)
    first, second = (
        {replace(event, attempt=1) for event in tiny.events(each) if isinstance(event, shown)} for each in (one, other)
    )
    assert first == second
    for step in (5, 10):
        saved = contents(one.checkpoint(step), out / "one.pt")
        assert differences(saved, contents(other.checkpoint(step), out / "other.pt")) == []


@pytest.mark.parametrize("settings", ["plain", pytest.param("all")])
def test_a_run_whose_steps_are_read_late_is_that_of_steps_read_at_once(
    texts: Path, tmp_path: Path, train: Train, settings: str
) -> None:
    run = kept(texts)
    if settings == "all":
        run = replace(
            run,
            model=EXPERTS,
            optim=spec.Optim(kind="muon", on_spike="skip"),
            batch=spec.Batch(micro_batch=2, global_batch=8, start_batch=2, ramp_steps=4),
        )
    at_once, late = train("at-once", run, behind=0), train("late", run, behind=1)
    assert_same(at_once, late, tmp_path)
    lines = tiny.metrics(late)
    assert [line["step"] for line in lines] == list(range(1, 11))
    phases = ("data_s", "forward_backward_s", "optimizer_s", "checkpoint_s")
    assert all(line["step_s"] == pytest.approx(sum(line[name] for name in phases)) for line in lines)
    assert isinstance(tiny.events(late)[-1], TrainerFinished)


def at_step(wanted: int, act: Callable[[], float]) -> Callable[[nn.Module, MicroBatch, Device], Tensor]:
    """The loss of a run with one micro-batch in a step, times what `act` returns in the step `wanted`."""
    taken = 0

    def loss(model: nn.Module, batch: MicroBatch, device: Device) -> Tensor:
        nonlocal taken
        taken += 1
        return loss_sum(model, batch, device) * (act() if taken == wanted else 1.0)

    return loss


class KilledError(Exception):
    pass


def test_a_run_that_is_killed_while_a_step_is_not_read_goes_on_with_equal_steps(
    texts: Path, tmp_path: Path, train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    straight, killed = train("straight", kept(texts), behind=0), RunDir(tmp_path / "killed")

    def kill() -> float:
        tiny.until(lambda: any(isinstance(event, CheckpointSaved) for event in tiny.events(killed)))
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(work, "loss_sum", at_step(8, kill))
        with pytest.raises(KilledError):
            train("killed", kept(texts), behind=1)
    assert [line["step"] for line in tiny.metrics(killed)] == list(range(1, 7))  # step 7 was launched and not read
    train("killed", kept(texts), behind=1, number=2, resume_step=5)
    assert_same(straight, killed, tmp_path)


def test_a_stop_is_known_a_step_late_and_what_is_saved_is_where_the_run_is(
    texts: Path, tmp_path: Path, train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    straight = train("straight", kept(texts), behind=0)
    request = RunDir(tmp_path / "stopped").stop_request(1)

    def ask() -> float:
        request.parent.mkdir(parents=True, exist_ok=True)
        request.touch()
        return 1.0

    with monkeypatch.context() as patch:
        patch.setattr(work, "loss_sum", at_step(6, ask))
        stopped = train("stopped", kept(texts), behind=1)
    # Step 7 is the first that counts the request, and step 8 is launched before the loop reads step 7.
    assert tiny.events(stopped)[-1] == TrainerStopped(1, 8)
    lines = tiny.metrics(stopped)
    assert [line["step"] for line in lines] == list(range(1, 9))
    position = saved_position(stopped, 8)
    assert (position.step, position.tokens_seen) == (8, lines[-1]["tokens_seen"])
    train("stopped", kept(texts), behind=1, number=2, resume_step=8)
    assert_same(straight, stopped, tmp_path)


@pytest.mark.parametrize("behind", [0, 1])
def test_steps_that_are_left_out_are_reported_as_skipped(texts: Path, train: Train, behind: int) -> None:
    run = kept(texts, optim=spec.Optim(skip_steps=(4, 5)), eval=spec.Eval(interval_steps=None))
    run_dir = train("run", run, behind)
    assert [line["step"] for line in tiny.metrics(run_dir) if line["skipped"]] == [4, 5]
    skipped = [event for event in tiny.events(run_dir) if isinstance(event, StepSkipped)]
    assert [(event.step, event.reason) for event in skipped] == [
        (4, "optim.skip_steps has it"),
        (5, "optim.skip_steps has it"),
    ]


@pytest.mark.parametrize("behind", [0, 1])
@pytest.mark.parametrize("poisoned", [4, 5])
def test_a_spike_is_recorded_for_its_own_step(
    texts: Path, train: Train, monkeypatch: pytest.MonkeyPatch, behind: int, poisoned: int
) -> None:
    """Also in the step whose checkpoint is saved."""
    monkeypatch.setattr(work, "loss_sum", at_step(poisoned, lambda: math.nan))
    run = kept(texts, optim=spec.Optim(on_spike="skip"), eval=spec.Eval(interval_steps=None))
    run_dir = train("run", run, behind)
    assert [event.step for event in tiny.events(run_dir) if isinstance(event, StepSkipped)] == [poisoned]
    assert [line["step"] for line in tiny.metrics(run_dir) if line["skipped"]] == [poisoned]
    spikes = saved_position(run_dir, 5).spikes
    assert (len(spikes["norms"]), spikes["skipped_steps"]) == (4, [poisoned])


@pytest.mark.parametrize("behind", [0, 1])
def test_a_run_that_ends_at_a_spike_names_its_step(
    texts: Path, tmp_path: Path, train: Train, monkeypatch: pytest.MonkeyPatch, behind: int
) -> None:
    monkeypatch.setattr(work, "loss_sum", at_step(4, lambda: math.nan))
    with pytest.raises(UserError, match="step 4 gave a loss of nan"):
        train("run", kept(texts), behind)
    assert [line["step"] for line in tiny.metrics(RunDir(tmp_path / "run"))] == [1, 2, 3]


def test_the_evaluations_are_closed_where_a_step_fails(
    texts: Path, train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[Noted] = []

    class Noted:
        def measure(self, *_: Any) -> None: ...

        def close(self) -> None:
            closed.append(self)

    def fail() -> float:
        assert closed == []
        raise KilledError

    opened = (Noted(), Noted())
    monkeypatch.setattr(work, "open_evaluations", lambda *_, **__: opened)
    monkeypatch.setattr(work, "loss_sum", at_step(2, fail))
    with pytest.raises(KilledError):
        train("run", kept(texts), behind=0)
    assert closed == list(opened)
