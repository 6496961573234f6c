"""Lays a run over another number of GPUs so that it still does the same work. Pure; judges neither memory nor time."""

from __future__ import annotations

import math
from typing import NamedTuple

from prime_train.estimate.advice import with_gpus
from prime_train.estimate.changes import changed
from prime_train.estimate.estimate_memory import gpus_of
from prime_train.estimate.values import Hardware
from prime_train.spec import RunSpec


class LaidOut(NamedTuple):
    """The run over so many GPUs. `steps_factor`: how many steps of it do the work of one step of the run as written.

    It is 1 unless the batch follows the number of GPUs: then more of them take fewer steps for the same tokens.
    """

    run: RunSpec
    steps_factor: float


class NotSo(NamedTuple):
    """The run cannot be laid over so many GPUs, and why."""

    why: str


def laid_out(run: RunSpec, hardware: Hardware) -> LaidOut | NotSo:
    """The run sharded over all of `hardware`: servers keep the GPUs the config gives them, training takes the rest.

    A batch that is set stays; the micro-batch becomes the largest below the config's that divides it.
    """
    if run.recipe is not None:
        return LaidOut(with_gpus(run, hardware.gpus), 1.0)
    if run.is_native:
        return _native(run, hardware.gpus)
    written = gpus_of(run, hardware)
    if written.shared:
        if written.all == hardware.gpus:
            return LaidOut(run, 1.0)
        return NotSo(f"trainer and server share {written.all} GPU, as the config lays them out")
    train = hardware.gpus - written.serve
    if written.train and train < 1:
        return NotSo(f"its server alone takes {written.serve} GPUs")
    return LaidOut(with_gpus(run, train) if written.train else run, 1.0)


def _native(run: RunSpec, gpus: int) -> LaidOut | NotSo:
    batch = run.batch.global_batch or (run.batch.global_batch_tokens or 0) // run.data.ctx_tokens
    other = with_gpus(run, gpus)
    if not batch:
        return LaidOut(other, run.parallel.processes / gpus)
    if batch % gpus:
        return NotSo(f"its global batch of {batch} does not divide by {gpus}")
    each = batch // gpus
    micro = max(size for size in range(1, min(each, run.batch.micro_batch) + 1) if each % size == 0)
    return LaidOut(changed(other, (("batch.micro_batch", micro),)), 1.0)


def steps_of(steps: int, laid: LaidOut) -> int:
    """Steps of the run as laid out that do the work of `steps` as written."""
    return math.ceil(steps * laid.steps_factor)
