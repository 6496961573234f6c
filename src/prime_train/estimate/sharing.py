"""One GPU that a trainer and a vLLM server share: who starts first, which fraction, how many rollouts, how long. Pure.

The trainer's memory is a function that the caller gives, of the length that both are run at.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from prime_train.estimate.inference import (
    ServeMemory,
    beyond_budget_bytes,
    budgeted_bytes,
    inference_memory,
    smallest_fraction,
)
from prime_train.estimate.inference_cache import concurrency_of
from prime_train.estimate.inference_engine import interval_gib
from prime_train.estimate.inference_setup import ServeSetup
from prime_train.estimate.values import Hardware, RoleMemory

_BATCHES = 2  # in flight at once: one is sampled while the trainer works on the one before
_LEAST_GROUP = 2  # rollouts of one example, below which a group has no advantage: GRPO, arXiv 2402.03300, s. 4.1
_EXAMPLES = 4  # of a batch at least, so that one easy or hopeless example does not decide the step
_MOST_GROUP = 16
_MOST_ROLLOUTS = 512
_STEP, _FINE_STEP = 0.05, 0.01
_LENGTH_STEP = 256
_LONGEST = 2**20

TrainerMemory = Callable[[int], RoleMemory]  # of ctx_tokens; must not fall when they grow


class Ask(NamedTuple):
    """What is to share a GPU. `rollouts` and `group_size` are what the run asks for; None leaves them open."""

    serve: ServeSetup
    hardware: Hardware
    trainer: TrainerMemory
    rollouts: int | None = None
    group_size: int | None = None


class Window(NamedTuple):
    """The fractions between which both fit: the server's needs below, what the trainer leaves above."""

    smallest: float
    largest: float

    @property
    def is_open(self) -> bool:
        return 0 < self.smallest <= self.largest


class Sharing(NamedTuple):
    """How to share the GPU. `fits` says whether any fraction does with the length and the sequences asked for.

    `longest_ctx_tokens` is that length, or the longest below it that fits (0: none); `ctx_tokens`, `fraction`,
    `rollouts` (orchestrator.batch_size), `group_size` (rollouts per example) and `sequences` (max_num_seqs) are what
    to set for it. `window` is that of what is asked for, where that fits; else of a few sequences of that length.
    """

    starts_first: str
    why_first: str
    fits: bool
    window: Window
    fraction: float
    ctx_tokens: int
    longest_ctx_tokens: int
    rollouts: int
    group_size: int
    sequences: int
    trainer: RoleMemory
    server: ServeMemory

    @property
    def assignments(self) -> dict[str, float | int]:
        """RunSpec field -> the value to set."""
        return {
            "inference.gpu_memory_fraction": self.fraction,
            "inference.ctx_tokens": self.ctx_tokens,
            "inference.max_sequences": self.sequences,
            "rollout.batch_rollouts": self.rollouts,
            "rollout.group_size": self.group_size,
        }


def share(ask: Ask) -> Sharing:
    """The sharing of the length that is asked for, or of the longest one where that does not fit."""
    wanted = ask.serve.ctx_tokens
    few = ask._replace(serve=ask.serve._replace(sequences=min(_BATCHES * _LEAST_GROUP, ask.serve.sequences)))
    longest = wanted if window_of(few, wanted).is_open else longest_ctx_tokens(few, wanted)
    ctx_tokens = longest or wanted
    asked = window_of(ask, wanted)
    window = asked if asked.is_open else window_of(few, ctx_tokens)
    fraction = fraction_in(window)
    rollouts, group_size, sequences = _rollouts(ask, ctx_tokens, fraction)
    served = ask.serve._replace(gpu_memory_fraction=fraction, ctx_tokens=ctx_tokens, sequences=sequences)
    first, why = start_order(ask.serve)
    return Sharing(
        starts_first=first,
        why_first=why,
        fits=asked.is_open,
        window=window,
        fraction=fraction,
        ctx_tokens=ctx_tokens,
        longest_ctx_tokens=longest,
        rollouts=rollouts,
        group_size=group_size,
        sequences=sequences,
        trainer=ask.trainer(ctx_tokens),
        server=inference_memory(served, ask.hardware),
    )


