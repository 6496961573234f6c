"""The estimate of the bundled trainer's memory is what its live tensors are."""

from __future__ import annotations

import pytest
import torch

from tests.system.trainer.live_tensors import Case, LiveTensors, cases, estimated, measured, saving_cases

pytestmark = pytest.mark.usefixtures("one_thread")
PLAIN = [case for case in cases() if case.run.precision.compute == "fp32"]
AUTOCAST = [case for case in cases() if case.run.precision.compute == "bf16"]


@pytest.mark.parametrize("case", PLAIN, ids=lambda case: case.name)
def test_the_trainer_on_a_cpu_keeps_what_is_estimated(case: Case) -> None:
    """A CPU keeps what each norm normalised too, which a GPU does not: the bound leaves room for it."""
    live = measured(case, fused=False)
    assert sum(term.bytes for term in estimated(case)) == pytest.approx(live.peak, rel=0.1)


@pytest.mark.parametrize("case", [*PLAIN, *AUTOCAST, *saving_cases()], ids=lambda case: case.name)
def test_with_the_operations_of_a_gpu_it_keeps_exactly_that(case: Case) -> None:
    live = measured(case)
    assert sum(term.bytes for term in estimated(case)) == pytest.approx(live.peak, rel=0.02)


def test_a_step_leaves_nothing_behind() -> None:
    live = measured(PLAIN[-1], fused=False)
    assert live.after == pytest.approx(live.resident, rel=0.01)
    assert live.peak > 1.5 * live.resident


def test_live_tensors_count_storages_once_and_forget_them() -> None:
    kept = torch.zeros(256)  # 1 KiB
    live = LiveTensors(iter([kept]))
    with live:
        view = kept.view(16, 16)
        made = view + 1  # 1 KiB more; the view is none
        assert live.bytes() == 2048
        del made
        assert live.bytes() == 1024
        _ = torch.ones(1024)[:1]  # a slice keeps the whole of its storage
    assert (live.resident, live.peak, live.bytes()) == (1024, 1024 + 4096, 1024 + 4096)


def test_what_autograd_saves_is_alive() -> None:
    weight = torch.ones(256, requires_grad=True)
    with LiveTensors(iter([weight])) as live:
        loss = (weight * 2).sin().sum()
        saved = live.bytes()
        loss.backward()  # type: ignore[no-untyped-call]
    assert saved >= 2048  # the weight, and the argument of the sine
    assert live.bytes() < saved + 1024  # which is gone; the gradient has come
