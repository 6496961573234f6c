"""Estimates the memory of each role of a run, whether it fits, and how two roles share one GPU. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from prime_train.estimate.calibrate import Calibration, calibrate_memory
from prime_train.estimate.memory.host import host_memory
from prime_train.estimate.memory.setup_from_run import setup_of
from prime_train.estimate.memory.train_setup import TrainSetup
from prime_train.estimate.memory.training import training_memory
from prime_train.estimate.model.shape import ModelShape
from prime_train.estimate.serving.server_cache import concurrency_of
from prime_train.estimate.serving.server_memory import (
    ServeMemory,
    beyond_budget_bytes,
    budgeted_bytes,
    inference_memory,
    smallest_fraction,
)
from prime_train.estimate.serving.server_setup import ServeSetup, serve_setup_of, table_interval_bytes
from prime_train.estimate.values import Hardware, Interval, RoleMemory, find_largest
from prime_train.estimate.verdict import CERTAIN, IMPOSSIBLE, Chance, MemoryVerdict, doubt, judge_role, worst_of
from prime_train.spec import RunSpec
from prime_train.spec.answers import rollouts_of, server_gpus, shares_gpus, train_gpus, traits_of
from prime_train.spec.prime_rl_parts import RolloutPart


class GpusPerRole(NamedTuple):
    """The GPUs of a run per role. `shared`: trainer and server run on the same GPUs."""

    train: int
    serve: int
    shared: bool = False

    @property
    def all(self) -> int:
        return max(self.train, self.serve) if self.shared else self.train + self.serve


class RoleEstimate(NamedTuple):
    """Memory of one role on each of its GPUs.

    `headroom_bytes` is what the upper bound leaves free, negative if it does not fit; `served` is set for inference
    only.
    """

    memory: RoleMemory
    chance: Chance
    headroom_bytes: float
    served: ServeMemory | None = None
    host: Interval | None = None  # bytes of one machine's memory for what the GPUs do not keep

    @property
    def fits(self) -> bool:
        return self.chance.verdict is MemoryVerdict.FITS


class RunMemory(NamedTuple):
    """All roles of a run.

    `enough_gpus`: the hardware has as many GPUs as the run needs. `sharing`: set if roles share a GPU.
    """

    gpus: GpusPerRole
    roles: tuple[RoleEstimate, ...]
    enough_gpus: bool
    sharing: Sharing | None = None

    @property
    def chance(self) -> Chance:
        return worst_of(role.chance for role in self.roles) if self.enough_gpus else IMPOSSIBLE

    @property
    def fits(self) -> bool:
        return self.chance.verdict is MemoryVerdict.FITS


def gpus_of(run: RunSpec, hardware: Hardware) -> GpusPerRole:
    """The GPUs that train and serve by the config; without a number in the config, training takes all other GPUs.

    The roles of a run.toml share GPUs where there are too few for both, as they do when it is launched.
    """
    train, serve = train_gpus(run), server_gpus(run)
    if train is None:
        train = max(1, hardware.gpus - serve)
    has_too_few = train > 0 < serve and hardware.gpus < train + serve
    return GpusPerRole(train, serve, shares_gpus(run) or (has_too_few and traits_of(run).shares_scarce_gpus))


def memory_of(
    run: RunSpec, hardware: Hardware, shape: ModelShape, calibration: Calibration | None = None
) -> tuple[RunMemory, TrainSetup | None]:
    """The memory of every role, and the training's setup, None without a training."""
    gpus = gpus_of(run, hardware)
    setup = setup_of(run, hardware, shape) if gpus.train else None
    server = serve_setup_of(run, hardware, shape) if gpus.serve else None
    roles: list[RoleEstimate] = []
    if setup is not None:
        trained = calibrate_memory(training_memory(setup, hardware), calibration)
        headroom = hardware.usable_bytes - trained.need.high
        chance, host = judge_role(trained, hardware.usable_bytes), host_memory(setup, hardware)
        roles.append(RoleEstimate(trained, chance, headroom, host=host))
    if server is not None:
        served = inference_memory(server, hardware)
        headroom = hardware.usable_bytes - served.memory.needed_bytes
        on_all = served.memory._replace(gpus=gpus.serve)  # every replica needs the same on its GPUs
        chance = judge_role(on_all, hardware.usable_bytes) if served.starts else IMPOSSIBLE
        roles.append(RoleEstimate(on_all, chance, headroom, served))
    memory = RunMemory(gpus, tuple(roles), gpus.all <= hardware.gpus)
    if gpus.shared and setup is not None and server is not None:
        memory = _share(run, hardware, memory, setup, server)
    return memory, setup