def window_of(ask: Ask, ctx_tokens: int) -> Window:
    """The window at one length. Below: weights, trial run, graphs and the cache of one request, without which vLLM
    does not start. Above: what is left beside the trainer's upper bound, both CUDA contexts, and graphs that lie
    beyond the fraction."""
    setup = ask.serve._replace(ctx_tokens=ctx_tokens, resident_bytes=0.0)
    below = smallest_fraction(setup, ask.hardware, ctx_tokens, 1)
    beside = ask.trainer(ctx_tokens).needed_bytes + beyond_budget_bytes(setup) + interval_gib("context", "gib").high
    return Window(below, 1 - beside / ask.hardware.usable_bytes)


def fraction_in(window: Window) -> float:
    """The largest round fraction of an open window; of a closed one the smallest that the server needs, at most 1."""
    if not window.is_open:
        return min(1.0, _up(window.smallest, _FINE_STEP))
    for step in (_STEP, _FINE_STEP):
        rounded = round(math.floor(window.largest / step + 1e-9) * step, 2)
        if rounded >= window.smallest:
            return rounded
    return window.largest


def longest_ctx_tokens(ask: Ask, at_most: int) -> int:
    """The longest length, in steps of 256, at which the window is open; 0 where it never is."""
    low, high = 0, min(at_most, _LONGEST) // _LENGTH_STEP
    while low < high:
        middle = (low + high + 1) // 2
        if window_of(ask, middle * _LENGTH_STEP).is_open:
            low = middle
        else:
            high = middle - 1
    return low * _LENGTH_STEP


def start_order(setup: ServeSetup) -> tuple[str, str]:
    """(role that starts first, why). The server, whatever its version; the reason is the version's."""
    if setup.engine.counts_others:
        return (
            "inference",
            f"vLLM {setup.version} takes what a trainer already holds off its own cache, which is negative then",
        )
    return (
        "inference",
        f"vLLM {setup.version} refuses to start with less than its fraction free, and stops where another process "
        "frees memory while it measures; the trainer takes what is left as it grows",
    )


def _rollouts(ask: Ask, ctx_tokens: int, fraction: float) -> tuple[int, int, int]:
    """(rollouts of a batch, of an example, at once): as many as a power of two that two batches of full length fit.

    What the run asks for stays where it fits.
    """
    fitting = [rollouts for rollouts in _powers_of_two() if _held(ask, ctx_tokens, fraction, rollouts) >= rollouts]
    batch = max(fitting, default=_LEAST_GROUP)
    if ask.rollouts and (ask.rollouts <= batch or _held(ask, ctx_tokens, fraction, ask.rollouts) >= ask.rollouts):
        batch = ask.rollouts
    group = min(_MOST_GROUP, max(_LEAST_GROUP, batch // _EXAMPLES))
    if ask.group_size and (batch == ask.rollouts or ask.group_size < group):
        group = ask.group_size
    group = min(group, batch)
    batch -= batch % group
    at_once = int(_BATCHES * min(batch, _held(ask, ctx_tokens, fraction, batch)))
    return batch, group, max(1, min(ask.serve.sequences, at_once))


def _powers_of_two() -> list[int]:
    return [2**power for power in range(1, _MOST_ROLLOUTS.bit_length())]


def _held(ask: Ask, ctx_tokens: int, fraction: float, rollouts: int) -> float:
    """Rollouts of one batch that the cache holds beside those of another, all at full length, where room is made to
    sample so many and the trial run takes the most."""
    sequences = min(ask.serve.sequences, _BATCHES * rollouts)
    setup = ask.serve._replace(gpu_memory_fraction=fraction, ctx_tokens=ctx_tokens, sequences=sequences)
    room = setup.gpu_memory_fraction * ask.hardware.usable_bytes - budgeted_bytes(setup).high
    return concurrency_of(setup, room) / _BATCHES


def _up(value: float, step: float) -> float:
    return round(math.ceil(value / step - 1e-9) * step, 2)
