"""Adapts a run to another number of GPUs so that it does the same work. Pure; estimates neither memory nor time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

from prime_train.estimate.advice import with_gpus
from prime_train.estimate.candidate_changes import apply_changes
from prime_train.estimate.memory.roles import gpus_of
from prime_train.estimate.values import Hardware
from prime_train.spec import RunSpec
from prime_train.spec.answers import part_of, prime_rl_of, server_gpus

_PARTS = ("parallel", "batch", "deployment", "trainer", "finetune", "recipe")


class Relayout(NamedTuple):
    """The adapted run. `steps_factor`: how many of its steps do the work of one step of the original run.

    The factor is 1 unless the batch grows with the number of GPUs: then more GPUs need fewer steps for the same tokens.
    """

    run: RunSpec
    steps_factor: float


class Impossible(NamedTuple):
    """The run cannot use these GPUs, and why."""

    why: str


def relayout(run: RunSpec, hardware: Hardware) -> Relayout | Impossible:
    """The run sharded over all GPUs of `hardware`. Servers keep their GPUs of the config; training takes the rest.

    A batch set in the config stays; the micro-batch becomes the largest divisor up to the config's micro-batch.
    """
    if run.recipe is not None:
        return Relayout(with_gpus(run, hardware.gpus), 1.0)
    if run.prime_rl is None and not server_gpus(run):
        return _native(run, hardware.gpus)
    written = gpus_of(run, hardware)
    if written.shared:
        if written.all == hardware.gpus:
            return Relayout(run, 1.0)
        return Impossible(f"trainer and server share {written.all} GPU in the config")
    train = hardware.gpus - written.serve
    if not written.train:
        return Relayout(run, 1.0)
    if train <= 0:
        return Impossible(f"its server alone needs {written.serve} GPUs")
    return _native(run, train) if run.prime_rl is None else _prime_rl(run, train)


def _prime_rl(run: RunSpec, gpus: int) -> Relayout | Impossible:
    parts = prime_rl_of(run)
    deployment, trainer, sft = parts.deployment, parts.trainer, parts.finetune
    node = deployment.gpus_per_node if deployment is not None and deployment.kind == "multi_node" else None
    if node and gpus % node:
        return Impossible(f"its nodes have {node} GPUs each, and {gpus} would train")
    width = ((trainer and trainer.context_parallel) or 1) * ((trainer and trainer.tensor_parallel) or 1)
    if gpus % width:
        return Impossible(f"{gpus} GPUs are not divisible by the {width} that share a sequence")
    adapted, ranks = with_gpus(run, gpus), gpus // width
    if sft is None or not sft.batch_sequences:
        return Relayout(adapted, 1.0)
    if sft.batch_sequences % ranks:
        return Impossible(f"its batch of {sft.batch_sequences} is not divisible by {ranks}")
    micro = _largest_divisor(sft.batch_sequences // ranks, sft.micro_batch_sequences or 1)
    return Relayout(apply_changes(adapted, (("finetune.micro_batch_sequences", micro),)), 1.0)


def _native(run: RunSpec, gpus: int) -> Relayout | Impossible:
    batch = run.batch.global_batch or (run.batch.global_batch_tokens or 0) // run.data.ctx_tokens
    other = with_gpus(run, gpus)
    if not batch:
        return Relayout(other, run.parallel.processes / gpus)
    if batch % gpus:
        return Impossible(f"its global batch of {batch} is not divisible by {gpus}")
    micro = _largest_divisor(batch // gpus, run.batch.micro_batch)
    return Relayout(apply_changes(other, (("batch.micro_batch", micro),)), 1.0)


def _largest_divisor(divided: int, at_most: int) -> int:
    """The largest divisor of `divided` up to `at_most`."""
    size = min(divided, at_most)
    while divided % size:
        size -= 1
    return size


def steps_of(steps: int, adapted: Relayout) -> int:
    """Steps of the adapted run that do the work of `steps` steps of the original run."""
    return math.ceil(steps * adapted.steps_factor)


def layout_settings(run: RunSpec, adapted: Relayout) -> tuple[tuple[str, Any], ...]:
    """(RunSpec field, value) pairs that turn the original run into the adapted one; None removes the field."""
    found = dict(_differences(run, adapted.run))
    if {"deployment.train_gpu_ids", "deployment.train_nodes"} & found.keys():  # the file uses these keys instead
        found.pop("deployment.train_gpus", None)
    if adapted.steps_factor != 1:
        found["run.max_steps"] = steps_of(run.run.max_steps, adapted)
    return tuple(found.items())


def _differences(run: RunSpec, other: RunSpec) -> Iterator[tuple[str, Any]]:
    for part in _PARTS:
        before, after = part_of(run, part), part_of(other, part)
        for name in type(after).__annotations__ if after is not None else ():
            was, value = getattr(before, name, None), getattr(after, name)
            if was != value and not (was is None and value == 1 and name in ("dp_replicate", "micro_batch_sequences")):
                yield f"{part}.{name}", value
