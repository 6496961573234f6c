"""Plans how a trainer and a vLLM server share one GPU: start order, fraction, rollouts, context length. Pure.

The caller passes a function that returns the trainer's memory at a context length.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from prime_train.estimate.serving.kv_cache import concurrency_of
from prime_train.estimate.serving.server_memory import beyond_budget_bytes, budgeted_bytes, smallest_fraction
from prime_train.estimate.serving.server_setup import ServeSetup, table_interval_bytes
from prime_train.estimate.values import Hardware, RoleMemory, find_largest

_BATCHES = 2  # in flight at once: one is sampled while the trainer works on the previous one
_LEAST_GROUP = 2  # rollouts per example; a smaller group has no advantage: GRPO, arXiv 2402.03300, s. 4.1
_EXAMPLES = 4  # at least this many per batch, so that one very easy or hard example does not decide the step
_MOST_GROUP = 16
_MOST_ROLLOUTS = 512
_STEP, _FINE_STEP = 0.05, 0.01
_LENGTH_STEP = 256
_LONGEST = 2**20

TrainerMemory = Callable[[int], RoleMemory]  # takes ctx_tokens; must not fall when they grow


class SharingRequest(NamedTuple):
    """The roles that share a GPU. `rollouts` and `group_size` are those of the config, None if it sets none."""

    serve: ServeSetup
    hardware: Hardware
    trainer: TrainerMemory
    rollouts: int | None = None
    group_size: int | None = None


class Window(NamedTuple):
    """The fractions with which both fit: from the server's need up to what the trainer leaves."""

    smallest: float
    largest: float

    @property
    def is_open(self) -> bool:
        return 0 < self.smallest <= self.largest


class Sharing(NamedTuple):
    """How to share the GPU. `fits`: some fraction works with the requested length and sequences.

    `longest_ctx_tokens` is the requested length, or the longest below it that fits (0: none). The values to set are
    `ctx_tokens`, `fraction`, `rollouts` (orchestrator.batch_size), `group_size` (rollouts per example) and `sequences`
    (max_num_seqs). `window` is for the request if it fits, else for a few sequences of that length.
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


def share(request: SharingRequest) -> Sharing:
    """The plan for the requested length, or for the longest one that fits."""
    wanted = request.serve.ctx_tokens
    few = request._replace(
        serve=request.serve._replace(sequences=min(_BATCHES * _LEAST_GROUP, request.serve.sequences))
    )
    longest = wanted if window_of(few, wanted).is_open else longest_ctx_tokens(few, wanted)
    ctx_tokens = longest or wanted
    requested = window_of(request, wanted)
    window = requested if requested.is_open else window_of(few, ctx_tokens)
    fraction = fraction_in(window)
    rollouts, group_size, sequences = _rollouts(request, ctx_tokens, fraction)
    return Sharing(
        starts_first="inference",
        why_first=_why_first(request.serve),
        fits=requested.is_open,
        window=window,
        fraction=fraction,
        ctx_tokens=ctx_tokens,
        longest_ctx_tokens=longest,
        rollouts=rollouts,
        group_size=group_size,
        sequences=sequences,
    )


def window_of(request: SharingRequest, ctx_tokens: int) -> Window:
    """The window at one length. Lower end: weights, profile run, graphs, and the cache of one request. Upper end: the
    GPU minus the trainer's upper bound, both CUDA contexts, and graphs outside the fraction."""
    setup = request.serve._replace(ctx_tokens=ctx_tokens)
    below = smallest_fraction(setup, request.hardware, ctx_tokens, 1)
    context_bytes = table_interval_bytes("context", "gib").high
    beside = request.trainer(ctx_tokens).needed_bytes + beyond_budget_bytes(setup) + context_bytes
    return Window(below, 1 - beside / request.hardware.usable_bytes)


def fraction_in(window: Window) -> float:
    """The largest round fraction in an open window; for a closed window the server's need, at most 1."""
    if not window.is_open:
        return min(1.0, round(math.ceil(window.smallest / _FINE_STEP - 1e-9) * _FINE_STEP, 2))
    for step in (_STEP, _FINE_STEP):
        rounded = round(math.floor(window.largest / step + 1e-9) * step, 2)
        if rounded >= window.smallest:
            return rounded
    return window.largest


def longest_ctx_tokens(request: SharingRequest, at_most: int) -> int:
    """The longest length, in steps of 256, at which the window is open; 0 if there is none."""
    most_steps = min(at_most, _LONGEST) // _LENGTH_STEP
    return _LENGTH_STEP * find_largest(0, most_steps, lambda steps: window_of(request, steps * _LENGTH_STEP).is_open)


def _why_first(setup: ServeSetup) -> str:
    """Why the server starts before the trainer, which depends on its version."""
    why = "subtracts the memory that a trainer already holds from its own cache, which becomes negative"
    if not setup.engine.counts_others:
        why = (
            "refuses to start if less than its fraction is free, and stops if another process frees memory while it "
            "measures; the trainer grows into the rest"
        )
    return f"vLLM {setup.version} {why}"


def _rollouts(request: SharingRequest, ctx_tokens: int, fraction: float) -> tuple[int, int, int]:
    """(rollouts of a batch, of an example, at once). The batch is the largest power of two for which two full-length
    batches fit. The config's numbers stay if they fit."""
    powers = (2**power for power in range(1, _MOST_ROLLOUTS.bit_length()))
    suitable = [rollouts for rollouts in powers if _rollouts_held(request, ctx_tokens, fraction, rollouts) >= rollouts]
    batch = max(suitable, default=_LEAST_GROUP)
    if request.rollouts and (
        request.rollouts <= batch or _rollouts_held(request, ctx_tokens, fraction, request.rollouts) >= request.rollouts
    ):
        batch = request.rollouts
    group = min(_MOST_GROUP, max(_LEAST_GROUP, batch // _EXAMPLES))
    if request.group_size and (batch == request.rollouts or request.group_size < group):
        group = request.group_size
    group = min(group, batch)
    batch -= batch % group
    at_once = int(_BATCHES * min(batch, _rollouts_held(request, ctx_tokens, fraction, batch)))
    return batch, group, max(1, min(request.serve.sequences, at_once))


def _rollouts_held(request: SharingRequest, ctx_tokens: int, fraction: float, rollouts: int) -> float:
    """Full-length rollouts of one batch that the cache holds beside another batch, with the upper bound of the profile
    run."""
    sequences = min(request.serve.sequences, _BATCHES * rollouts)
    setup = request.serve._replace(gpu_memory_fraction=fraction, ctx_tokens=ctx_tokens, sequences=sequences)
    room = setup.gpu_memory_fraction * request.hardware.usable_bytes - budgeted_bytes(setup).high
    return concurrency_of(setup, room) / _BATCHES
