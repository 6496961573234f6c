"""Adapts a run to more or fewer GPUs so that it trains on as many tokens. Pure; estimates no memory and no time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

from prime_train.estimate.advice import with_gpus
from prime_train.estimate.candidate_changes import apply_changes
from prime_train.estimate.memory.roles import gpus_of
from prime_train.estimate.memory.setup_from_recipe import with_defaults
from prime_train.estimate.time.run_time import priced_steps
from prime_train.estimate.values import Hardware
from prime_train.spec import ENDLESS_STEPS, RunSpec
from prime_train.spec.answers import global_batch, part_of, policy_of, prime_rl_of, rollouts_of, server_gpus, train_gpus
from prime_train.spec.prime_rl_parts import Recipe

_PARTS = ("parallel", "batch", "deployment", "trainer", "finetune", "recipe")
_MOST_EXCESS = 0.05  # whole steps with a larger batch may add this share: more would not be equal work


class StepBatch(NamedTuple):
    """What one optimizer step trains on, over all GPUs. `ctx_tokens` is None for rollouts: their lengths vary."""

    sequences: int
    ctx_tokens: int | None

    @property
    def tokens(self) -> int | None:
        return None if self.ctx_tokens is None else self.sequences * self.ctx_tokens


class TrainedWork(NamedTuple):
    """What a run trains in all. `batch` is None if the config does not set it; `assumed`: what it leaves open."""

    steps: int
    batch: StepBatch | None
    assumed: str = ""

    @property
    def tokens(self) -> int | None:
        each = self.batch.tokens if self.batch is not None else None
        return None if each is None else self.steps * each


class Relayout(NamedTuple):
    """The adapted run, and what it trains. `work` has as many tokens as the original run."""

    run: RunSpec
    work: TrainedWork


class Impossible(NamedTuple):
    """The run cannot use these GPUs, and why."""

    why: str


def work_of_run(run: RunSpec) -> TrainedWork:
    """What the run trains as it is written."""
    open_gpus = run.recipe is not None and train_gpus(run) is None
    assumed = "counted on one GPU, because the config sets no number of GPUs" if open_gpus else ""
    return TrainedWork(priced_steps(run), _batch_of(run), assumed)


def _batch_of(run: RunSpec) -> StepBatch | None:
    """What one step trains on."""
    if run.recipe is not None:
        return _recipe_batch(run.recipe, train_gpus(run) or 1)
    if run.prime_rl is None and policy_of(run) is None:
        return StepBatch(global_batch(run), run.data.ctx_tokens)
    finetune, rollout = prime_rl_of(run).finetune, rollouts_of(run)
    if finetune is not None and finetune.batch_sequences:
        return StepBatch(finetune.batch_sequences, finetune.ctx_tokens)
    return StepBatch(rollout.batch_rollouts, None) if rollout is not None and rollout.batch_rollouts else None


def relayout(run: RunSpec, hardware: Hardware) -> Relayout | Impossible:
    """The run sharded over all GPUs of `hardware`. Servers keep their GPUs of the config; training takes the rest.

    The step keeps its sequences, and the micro-batch becomes the largest divisor up to the config's micro-batch. Only
    where the config sets a batch per GPU, and more GPUs train than it has sequences, the step grows and the run has
    fewer steps.
    """
    if run.recipe is not None:
        return _recipe(run, run.recipe, hardware.gpus)
    if run.prime_rl is None and not server_gpus(run):
        return _native(run, hardware.gpus)
    written = gpus_of(run, hardware)
    if written.shared:
        if written.all == hardware.gpus:
            return _same_steps(run, run)
        return Impossible(f"trainer and server share {written.all} GPU in the config")
    train = hardware.gpus - written.serve
    if not written.train:
        return _same_steps(run, run)
    if train <= 0:
        return Impossible(f"its server alone needs {written.serve} GPUs")
    return _native(run, train) if run.prime_rl is None else _prime_rl(run, train)


def _same_steps(run: RunSpec, adapted: RunSpec) -> Relayout:
    return Relayout(adapted, work_of_run(run))


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
        return _same_steps(run, adapted)
    if sft.batch_sequences % ranks:
        return Impossible(f"its batch of {sft.batch_sequences} is not divisible by {ranks}")
    micro = _largest_divisor(sft.batch_sequences // ranks, sft.micro_batch_sequences or 1)
    return _same_steps(run, apply_changes(adapted, (("finetune.micro_batch_sequences", micro),)))


def _native(run: RunSpec, gpus: int) -> Relayout | Impossible:
    batch, other = global_batch(run), with_gpus(run, gpus)
    per_gpu = run.batch.global_batch is None and run.batch.global_batch_tokens is None
    if batch % gpus:
        if per_gpu:
            before, after = (StepBatch(global_batch(one), one.data.ctx_tokens) for one in (run, other))
            return _with_fewer_steps(run, other, before, after)
        return Impossible(f"its global batch of {batch} is not divisible by {gpus}")
    micro = _largest_divisor(batch // gpus, run.batch.micro_batch)
    # a batch per GPU would follow the GPUs, and the same steps would train on other tokens
    kept = (("batch.global_batch", batch),) if per_gpu and micro * gpus != batch else ()
    return _same_steps(run, apply_changes(other, (("batch.micro_batch", micro), *kept)))


def _recipe(run: RunSpec, recipe: Recipe, gpus: int) -> Relayout | Impossible:
    width = _recipe_width(recipe)
    if gpus % width:
        return Impossible(f"{gpus} GPUs are not divisible by the {width} that share a sequence")
    other = with_gpus(run, gpus)
    before, after = _recipe_batch(recipe, train_gpus(run) or 1), _recipe_batch(other.recipe or recipe, gpus)
    ranks = _recipe_ranks(with_defaults(other.recipe or recipe), gpus)
    if before.sequences % ranks:
        return _with_fewer_steps(run, other, before, after)
    of_rank = before.sequences // ranks
    micro = _largest_divisor(of_rank, recipe.micro_batch or 1)
    split = (("recipe.micro_batch", micro), ("recipe.micro_batches_per_step", of_rank // micro))
    return _same_steps(run, apply_changes(other, split))


def _recipe_batch(recipe: Recipe, gpus: int) -> StepBatch:
    sequences = (recipe.micro_batch or 1) * (recipe.micro_batches_per_step or 1)
    return StepBatch(sequences * _recipe_ranks(with_defaults(recipe), gpus), recipe.ctx_tokens or 2048)


def _recipe_width(recipe: Recipe) -> int:
    """GPUs that share a sequence."""
    return (recipe.tensor_parallel or 1) * (recipe.pipeline_parallel or 1) * (recipe.context_parallel or 1)


def _recipe_ranks(recipe: Recipe, gpus: int) -> int:
    """GPUs, or groups, that train on different sequences. `recipe` has its program's defaults."""
    if recipe.sharding in ("none", "device_map"):  # the layers take turns
        return 1
    if recipe.shards is not None:
        gpus = recipe.shards * (recipe.replicas or 1)
        return max(1, gpus // (recipe.context_parallel or 1))
    return max(1, gpus // _recipe_width(recipe))


def _with_fewer_steps(run: RunSpec, adapted: RunSpec, before: StepBatch, after: StepBatch) -> Relayout | Impossible:
    """The run with a larger batch and as many fewer steps, if whole steps train on about as many tokens."""
    all_sequences = priced_steps(run) * before.sequences
    fewer = math.ceil(all_sequences / after.sequences)
    if fewer * after.sequences > (1 + _MOST_EXCESS) * all_sequences:
        return Impossible(f"its {all_sequences} sequences make no whole steps of {after.sequences}")
    return Relayout(adapted, TrainedWork(fewer, after))


def _largest_divisor(divided: int, at_most: int) -> int:
    """The largest divisor of `divided` up to `at_most`."""
    size = min(divided, at_most)
    while divided % size:
        size -= 1
    return size


def layout_settings(run: RunSpec, adapted: Relayout) -> tuple[tuple[str, Any], ...]:
    """(RunSpec field, value) pairs that turn the original run into the adapted one; None removes the field."""
    found = dict(_differences(run, adapted.run))
    if {"deployment.train_gpu_ids", "deployment.train_nodes"} & found.keys():  # the file uses these keys instead
        found.pop("deployment.train_gpus", None)
    if run.run.max_steps < ENDLESS_STEPS and adapted.work.steps != run.run.max_steps:
        found["run.max_steps"] = adapted.work.steps
    return tuple(found.items())


_NOT_WRITTEN_IF_ONE = ("dp_replicate", "micro_batch_sequences", "gpus", "micro_batch", "micro_batches_per_step")


def _differences(run: RunSpec, other: RunSpec) -> Iterator[tuple[str, Any]]:
    for part in _PARTS:
        before, after = part_of(run, part), part_of(other, part)
        for name in type(after).__annotations__ if after is not None else ():
            was, value = getattr(before, name, None), getattr(after, name)
            if was != value and not (was is None and value == 1 and name in _NOT_WRITTEN_IF_ONE):
                yield f"{part}.{name}", value
