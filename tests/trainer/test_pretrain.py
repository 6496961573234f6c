"""What a step's line in metrics.jsonl is made of. Whole runs are in test_main.py and test_resume.py."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from prime_train import spec
from prime_train.trainer import pretrain
from prime_train.trainer.checkpoint import Reached
from prime_train.trainer.optim import adamw
from prime_train.trainer.parallel import World
from prime_train.trainer.step import StepResult, Training
from tests.trainer import tiny

RESULT = StepResult(
    loss=2.0, grad_norm=1.0, tokens=1000, stop=False, forward_backward_s=1.5, wait_s=0.1, optimizer_s=0.25
)


def measured(peak_flops: float | None, ranks: int = 1) -> Any:
    """The line of a step that took 2 s, of a model of 3 MFLOP per token."""
    model = tiny.decoder()
    device = replace(tiny.CPU, peak_flops=peak_flops)
    training = Training(model, adamw(model, spec.Optim()), World(rank=0, size=ranks), device, None)
    ready = pretrain._Ready(training, tiny.CONFIG, None, None, [], Reached(), 3e6)  # type: ignore[arg-type]
    return pretrain._measured(ready, Reached(7, 7000), RESULT, 1e-3, (0.125, 0.125))


def test_a_step_is_the_sum_of_its_phases() -> None:
    line = measured(None)
    assert (line.step, line.tokens_seen, line.step_s, line.tokens_per_s) == (7, 7000, 2.0, 500.0)
    assert line.step_s == line.data_s + line.forward_backward_s + line.optimizer_s + line.checkpoint_s


def test_mfu_is_of_all_ranks_and_unknown_without_a_peak() -> None:
    assert measured(None).mfu is None
    assert measured(1e10).mfu == pytest.approx(500 * 3e6 / 1e10)
    assert measured(1e10, ranks=4).mfu == pytest.approx(500 * 3e6 / 4e10)
