"""Lays a run over another number of GPUs so that it still does the same work. Pure; judges neither memory nor time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

from prime_train.estimate.advice import with_gpus
from prime_train.estimate.changes import changed
from prime_train.estimate.estimate_memory import gpus_of
from prime_train.estimate.values import Hardware
from prime_train.spec import RunSpec

_PARTS = ("parallel", "batch", "deployment", "trainer", "finetune", "recipe")


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
    if run.config_format == "run.toml":
        return _native(run, hardware.gpus)
    written = gpus_of(run, hardware)
    if written.shared:
        if written.all == hardware.gpus:
            return LaidOut(run, 1.0)
        return NotSo(f"trainer and server share {written.all} GPU, as the config lays them out")
    train = hardware.gpus - written.serve
    if not written.train:
        return LaidOut(run, 1.0)
    return _prime_rl(run, train) if train > 0 else NotSo(f"its server alone takes {written.serve} GPUs")


def _prime_rl(run: RunSpec, gpus: int) -> LaidOut | NotSo:
    deployment, trainer, sft = run.deployment, run.trainer, run.finetune
    node = deployment.gpus_per_node if deployment is not None and deployment.kind == "multi_node" else None
    if node and gpus % node:
        return NotSo(f"its nodes have {node} GPUs each, and {gpus} would train")
    width = ((trainer and trainer.context_parallel) or 1) * ((trainer and trainer.tensor_parallel) or 1)
    if gpus % width:
        return NotSo(f"{gpus} GPUs do not divide by the {width} that share a sequence")
    laid, ranks = with_gpus(run, gpus), gpus // width
    if sft is None or not sft.batch_sequences:
        return LaidOut(laid, 1.0)
    if sft.batch_sequences % ranks:
        return NotSo(f"its batch of {sft.batch_sequences} does not divide by {ranks}")
    micro = _largest_below(sft.batch_sequences // ranks, sft.micro_batch_sequences or 1)
    return LaidOut(changed(laid, (("finetune.micro_batch_sequences", micro),)), 1.0)


def _native(run: RunSpec, gpus: int) -> LaidOut | NotSo:
    batch = run.batch.global_batch or (run.batch.global_batch_tokens or 0) // run.data.ctx_tokens
    other = with_gpus(run, gpus)
    if not batch:
        return LaidOut(other, run.parallel.processes / gpus)
    if batch % gpus:
        return NotSo(f"its global batch of {batch} does not divide by {gpus}")
    micro = _largest_below(batch // gpus, run.batch.micro_batch)
    return LaidOut(changed(other, (("batch.micro_batch", micro),)), 1.0)


def _largest_below(divided: int, at_most: int) -> int:
    """The largest divisor of a number that is no larger than `at_most`."""
    size = min(divided, at_most)
    while divided % size:
        size -= 1
    return size


def steps_of(steps: int, laid: LaidOut) -> int:
    """Steps of the run as laid out that do the work of `steps` as written."""
    return math.ceil(steps * laid.steps_factor)


def settings(run: RunSpec, laid: LaidOut) -> tuple[tuple[str, Any], ...]:
    """(RunSpec field, value) to set for the run as written to be the one that is laid out; None: to be left out."""
    found = dict(_differences(run, laid.run))
    if {"deployment.train_gpu_ids", "deployment.train_nodes"} & found.keys():  # they say it in the file's own way
        found.pop("deployment.train_gpus", None)
    if laid.steps_factor != 1:
        found["run.max_steps"] = steps_of(run.run.max_steps, laid)
    return tuple(found.items())


def _differences(run: RunSpec, other: RunSpec) -> Iterator[tuple[str, Any]]:
    for part in _PARTS:
        before, after = getattr(run, part), getattr(other, part)
        for name in type(after).__annotations__ if after is not None else ():
            was, value = getattr(before, name, None), getattr(after, name)
            if was != value and not (was is None and value == 1 and name in ("dp_replicate", "micro_batch_sequences")):
                yield f"{part}.{name}", value
