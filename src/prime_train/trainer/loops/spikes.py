"""Decides which steps may change the weights, by their loss and gradient norm. No I/O, no clock.

The device judges: it knows the norms of all steps before, while the host may read them a step later. The host counts
what was skipped, and keeps the norms for the checkpoint.

The limit is mean + 6 standard deviations of the gradient norms of the last 128 steps, as in OLMo-core's
optim/skip_step_optimizer.py. Here a step that was skipped does not count, because a limit that rises with each spike
accepts the next one.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from prime_train.core.errors import UserError
from prime_train.trainer.device import copy_to_device
from prime_train.trainer.model.experts import ExpertLoad

WINDOW_STEPS = 128
_FEWEST_STEPS = WINDOW_STEPS // 2  # with fewer the deviation is too uncertain to judge by
_DEVIATIONS = 6.0
_MOST_SKIPS = 8
_COUNTED_STEPS = 100  # over which skips are counted


@dataclass(frozen=True, slots=True)
class StepResult:
    """The result of one optimizer step; only the times differ between ranks."""

    loss: float  # mean per labelled token of the global batch; of cross-entropy in nats
    grad_norm: float  # before clipping
    tokens: int  # labelled tokens of the global batch
    stop: bool  # a stop was requested on at least one rank
    forward_backward_s: float  # with the wait for the device when the step was read
    wait_s: float  # in `before_update`
    optimizer_s: float
    skipped: bool = False  # the weights are as before: the loss or the norm is not finite, or the norm is a spike
    save: bool = False  # a checkpoint was requested
    norm_limit: float = math.inf  # a higher norm is a spike
    ready_ranks: int = 0  # that had the next plan of settings
    expert_load: ExpertLoad | None = None  # None without experts, and of a step that was skipped


@dataclass(slots=True)
class Spikes:
    """The gradient norms by which the next step is judged, and the steps that were skipped."""

    on_spike: Literal["end", "skip"] = "end"
    norms: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW_STEPS))
    skipped_steps: list[int] = field(default_factory=list)
    leaves_out: bool = False  # the step that is launched next changes nothing, by optim.skip_steps

    # `norms` on the device, (WINDOW_STEPS,) fp64: the newest last, nan where there is none. Made by the first step.
    _window: Tensor | None = field(default=None, compare=False, repr=False)

    def limit_norm(self, device: torch.device) -> Tensor:
        """The highest gradient norm of a step that may change the weights, 0-d fp64; inf where any finite one may.

        -inf where none may.
        """
        if self.leaves_out:
            return torch.full((), -math.inf, dtype=torch.float64, device=device)
        if self.on_spike == "end":
            return torch.full((), math.inf, dtype=torch.float64, device=device)
        if self._window is None:
            missing = [math.nan] * (WINDOW_STEPS - len(self.norms))
            (self._window,) = copy_to_device([torch.tensor([*missing, *self.norms], dtype=torch.float64)], device)
        newest = self._window[-1]  # ()
        # Differences are exactly 0 where all norms are equal, so rounding puts the limit below none of them.
        apart = self._window - newest  # (WINDOW_STEPS,)
        mean = apart.nanmean()  # ()
        deviation = (apart - mean).square().nanmean().sqrt()  # ()
        few = (~self._window.isnan()).sum() < _FEWEST_STEPS  # ()
        return (newest + mean + _DEVIATIONS * deviation).masked_fill(few, math.inf)

    def add_norm(self, grad_norm: Tensor, skip: Tensor) -> None:
        """Judge the next steps by this norm too, 0-d, unless the step is skipped or had nothing to learn from."""
        if self._window is not None:
            counts = ~skip & (grad_norm > 0)  # ()
            # Chosen on the device: to read `skip` here, the host would have to wait for the step.
            self._window = torch.where(counts, torch.cat((self._window[1:], grad_norm.view(1))), self._window)

    def judge_by_record(self) -> None:
        """Judge the next steps by the recorded norms alone, not by those of steps that were not recorded."""
        self._window = None

    def record(self, step: int, lr: float, measured: StepResult) -> str:
        """Why a step was skipped, "" if it was not; in their order. Raises UserError where the run has to end."""
        if not measured.skipped:
            if self.on_spike == "skip" and measured.grad_norm > 0:  # 0: there was nothing to learn from
                self.norms.append(measured.grad_norm)
            return ""
        if measured.norm_limit == -math.inf:
            return "optim.skip_steps has it"
        finite = math.isfinite(measured.loss) and math.isfinite(measured.grad_norm)
        found = f"a loss of {measured.loss:g} and a gradient norm of {measured.grad_norm:g}"
        if self.on_spike == "end":
            raise UserError(
                what=f"step {step} gave {found}",
                where=f"step {step}, learning rate {lr:.3g}",
                why="training cannot recover from a value that is not finite; repeating the step would give it again",
                fix=f"optim.lr = {lr / 3:.1g}, or a longer schedule.warmup_steps; "
                'optim.on_spike = "skip" leaves such a step out',
            )
        reason = found if not finite else f"{found}, above the limit of {measured.norm_limit:.4g}"
        self.skipped_steps = [each for each in (*self.skipped_steps, step) if each > step - _COUNTED_STEPS]
        if len(self.skipped_steps) > _MOST_SKIPS:
            raise UserError(
                what=f"{len(self.skipped_steps)} of the last {_COUNTED_STEPS} steps were skipped; "
                f"the last of them, step {step}, gave {reason}",
                where=f"step {step}, learning rate {lr:.3g}",
                why=f"with more than {_MOST_SKIPS} skips the fault is not in single batches: the training diverges",
                fix=f"optim.lr = {lr / 3:.1g}, or a longer schedule.warmup_steps, then continue the run",
            )
        return reason

    def position(self) -> dict[str, Any]:
        """What a resumed run needs: JSON-able, empty where nothing is recorded."""
        if self.on_spike == "end":
            return {}
        return {"norms": list(self.norms), "skipped_steps": self.skipped_steps}


def spikes_from(on_spike: Literal["end", "skip"], position: Mapping[str, Any]) -> Spikes:
    """The state of `position()`; an empty one where the run recorded none."""
    spikes = Spikes(on_spike)
    if on_spike == "skip":
        spikes.norms.extend(float(norm) for norm in position.get("norms", ()))
        spikes.skipped_steps = [int(step) for step in position.get("skipped_steps", ())]
    return spikes
