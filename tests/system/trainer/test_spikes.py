"""A step that cannot be trusted leaves the weights as they are."""

from __future__ import annotations

import json
import math
import statistics
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from prime_train import spec
from prime_train.core.errors import UserError
from prime_train.core.rundir import RunDir
from prime_train.events import StepSkipped
from prime_train.trainer.batch import MicroBatch
from prime_train.trainer.device import Device
from prime_train.trainer.loops.after_step import report_spike
from prime_train.trainer.loops.metrics import Metrics, StepMetrics
from prime_train.trainer.loops.spikes import WINDOW_STEPS, Spikes, StepResult, spikes_from
from prime_train.trainer.loops.step import IDLE, Training, loss_sum, take_step, train_step
from prime_train.trainer.model.shards import local_part
from prime_train.trainer.muon import build_optimizer
from prime_train.trainer.parallel import World
from prime_train.trainer.saves import resume
from prime_train.trainer.saves.checkpoint import Checkpointer, TrainPosition
from tests.system.trainer.two_ranks import run_on_two_ranks, shard
from tests.unit.trainer import tiny

TAKEN, NOT_FINITE = replace(IDLE, loss=2.0, grad_norm=1.0), replace(IDLE, loss=math.nan, grad_norm=1.0, skipped=True)


def training(spikes: Spikes | None = None, kind: Literal["adamw", "muon"] = "adamw") -> Training:
    model = tiny.decoder()
    optimizer = build_optimizer(model, spec.Optim(kind=kind))
    return Training(model, optimizer, World(0, 1), tiny.CPU, 1.0, spikes=spikes or Spikes())


def poisoned(factor: float, model: nn.Module, batch: MicroBatch, device: Device) -> Tensor:
    return factor * loss_sum(model, batch, device)


def not_a_number(model: nn.Module, batch: MicroBatch, device: Device) -> Tensor:
    return poisoned(math.nan, model, batch, device)


def thousandfold(model: nn.Module, batch: MicroBatch, device: Device) -> Tensor:
    return poisoned(1000.0, model, batch, device)


def state_of(made: Training) -> list[Tensor]:
    """Copies of the weights and moments."""
    moments = [each for state in made.optimizer.state.values() for each in state.values()]
    return [local_part(tensor.detach()).clone() for tensor in (*made.model.parameters(), *moments)]


def limit_of(spikes: Spikes) -> float:
    return float(spikes.limit_norm(torch.device("cpu")))


def pass_by(spikes: Spikes, step: int, norm: float, *, skip: bool = False) -> None:
    """A step of this norm as device and host see it."""
    spikes.limit_norm(torch.device("cpu"))
    spikes.add_norm(torch.tensor(norm, dtype=torch.float64), torch.tensor(skip))
    spikes.record(step, 1e-3, replace(TAKEN, grad_norm=norm, skipped=skip))


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def watchful(norm: float = 1.0) -> Spikes:
    """A window of norms around `norm`."""
    spikes = Spikes("skip")
    spikes.norms.extend(norm * (1 + 0.01 * (-1) ** number) for number in range(WINDOW_STEPS))
    return spikes


@pytest.mark.parametrize("on_spike", ["end", "skip"])
@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_a_poisoned_batch_leaves_weights_and_moments_bit_equal(kind: str, on_spike: str) -> None:
    made = training(spikes_from(on_spike, {}), kind)  # type: ignore[arg-type]
    train_step(made, [tiny.batch(1)], lr=1e-2)
    before = state_of(made)
    result = take_step(made, [tiny.batch(2)], 1e-2, not_a_number)
    assert result.skipped
    assert math.isnan(result.loss)
    assert same(state_of(made), before)
    assert all(weight.grad is None for weight in made.model.parameters())
    assert not train_step(made, [tiny.batch(3)], lr=1e-2).skipped
    assert not same(state_of(made), before)


def test_a_norm_beyond_six_deviations_is_skipped_and_one_below_is_not() -> None:
    usual = train_step(training(), [tiny.batch(1)], lr=1e-2).grad_norm
    made = training(watchful(usual))
    before = [weight.detach().clone() for weight in made.model.parameters()]
    assert take_step(made, [tiny.batch(1)], 1e-2, thousandfold).skipped
    assert same(list(made.model.parameters()), before)
    assert not any(value.any() for state in made.optimizer.state.values() for value in state.values())
    assert not train_step(made, [tiny.batch(1)], lr=1e-2).skipped


