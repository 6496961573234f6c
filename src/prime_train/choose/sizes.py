"""Finds the fastest layout that leaves a tenth of each GPU free, and gives the reason for each size. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from prime_train.choose.draft import Choice
from prime_train.core.units import GIB
from prime_train.estimate.candidate_changes import Assignments, apply_changes
from prime_train.estimate.memory.roles import RunMemory, memory_of
from prime_train.estimate.model.shape import ModelShape
from prime_train.estimate.time.run_time import time_of
from prime_train.estimate.values import Hardware, find_largest
from prime_train.spec import RunSpec
from prime_train.spec.answers import global_batch, prime_rl_of, rollouts_of, train_gpus

HEADROOM = 0.1  # of each GPU, below the upper bound of the estimate
_MOST_SEQUENCES = 64  # of a micro-batch; more gain nothing in the measured rows
_ALONE_FRACTION = 0.9  # of a GPU that only serves: vLLM's default
_FRACTION = "inference.gpu_memory_fraction"
_MICRO_BATCHES = ("batch.micro_batch", "finetune.micro_batch_sequences")  # of a run.toml, and of prime-rl's `sft`
_NAMES = {
    "parallel.processes": "GPUs that train",
    "parallel.dp_shard": "GPUs that share one copy of the model",
    "inference.tensor_parallel": "GPUs that serve",
    "model.recompute": "what the backward computes again, to save memory",
    "trainer.activation_checkpointing": "every block is computed again in the backward, to save memory",
    "deployment.kind": "on several machines, by Slurm",
    "deployment.gpus_per_node": "GPUs of a machine",
    "deployment.train_nodes": "machines that train",
    "deployment.infer_nodes": "machines that serve",
    "deployment.train_gpus": "GPUs that train",
    "deployment.infer_gpus": "GPUs that serve",
    "deployment.train_gpu_ids": "the GPU is shared: the server starts first",
}


class Tried(NamedTuple):
    """One layout with its largest micro-batch. `step_s` is None if it does not fit.

    `high_bytes` is the upper bound of what one GPU needs, for both roles where they share it.
    """

    layout: Assignments
    sizes: Assignments
    step_s: float | None
    high_bytes: float

    @property
    def all(self) -> dict[str, Any]:
        return dict((*self.layout, *self.sizes))


class TriedLayouts(NamedTuple):
    """The fastest layout that fits, of all that were tried. `best` is None if none fits."""

    best: Tried | None
    tried: tuple[Tried, ...]
    usable_bytes: float

    @property
    def closest(self) -> Tried:
        """The layout that needs least."""
        return min(self.tried, key=lambda one: one.high_bytes)


def choose_sizes(
    run: RunSpec, layouts: Iterable[Assignments], hardware: Hardware, shape: ModelShape, headroom: float = HEADROOM
) -> TriedLayouts:
    """Tries every layout with the largest micro-batch that leaves `headroom` of each GPU free; the fastest is best."""
    small = hardware._replace(usable_bytes=(1 - headroom) * hardware.usable_bytes)
    tried = tuple(_try(run, layout, small, hardware, shape) for layout in layouts)
    fitting = [one for one in tried if one.step_s is not None]
    best = min(fitting, key=lambda one: one.step_s or 0.0, default=None)
    return TriedLayouts(best, tried, hardware.usable_bytes)


def fits_at_all(run: RunSpec, layouts: Iterable[Assignments], hardware: Hardware, shape: ModelShape) -> bool:
    """Whether any layout fits with the smallest sizes. Takes no time of a step, so it is fast."""
    laid = (apply_changes(run, layout) for layout in layouts)
    return any(_fill_engine(one, (), hardware, shape)[1].fits for one in laid)


def _try(run: RunSpec, layout: Assignments, small: Hardware, hardware: Hardware, shape: ModelShape) -> Tried:
    """The layout with its sizes, judged on `small`: the same GPUs with less memory."""
    laid = apply_changes(run, layout)
    batches = _micro_batches(laid)

    def try_batch(sequences: int) -> tuple[Assignments, RunMemory]:
        sizes: Assignments = ((_micro_batch_field(laid), sequences),) if batches else ()
        return _fill_engine(apply_changes(laid, sizes), sizes, small, shape)

    # `find_largest` needs a fit that is monotone: with more sequences no memory is freed.
    count = find_largest(0, len(batches) - 1, lambda at: try_batch(batches[at])[1].fits) if batches else 0
    sizes, memory = try_batch(batches[count] if batches else 1)
    high_bytes = small.usable_bytes - min(role.headroom_bytes for role in memory.roles)
    if not memory.fits:
        return Tried(layout, sizes, None, high_bytes)
    fitted = apply_changes(laid, sizes)
    return Tried(layout, sizes, _step_s(fitted, hardware, shape), high_bytes)


def _micro_batch_field(run: RunSpec) -> str:
    return _MICRO_BATCHES[run.prime_rl is not None]


def _micro_batches(run: RunSpec) -> Sequence[int]:
    """The micro-batches that divide the sequences of a process; () for a format without a micro-batch."""
    finetune = prime_rl_of(run).finetune
    if run.prime_rl is not None and finetune is None:
        return ()
    whole = global_batch(run) if finetune is None else finetune.batch_sequences or 1
    each = whole // (train_gpus(run) or 1)
    return [size for size in range(1, min(each, _MOST_SEQUENCES) + 1) if each % size == 0]


def _fill_engine(
    run: RunSpec, sizes: Assignments, hardware: Hardware, shape: ModelShape
) -> tuple[Assignments, RunMemory]:
    """The sizes with the fraction of the engine: what the trainer leaves, or nearly all of a GPU that only serves."""
    memory, _ = memory_of(run, hardware, shape)
    if run.inference is None:
        return sizes, memory
    sharing = memory.sharing
    if sharing is not None and not (sharing.fits and sharing.ctx_tokens == run.inference.ctx_tokens):
        return sizes, memory
    fraction = _ALONE_FRACTION if sharing is None else round(sharing.fraction, 2)
    filled: Assignments = (*sizes, (_FRACTION, fraction))
    return filled, memory_of(apply_changes(run, ((_FRACTION, fraction),)), hardware, shape)[0]


def _step_s(run: RunSpec, hardware: Hardware, shape: ModelShape) -> float | None:
    """Seconds of a step; None if the cache of the engine cannot hold a rollout."""
    memory, setup = memory_of(run, hardware, shape)
    if setup is None or not memory.fits:
        return None
    time = time_of(run, setup, hardware, memory)
    return None if rollouts_of(run) is not None and time.rollouts is None else time.step_s.typical


def explain(sizes: TriedLayouts, run: RunSpec, hardware: Hardware, shape: ModelShape) -> dict[str, Choice]:
    """RunSpec field -> the chosen value, why, and what would change it. `sizes.best` must be set."""
    assert sizes.best is not None
    chosen = {field: Choice(value, _compare(sizes, sizes.best, field)) for field, value in sizes.best.layout}
    room = f"{hardware.usable_bytes / GIB:.1f} GiB"
    for field, value in sizes.best.sizes:
        if field in _MICRO_BATCHES:
            chosen[field] = Choice(value, _explain_batch(run, sizes.best, hardware, shape))
        else:
            shared = "what the trainer leaves" if value != _ALONE_FRACTION else "a GPU that only serves"
            chosen[field] = Choice(value, f"{shared}, of {room}; more lets more rollouts run at once")
    return chosen


def _explain_batch(run: RunSpec, best: Tried, hardware: Hardware, shape: ModelShape) -> str:
    """The need of the micro-batch, and that of the next larger one."""
    laid = apply_changes(run, best.layout)
    usable = f"{hardware.usable_bytes / GIB:.1f} GiB of a GPU"
    needed = f"up to {best.high_bytes / GIB:.1f} of {usable}"
    size, batches = best.all[_micro_batch_field(run)], _micro_batches(laid)
    if size == batches[-1]:
        return f"{needed}; the whole step of a GPU, or as many as gain speed"
    larger = batches[batches.index(size) + 1]
    memory, _ = memory_of(apply_changes(laid, (*best.sizes, (_micro_batch_field(run), larger))), hardware, shape)
    high_bytes = hardware.usable_bytes - min(role.headroom_bytes for role in memory.roles)
    return f"{needed}; {larger} would need {high_bytes / GIB:.1f}, and a tenth should stay free"


def _compare(sizes: TriedLayouts, best: Tried, field: str) -> str:
    """What the field is, and what its other values would do."""
    rest = _without(best.layout, field)
    others = []
    for one in sizes.tried:
        value = dict(one.layout).get(field)
        if one is best or _without(one.layout, field) != rest or value is None:
            continue
        if one.step_s is None or best.step_s is None:
            others.append(f"{value} does not fit")
        else:
            slower = one.step_s / best.step_s - 1
            others.append(f"{value} is {slower:.0%} slower" if slower >= 0.005 else f"{value} is as fast")
    return "; ".join([_NAMES.get(field, ""), *others]).strip("; ")


def _without(layout: Assignments, field: str) -> Mapping[str, Any]:
    return {name: value for name, value in layout if name != field}
