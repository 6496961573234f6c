"""The steps of a round, what is due in it, and how torchft's classes join the weights of two replicas."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from prime_train import spec
from prime_train.trainer.loops.spikes import StepResult
from prime_train.trainer.loops.step import Training, Votes
from prime_train.trainer.parallel import NotCommittedError, World
from prime_train.trainer.replicas.round_plan import choose_sum_limit_s, is_due_in, is_near_end, plan_round
from tests.unit.trainer import tiny

pytest.importorskip("torchft", reason="torchft is not installed: pip install 'prime-train[replicas]'")

from prime_train.trainer.loops.local_steps import _agree, _count, _OwnStep
from prime_train.trainer.replicas.rounds import JointWeights, keep_start, list_moments


@given(st.lists(st.integers(1, 40), min_size=1, max_size=12), st.integers(1, 300))
def test_rounds_of_any_lengths_have_each_step_once(lengths: list[int], max_steps: int) -> None:
    """`lengths`: parallel.sync_every, which may change after each round."""
    reached, seen = 0, []
    for number in range(max_steps):
        if reached == max_steps:
            break
        every = lengths[number % len(lengths)]
        steps = plan_round(reached, every, max_steps)
        assert 1 <= len(steps) <= every
        assert steps[-1] % every == 0 or steps[-1] == max_steps
        seen += [*steps]
        reached = steps[-1]
    assert seen == [*range(1, reached + 1)]


@given(st.integers(0, 200), st.integers(1, 50), st.integers(1, 60))
def test_what_is_due_in_a_round_is_a_multiple_in_it(step: int, every: int, interval: int) -> None:
    steps = plan_round(step, every, 10**6)
    assert is_due_in(steps, interval) == any(one % interval == 0 for one in steps)
    assert not is_due_in(steps, None)


def test_a_stop_waits_for_the_end_of_a_round_that_is_near() -> None:
    assert is_near_end(10, 1.0, 60.0)
    assert not is_near_end(16, 1.0, 60.0)
    assert is_near_end(0, 100.0, 60.0)


def test_a_sum_after_a_round_waits_for_the_slow_replica(tmp_path: Path) -> None:
    run = tiny.run_spec(tmp_path)
    rounds = replace(run, parallel=spec.Parallel(replicas=2, sync_every=4))
    limited = replace(run, parallel=spec.Parallel(replicas=2, sync_every=4, collective_limit_s=7.0))
    assert choose_sum_limit_s(run) is None
    assert choose_sum_limit_s(rounds) == run.prime_train.heartbeat.slow_phase_limit_s
    assert choose_sum_limit_s(limited) == 7.0


def _own(loss: float, tokens: int, norm: float) -> _OwnStep:
    result = StepResult(loss, norm, tokens, stop=False, forward_backward_s=0.1, wait_s=0.0, optimizer_s=0.0)
    return _OwnStep(0.001, 0.0, result)


def test_the_loss_of_a_step_is_over_the_tokens_of_all_replicas() -> None:
    ours, theirs = [_own(2.0, 30, 1.0), _own(1.0, 10, 3.0)], [_own(4.0, 10, 2.0), _own(0.0, 0, 5.0)]
    sums = _count(ours, Votes(save=True)) + _count(theirs, Votes(has_plan=True))
    first, last = _agree(ours, sums.tolist(), 2)
    assert (first.loss, first.tokens, first.grad_norm) == (2.5, 40, 1.5)
    assert (last.loss, last.tokens, last.grad_norm) == (1.0, 10, 4.0)
    assert [(each.save, each.ready_ranks, each.stop) for each in (first, last)] == [(False, 0, False), (True, 1, False)]


class _Network:
    """A network on which another replica has the same weights, changed by `change`."""

    def __init__(self, change: Callable[[Tensor], Tensor], fails: Iterable[int] = ()) -> None:
        self.change, self.fails, self.commits = change, set(fails), 0

    def average(self, tensor: Tensor) -> _Network:
        tensor.copy_((tensor + self.change(tensor)) / 2)
        return self

    def wait(self) -> bool:
        return True

    def commit(self, steps: int = 1) -> None:
        assert steps == 4
        self.commits += 1
        if self.commits in self.fails:
            raise NotCommittedError


def _model() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    model[0].bias.requires_grad_(False)
    return model


def _joint(model: nn.Module, network: Any, **layout: Any) -> JointWeights:
    return JointWeights(model, spec.Parallel(replicas=2, sync_every=4, **layout), network)


def _change(model: nn.Module, by: float) -> None:
    with torch.no_grad():
        for weight in model.parameters():
            if weight.requires_grad:
                weight.add_(by)


def test_local_sgd_takes_the_mean_of_the_trained_weights() -> None:
    model = _model()
    before = [weight.clone() for weight in model.parameters()]
    joint = _joint(model, _Network(lambda weight: weight + 2.0))
    assert joint.join(4)
    for weight, was in zip(model.parameters(), before, strict=True):
        torch.testing.assert_close(weight.detach(), was + 1.0 if weight.requires_grad else was.detach())
    assert joint.read_outer() == {}


def test_diloco_takes_a_step_with_nesterov_momentum_along_the_mean_change() -> None:
    model = _model()
    reference = [weight.detach().clone().requires_grad_() for weight in model.parameters() if weight.requires_grad]
    outer = torch.optim.SGD(reference, lr=0.7, momentum=0.9, nesterov=True)
    # The other one has changed its weights by 0.4 more, so the outer gradient is 0.2 less than the own change.
    joint = _joint(model, _Network(lambda gradient: gradient - 0.4), sync="diloco")
    for by in (0.1, -0.3, 0.2):
        _change(model, by)
        assert joint.join(4)
        for weight in reference:
            weight.grad = torch.full_like(weight, -by - 0.2)
        outer.step()
        trained = [weight for weight in model.parameters() if weight.requires_grad]
        for weight, expected in zip(trained, reference, strict=True):
            torch.testing.assert_close(weight, expected)
    # A replica that takes over weights and momentum goes on in the same way.
    another = _model()
    another.load_state_dict(model.state_dict())
    taken = _joint(another, _Network(lambda gradient: gradient - 0.4), sync="diloco")
    taken.load_outer(joint.read_outer())
    for each, one in ((model, joint), (another, taken)):
        _change(each, 0.5)
        assert one.join(4)
    for weight, expected in zip(another.parameters(), model.parameters(), strict=True):
        assert bool((weight == expected).all())


@pytest.mark.parametrize("sync", ["local_sgd", "diloco"])
def test_a_round_that_is_not_joined_is_made_again_from_its_start(sync: str) -> None:
    model, alone = _model(), _model()
    optimizers = [torch.optim.AdamW([w for w in each.parameters() if w.requires_grad], 0.1) for each in (model, alone)]
    joint = _joint(model, _Network(lambda value: value, fails=[2]), sync=sync, outer_lr=1.0, outer_momentum=0.0)

    def make_step(each: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        each(torch.ones(2, 3)).square().sum().backward()
        optimizer.step()

    for is_joined in (True, False, True):
        start = keep_start(model, optimizers[0])
        make_step(model, optimizers[0])
        assert joint.join(4) == is_joined
        if not is_joined:
            start.restore(Training(model, optimizers[0], World(0, 1), tiny.CPU, None))
    for _ in range(2):
        make_step(alone, optimizers[1])
    for weight, expected in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(weight, expected)
    for moment, expected_moment in zip(*map(list_moments, optimizers), strict=True):
        assert bool((moment == expected_moment).all())


def test_the_start_of_the_first_round_has_no_moments() -> None:
    model = _model()
    optimizer = torch.optim.AdamW([weight for weight in model.parameters() if weight.requires_grad])
    start = keep_start(model, optimizer)
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    start.restore(Training(model, optimizer, World(0, 1), tiny.CPU, None))
    assert list_moments(optimizer) == []
