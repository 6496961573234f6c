"""The rate of a trainer after a change: the schedule goes on at its place, times the ratio of the rates."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LinearLR, LRScheduler, SequentialLR

from prime_train import live
from prime_train.callbacks import settings
from prime_train.callbacks.settings import SettingsInForce, on_settings, set_rate

STEPS = 12


def optimizer_of(rate: float) -> torch.optim.SGD:
    first, second = (torch.nn.Parameter(torch.zeros(1)) for _ in range(2))
    groups: list[dict[str, Any]] = [{"params": [first]}, {"params": [second], "lr": rate / 10}]
    return torch.optim.SGD(groups, lr=rate)


def sequential(optimizer: torch.optim.Optimizer) -> LRScheduler:
    return SequentialLR(
        optimizer, [LinearLR(optimizer, 0.1, total_iters=4), CosineAnnealingLR(optimizer, STEPS)], milestones=[4]
    )


SCHEDULES = {
    "lambda": lambda optimizer: LambdaLR(optimizer, lambda step: 1 - step / STEPS),
    "cosine": lambda optimizer: CosineAnnealingLR(optimizer, STEPS),
    "warm-up, then cosine": sequential,
}


def rates(begin: float, schedule: Any, change_at: int | None = None, rate: float = 0.0) -> list[tuple[float, ...]]:
    optimizer = optimizer_of(begin)
    scheduler = schedule(optimizer)
    found = []
    for step in range(STEPS):
        if step == change_at:
            set_rate(rate, optimizer, [scheduler])
            set_rate(rate, optimizer, [scheduler])  # as in a resumed trainer, whose checkpoint has it
        assert scheduler.get_last_lr() == pytest.approx([group["lr"] for group in optimizer.param_groups])
        found.append(tuple(group["lr"] for group in optimizer.param_groups))
        optimizer.step()
        scheduler.step()
    return found


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
@pytest.mark.parametrize("change_at", [0, 3, 7])
def test_from_the_change_on_the_rates_are_those_of_a_trainer_with_that_rate(schedule: Any, change_at: int) -> None:
    before, after = rates(0.1, schedule), rates(0.025, schedule)
    found = rates(0.1, schedule, change_at, 0.025)
    assert found[:change_at] == before[:change_at]
    for one, other in zip(found[change_at:], after[change_at:], strict=True):
        assert one == pytest.approx(other, rel=1e-9)


def test_a_rate_without_a_schedule_and_one_that_is_a_tensor() -> None:
    plain = optimizer_of(0.1)
    set_rate(0.3, plain, [])
    assert [group["lr"] for group in plain.param_groups] == pytest.approx([0.3, 0.03])
    of_tensor = torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))], lr=torch.tensor(0.1))
    kept = of_tensor.param_groups[0]["lr"]
    set_rate(0.3, of_tensor, [None])
    assert of_tensor.param_groups[0]["lr"] is kept
    assert float(kept) == pytest.approx(0.3)


def test_other_settings_go_to_the_functions_of_the_script_once(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[dict[str, float]] = [
        {},
        {"lr": 0.2, "batch_size": 64},
        {"lr": 0.2, "batch_size": 64},
        {"lr": 0.3, "batch_size": 64},
    ]
    monkeypatch.setattr(live, "settings", lambda done: given[done])
    monkeypatch.setattr(settings, "_functions", [])
    found: list[dict[str, Any]] = []
    on_settings(found.append)
    optimizer, in_force, seen = optimizer_of(0.1), SettingsInForce(), []
    for done in range(4):
        in_force.take(done, [optimizer], [])
        seen.append(optimizer.param_groups[0]["lr"])
    assert found == [{"batch_size": 64}]
    assert seen == [0.1, 0.2, 0.2, 0.3]