def _share(run: RunSpec, hardware: Hardware, memory: RunMemory, setup: TrainSetup, server: ServeSetup) -> RunMemory:
    """The memory of two roles on one GPU. Both report the same headroom; the fraction must lie in the window."""
    rollout = rollouts_of(run) or RolloutPart()

    def trainer(ctx_tokens: int) -> RoleMemory:
        tokens = max(1, setup.tokens * ctx_tokens // setup.ctx_tokens)
        return training_memory(setup._replace(ctx_tokens=ctx_tokens, tokens=tokens), hardware)

    if run.inference is None or not run.inference.ctx_tokens:
        server = server._replace(ctx_tokens=setup.ctx_tokens)
    request = SharingRequest(server, hardware, trainer, rollout.batch_rollouts, rollout.group_size)
    window = window_of(request, server.ctx_tokens)
    chance = _chance_beside(request, window, training_memory(setup, hardware))
    left = hardware.usable_bytes - sum(role.memory.need.high for role in memory.roles)
    roles = tuple(
        role._replace(chance=min(chance, role.chance, key=lambda each: each.probability), headroom_bytes=left)
        for role in memory.roles
    )
    sharing = share(request)
    if rollouts_of(run) is None:
        sharing = sharing._replace(rollouts=0, group_size=0)
    return memory._replace(roles=roles, sharing=sharing)


def _chance_beside(request: SharingRequest, window: FractionWindow, trainer: RoleMemory) -> Chance:
    """Whether the trainer fits beside a server with the fraction of the config."""
    fraction, usable = request.serve.gpu_memory_fraction, request.hardware.usable_bytes
    if not window.smallest <= fraction:
        return IMPOSSIBLE
    if window.is_open and fraction <= window.largest:
        return doubt(CERTAIN, trainer)
    context = table_interval_bytes("context", "gib").high
    room = (1 - fraction) * usable - beyond_budget_bytes(request.serve) - context
    chance = judge_role(trainer, room)
    return chance if chance.verdict is not MemoryVerdict.FITS else Chance(MemoryVerdict.LIKELY, chance.probability)


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


class FractionWindow(NamedTuple):
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
    (max_num_seqs); `rollouts` and `group_size` are 0 for a run without rollouts. `window` is for the request if it
    fits, else for a few sequences of that length.
    """

    starts_first: str
    why_first: str
    fits: bool
    window: FractionWindow
    fraction: float
    ctx_tokens: int
    longest_ctx_tokens: int
    rollouts: int
    group_size: int
    sequences: int

    @property
    def assignments(self) -> dict[str, float | int]:
        """RunSpec field -> the value to set."""
        served: dict[str, float | int] = {
            "inference.gpu_memory_fraction": self.fraction,
            "inference.ctx_tokens": self.ctx_tokens,
            "inference.max_sequences": self.sequences,
        }
        if not self.rollouts:
            return served
        return served | {"rollout.batch_rollouts": self.rollouts, "rollout.group_size": self.group_size}


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


def window_of(request: SharingRequest, ctx_tokens: int) -> FractionWindow:
    """The window at one length.

    Lower end: weights, profile run, graphs, and the cache of one request. Upper end: the GPU minus the trainer's upper
    bound, both CUDA contexts, and graphs outside the fraction.
    """
    setup = request.serve._replace(ctx_tokens=ctx_tokens)
    below = smallest_fraction(setup, request.hardware, ctx_tokens, 1)
    context_bytes = table_interval_bytes("context", "gib").high
    beside = request.trainer(ctx_tokens).need.high + beyond_budget_bytes(setup) + context_bytes
    return FractionWindow(below, 1 - beside / request.hardware.usable_bytes)


def fraction_in(window: FractionWindow) -> float:
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
    """(rollouts of a batch, of an example, at once).

    The batch is the largest power of two for which two full-length batches fit. The config's numbers stay if they fit.
    """
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
    """Full-length rollouts of one batch that the cache holds beside another batch.

    The profile run counts with its upper bound.
    """
    sequences = min(request.serve.sequences, _BATCHES * rollouts)
    setup = request.serve._replace(gpu_memory_fraction=fraction, ctx_tokens=ctx_tokens, sequences=sequences)
    room = setup.gpu_memory_fraction * request.hardware.usable_bytes - budgeted_bytes(setup).high
    return concurrency_of(setup, room) / _BATCHES
