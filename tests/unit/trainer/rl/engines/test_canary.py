"""The canary: rounding is right, former or other weights are not."""

from __future__ import annotations

import pytest
import torch

from prime_train.trainer.model.decoder import Decoder
from prime_train.trainer.rl.engines.canary import Canary
from tests.unit.trainer import tiny
from tests.unit.trainer.rl.engines.test_local_engine import full_logprobs, wide


def answer_of(model: Decoder, canary: Canary) -> tuple[float, ...]:
    tokens = torch.tensor(canary.tokens)
    full = full_logprobs(model, canary.tokens)[:-1]
    return tuple(full.gather(1, tokens[1:, None]).squeeze(1).tolist())


def changed(model: Decoder, by: float) -> Decoder:
    other = wide(1)
    with torch.no_grad():
        for weight, base in zip(other.parameters(), model.parameters(), strict=True):
            weight.copy_(base + by * torch.randn(base.shape, generator=torch.Generator().manual_seed(1)))
    return other


@pytest.mark.parametrize("exact", [True, False])
def test_the_current_weights_are_right(exact: bool) -> None:
    canary = Canary(tiny.CONFIG, tiny.CPU, 64, exact=exact)
    for by in (0.0, 0.001, 0.0):
        model = changed(wide(1), by)
        canary.learn(model.state_dict())
        assert canary.judge(answer_of(model, canary)) == ""


@pytest.mark.parametrize(("by", "found"), [(1e-7, False), (3e-4, True), (0.003, True), (0.1, True)])
def test_the_former_weights_are_found_if_the_update_exceeds_rounding(by: float, found: bool) -> None:
    former = wide(1)
    canary = Canary(tiny.CONFIG, tiny.CPU, 64, exact=True)
    canary.learn(former.state_dict())
    canary.learn(changed(former, by).state_dict())
    assert bool(canary.judge(answer_of(former, canary))) is found


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -50.0])
def test_what_no_weights_answer_is_wrong(wrong: float) -> None:
    canary = Canary(tiny.CONFIG, tiny.CPU, 64, exact=False)
    canary.learn(wide(1).state_dict())
    assert canary.judge((wrong,) * (len(canary.tokens) - 1))


def test_the_tokens_leave_room_for_an_answer() -> None:
    assert len(Canary(tiny.CONFIG, tiny.CPU, 9, exact=True).tokens) == 8