@pytest.mark.parametrize("on_spike", ["end", "skip"])
def test_a_step_that_is_left_out_leaves_weights_moments_and_limit_bit_equal(on_spike: str) -> None:
    made = training(spikes_from(on_spike, {}))  # type: ignore[arg-type]
    train_step(made, [tiny.batch(1)], lr=1e-2)
    before, norms = state_of(made), made.spikes.position()
    made.spikes.leaves_out = True
    for step in range(2, 20):  # more than may be spikes
        result = train_step(made, [tiny.batch(step)], lr=1e-2)
        assert (result.skipped, math.isfinite(result.loss)) == (True, True)
        assert made.spikes.record(step, 1e-2, result) == "optim.skip_steps has it"
    assert same(state_of(made), before)
    assert made.spikes.position() == norms
    made.spikes.leaves_out = False
    assert not train_step(made, [tiny.batch(20)], lr=1e-2).skipped


def test_end_has_no_limit_on_the_norm() -> None:
    assert not take_step(training(), [tiny.batch(1)], 1e-2, thousandfold).skipped
    assert limit_of(Spikes("end", watchful().norms)) == math.inf


def test_few_norms_are_no_reason_to_skip() -> None:
    spikes = Spikes("skip")
    for step in range(1, WINDOW_STEPS // 2):
        pass_by(spikes, step, 1.0)
    assert limit_of(spikes) == math.inf
    pass_by(spikes, 64, 1.0)
    assert limit_of(spikes) == 1.0


def test_steps_without_anything_to_learn_from_do_not_lower_the_limit() -> None:
    """As those of a run on rewards that are equal in each group: a limit of 0 would skip every step after them."""
    spikes = watchful()
    before = limit_of(spikes)
    for step in range(1, 2 * WINDOW_STEPS):
        pass_by(spikes, step, 0.0)
    assert limit_of(spikes) == before > 0


def test_a_skipped_step_does_not_raise_the_limit() -> None:
    spikes = watchful()
    limit = limit_of(spikes)
    pass_by(spikes, 200, 50.0, skip=True)
    assert limit_of(spikes) == limit == pytest.approx(1.06)


def test_the_reason_names_the_limit_that_the_device_judged_by() -> None:
    reason = watchful().record(200, 1e-3, replace(TAKEN, grad_norm=50.0, norm_limit=1.06, skipped=True))
    assert reason == "a loss of 2 and a gradient norm of 50, above the limit of 1.06"


def test_the_ninth_skip_in_a_hundred_steps_ends_the_run() -> None:
    spikes = Spikes("skip")
    for step in range(100, 108):
        assert "a loss of nan" in spikes.record(step, 1e-3, NOT_FINITE)
    with pytest.raises(UserError) as raised:
        spikes.record(199, 1e-3, NOT_FINITE)
    assert "9 of the last 100 steps were skipped" in raised.value.what
    assert raised.value.fix.startswith("optim.lr = 0.0003")


def test_skips_are_forgotten_after_a_hundred_steps() -> None:
    spikes = Spikes("skip")
    for step in (*range(100, 108), 200, 208):
        spikes.record(step, 1e-3, NOT_FINITE)
    assert spikes.skipped_steps == [200, 208]


def test_end_raises_at_once_and_names_the_other_choice() -> None:
    with pytest.raises(UserError, match="step 7 gave a loss of nan") as raised:
        Spikes().record(7, 1e-3, NOT_FINITE)
    assert 'optim.on_spike = "skip"' in raised.value.fix


norms = st.floats(0.01, 100.0)


@given(st.lists(norms, min_size=1, max_size=200))
def test_the_limit_is_the_mean_and_six_deviations_of_the_last_norms(passed: list[float]) -> None:
    spikes = Spikes("skip")
    for step, norm in enumerate(passed):
        pass_by(spikes, step, norm)
    window = passed[-WINDOW_STEPS:]
    expected = statistics.fmean(window) + 6 * statistics.pstdev(window) if len(window) >= 64 else math.inf
    assert limit_of(spikes) == pytest.approx(expected, rel=1e-12)


@given(norms)
def test_norms_that_are_all_equal_are_not_above_their_limit(norm: float) -> None:
    spikes = Spikes("skip")
    spikes.norms.extend([norm] * WINDOW_STEPS)
    assert limit_of(spikes) == norm


@given(before=st.lists(norms, max_size=200), after=st.lists(norms, max_size=100))
def test_a_resumed_run_judges_as_one_that_was_not_stopped(before: list[float], after: list[float]) -> None:
    straight = Spikes("skip")
    for step, norm in enumerate(before):
        pass_by(straight, step, norm, skip=step % 20 == 0 and norm > limit_of(straight))
    resumed = spikes_from("skip", json.loads(json.dumps(straight.position())))
    for step, norm in enumerate(after, start=len(before)):
        pass_by(straight, step, norm)
        pass_by(resumed, step, norm)
        assert limit_of(resumed) == limit_of(straight)
    assert resumed == straight


def test_a_run_that_ends_at_a_spike_saves_no_norms() -> None:
    spikes = Spikes()
    spikes.record(1, 1e-3, TAKEN)
    assert spikes.position() == {}


def test_a_step_that_ends_the_run_is_an_event_too(tmp_path: Path) -> None:
    attempt = tiny.attempt(RunDir(tmp_path), tiny.run_spec(tmp_path))
    with pytest.raises(UserError):
        report_spike(attempt, Spikes(), 3, 1e-3, NOT_FINITE)
    (event,) = tiny.events(attempt.run_dir)
    assert isinstance(event, StepSkipped)
    assert event.step == 3


def test_a_skip_is_an_event_and_its_line_has_no_loss(tmp_path: Path) -> None:
    attempt = tiny.attempt(RunDir(tmp_path), tiny.run_spec(tmp_path))
    report_spike(attempt, Spikes("skip"), 3, 1e-3, NOT_FINITE)
    report_spike(attempt, Spikes("skip"), 4, 1e-3, TAKEN)
    (event,) = tiny.events(attempt.run_dir)
    assert isinstance(event, StepSkipped)
    assert (event.step, event.reason) == (3, "a loss of nan and a gradient norm of 1")
    metrics = Metrics(attempt)
    metrics.add(line(3, NOT_FINITE))
    metrics.add(line(4, TAKEN))
    metrics.close()
    first, second = tiny.metrics(attempt.run_dir)
    assert (first["loss"], first["grad_norm"], first["skipped"]) == (None, 1.0, True)
    assert (second["loss"], second["skipped"]) == (2.0, False)


def line(step: int, result: StepResult) -> StepMetrics:
    times = dict.fromkeys(("step_s", "data_s", "forward_backward_s", "optimizer_s", "checkpoint_s"), 0.1)
    return StepMetrics(
        step=step,
        loss=result.loss,
        lr=1e-3,
        grad_norm=result.grad_norm,
        tokens=10,
        tokens_seen=10 * step,
        tokens_per_s=100.0,
        peak_memory_gib=1.0,
        mfu=None,
        skipped=result.skipped,
        **times,
    )


def _one_rank_finds_a_spike(kind: Literal["adamw", "muon"], sharded: bool, rank: int) -> list[bool]:
    """Whether weights and moments changed in a step, and in the next one. From that on the window of rank 1 has a
    limit."""
    model = tiny.decoder()
    if sharded:
        shard(model)
    optimizer = build_optimizer(model, spec.Optim(kind=kind))
    made = Training(model, optimizer, World(rank, 2), tiny.CPU, 1.0)
    train_step(made, [tiny.batch(rank)], lr=1e-2)
    before = state_of(made)
    made = replace(made, spikes=watchful(1e-6) if rank == 1 else Spikes("skip"))
    skipped = train_step(made, [tiny.batch(rank)], lr=1e-2).skipped
    stayed = same(state_of(made), before)
    made = replace(made, spikes=Spikes("skip"))
    train_step(made, [tiny.batch(rank)], lr=1e-2)
    return [skipped, stayed, same(state_of(made), before)]


@pytest.mark.parametrize("kind", ["adamw", "muon"])
@pytest.mark.parametrize("sharded", [False, True], ids=["whole", "FSDP2"])
def test_all_ranks_skip_where_one_finds_a_spike(tmp_path: Path, kind: Literal["adamw", "muon"], sharded: bool) -> None:
    found = run_on_two_ranks(partial(_one_rank_finds_a_spike, kind, sharded), tmp_path)
    assert found == [[True, True, False]] * 2


def test_the_norms_are_part_of_a_checkpoint(tmp_path: Path) -> None:
    run, made, spikes = tiny.run_spec(tmp_path), training(), watchful()
    run_dir = tiny.prepare(tmp_path / "run", run)
    spikes.record(4, 1e-3, NOT_FINITE)
    checkpointer = Checkpointer(tiny.attempt(run_dir, run), made.world, tiny.CPU.torch)
    checkpointer.save(made.model, made.optimizer, TrainPosition(5, 1000, spikes=spikes.position()))
    checkpointer.finish()
    reached = resume.load(tiny.attempt(run_dir, run, resume_step=5), made.model, made.optimizer, made.world)
    assert spikes_from("skip", reached.spikes) == spikes
