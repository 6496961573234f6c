"""Lists the changes that make a run smaller, the cheapest first. Tries nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from enum import IntEnum
from typing import Any, NamedTuple

from prime_train.spec import Model, RunSpec, prime_rl_parts
from prime_train.spec.answers import global_batch, part_of, policy_of, prime_rl_of, replace_parts

Value = bool | int | float | str | tuple[str, ...] | tuple[int, ...]
_TOKEN_CHUNK = 1024
_LORA_RANK = 16
_LEAST_SEQUENCES = 8
_LEAST_TOKENS = 256
_MORE_MICRO_BATCHES = "more micro-batches for the same step"
_MOST_FRACTION = 0.95  # above it the CUDA context has no room: rule MEM001
TABLES = frozenset({"trainer.activation_checkpointing", "trainer.activation_offloading"})  # on if the table exists
_PARTS = {
    "trainer": prime_rl_parts.Trainer,
    "finetune": prime_rl_parts.Finetune,
    "lora": prime_rl_parts.Lora,
    "inference": prime_rl_parts.Inference,
    "deployment": prime_rl_parts.Deployment,
    "rollout": prime_rl_parts.RolloutPart,
    "recipe": prime_rl_parts.Recipe,
}


Assignments = tuple[tuple[str, Value], ...]


class Kind(IntEnum):
    """What a change leaves of the training."""

    SAME = 0  # the same numbers, up to the order of sums
    ROUNDED = 1  # the same training in coarser numbers
    OTHER = 2  # shorter sequences, or other weights


class CandidateChange(NamedTuple):
    """One change. `assignments` are RunSpec fields and their values; `costs` is the disadvantage of the change.

    With `least`, the first value is an upper bound: the largest value that fits, from `least` up, is used. It must
    divide `divides`, if set, because a step consists of whole micro-batches. Changes of one `group` replace each other.
    """

    assignments: Assignments
    costs: str
    least: int | None = None
    divides: int | None = None
    kind: Kind = Kind.SAME
    group: str = ""


def value_of(run: RunSpec, field: str) -> Any:
    """The value of a field such as "trainer.ctx_tokens"; None if the run has no such part."""
    part, _, name = field.partition(".")
    owner = part_of(run, part)
    return None if owner is None else getattr(owner, name)


def apply_changes(run: RunSpec, assignments: Assignments) -> RunSpec:
    """The run with these fields set. A missing part is created."""
    for field, value in assignments:
        part, _, name = field.partition(".")
        owner = part_of(run, part)
        if owner is None:
            owner = _PARTS[part]()
        if dataclasses.is_dataclass(owner) and not isinstance(owner, type):
            other: Any = dataclasses.replace(owner, **{name: value})
        else:
            other = owner._replace(**{name: value})
        run = replace_parts(run, **{part: other})
    return run


def has_adapter(run: RunSpec) -> bool:
    """Whether the run trains an adapter beside frozen weights."""
    recipe = run.recipe
    if recipe is not None:
        return recipe.adapter not in (None, "none") or bool(recipe.adapter_rank or recipe.adapter_parameters)
    return prime_rl_of(run).lora is not None or run.model.lora is not None


def training_changes(run: RunSpec) -> Iterator[CandidateChange]:
    """Changes to the training of a run, the cheapest first, without those that the run already has."""
    if run.recipe is not None:
        return _of_recipe(run.recipe, not has_adapter(run))
    return _of_run_toml(run) if run.prime_rl is None else _of_prime_rl(run)


def _set(field: str, value: Value, costs: str, least: int | None = None, divides: int | None = None) -> CandidateChange:
    return CandidateChange(((field, value),), costs, least, divides)


def serving_changes(run: RunSpec, sequences: int, ctx_tokens: int) -> Iterator[CandidateChange]:
    """Changes to the server of a run. `sequences` and `ctx_tokens` are the values it has now."""
    inference = run.inference or prime_rl_parts.Inference()
    if sequences > _LEAST_SEQUENCES:
        yield _set("inference.max_sequences", sequences, "fewer requests at once", least=_LEAST_SEQUENCES)
    if (inference.gpu_memory_fraction or 0.9) < _MOST_FRACTION:
        yield _set("inference.gpu_memory_fraction", _MOST_FRACTION, "nothing else may run on that GPU")
    if not inference.enforce_eager:
        yield _set("inference.enforce_eager", True, "slower decoding: no CUDA graphs")
    if ctx_tokens > _LEAST_TOKENS:
        yield _set("inference.ctx_tokens", ctx_tokens, "shorter prompts and answers", least=_LEAST_TOKENS)
    tensor = inference.tensor_parallel or 1
    if tensor < 8:
        yield _set("inference.tensor_parallel", 2 * tensor, f"{2 * tensor} GPUs for one server")
    if not inference.quantization:
        yield _set("inference.quantization", "fp8", "samples from rounded weights")


def _of_prime_rl(run: RunSpec) -> Iterator[CandidateChange]:
    parts = prime_rl_of(run)
    trainer = parts.trainer or prime_rl_parts.Trainer()
    if not trainer.activation_checkpointing and not trainer.activation_offloading:
        yield _set("trainer.activation_checkpointing", True, "about a third more compute")._replace(group="activations")
    if (trainer.head_chunk_tokens or 2**30) > _TOKEN_CHUNK:
        yield _set("trainer.head_chunk_tokens", _TOKEN_CHUNK, "almost nothing: the head is computed in chunks")
    micro_batch = (parts.finetune.micro_batch_sequences if parts.finetune else None) or 1
    if micro_batch > 1:
        batch = parts.finetune.batch_sequences if parts.finetune else None
        yield _set("finetune.micro_batch_sequences", micro_batch - 1, _MORE_MICRO_BATCHES, least=1, divides=batch)
    if not trainer.optim_cpu_offload and not trainer.fsdp_cpu_offload:
        moved = _set("trainer.optim_cpu_offload", True, "time to move the states over PCIe each step")
        yield moved._replace(group="offload")
    if not trainer.activation_offloading:
        offload = (("trainer.activation_checkpointing", True), ("trainer.activation_offloading", True))
        yield CandidateChange(offload, "PCIe traffic in every block, and host memory", group="activations")
    if (trainer.dp_replicate or 1) > 1:
        yield _set("trainer.dp_replicate", 1, "more traffic: weights gathered over all GPUs")
    if not trainer.fsdp_cpu_offload and not trainer.optim_cpu_offload:
        yield _set("trainer.fsdp_cpu_offload", True, "weights over PCIe in every micro-batch")._replace(group="offload")
    if trainer.optimization_dtype in (None, "float32"):
        of_what = "frozen base, adapters" if parts.lora else "weights"
        cost = f"{of_what} and moments in 16 bits: small updates are lost"
        yield _set("trainer.optimization_dtype", "bfloat16", cost)._replace(kind=Kind.ROUNDED)
    part = "finetune" if parts.finetune is not None else "trainer"
    ctx_tokens = value_of(run, f"{part}.ctx_tokens")
    if ctx_tokens and ctx_tokens > _LEAST_TOKENS:
        shorter = _set(f"{part}.ctx_tokens", ctx_tokens, "shorter sequences", least=_LEAST_TOKENS)
        yield shorter._replace(kind=Kind.OTHER)
    if parts.lora is None:
        yield _set("lora.rank", _LORA_RANK, "an adapter is trained instead of all weights")._replace(kind=Kind.OTHER)


def _of_run_toml(run: RunSpec) -> Iterator[CandidateChange]:
    parallel, micro_batch = run.parallel, run.batch.micro_batch
    if run.precision.compute == "fp32":
        yield _set("precision.compute", "bf16", "activations in 16 bits")._replace(kind=Kind.ROUNDED)
    if micro_batch > 1:
        kept = () if run.batch.global_batch_tokens is not None else (("batch.global_batch", global_batch(run)),)
        fewer: tuple[tuple[str, Value], ...] = (("batch.micro_batch", micro_batch - 1), *kept)
        of_each = global_batch(run) // parallel.processes
        yield CandidateChange(fewer, _MORE_MICRO_BATCHES, least=1, divides=of_each)
    if parallel.dp_shard < parallel.processes:
        shards = (("parallel.dp_replicate", 1), ("parallel.dp_shard", parallel.processes))
        yield CandidateChange(shards, "more traffic: weights gathered over all GPUs")
    yield from _recompute(run.model)
    policy, least = policy_of(run), _LEAST_TOKENS
    if policy is not None and policy.kl_coef:
        yield _set("rl.kl_coef", 0.0, "no divergence from the first model in the loss")._replace(kind=Kind.OTHER)
    if policy is not None:  # a sequence has a prompt beside the longest answer: rule LEN010
        least *= 1 + policy.answer_tokens // _LEAST_TOKENS
    if run.data.ctx_tokens > least:
        whole = run.data.ctx_tokens if run.batch.global_batch_tokens is not None else None
        shorter = _set("data.ctx_tokens", run.data.ctx_tokens, "shorter sequences", least, whole)
        yield shorter._replace(kind=Kind.OTHER)


def _recompute(model: Model) -> Iterator[CandidateChange]:
    again = {"selective": "part of each block is computed again", "full": "about a third more compute"}
    for amount in ("full",) if model.recompute == "selective" else again if model.recompute == "none" else ():
        every_block = (("model.recompute", amount), ("model.recompute_every", 1))
        yield CandidateChange(every_block, again[amount], group="activations")
    if model.recompute == "full" and model.recompute_every > 1:
        yield _set("model.recompute_every", 1, "more blocks are computed again")


def _of_recipe(recipe: prime_rl_parts.Recipe, full: bool) -> Iterator[CandidateChange]:
    if recipe.activation_checkpointing in (None, "none", "selective"):
        yield _set("recipe.activation_checkpointing", "full", "about a third more compute")
    if recipe.head in (None, "full"):
        yield _set("recipe.head", "token-chunked", "almost nothing: the head is computed in chunks")
    if (recipe.micro_batch or 1) > 1:
        yield _set("recipe.micro_batch", (recipe.micro_batch or 1) - 1, _MORE_MICRO_BATCHES, least=1)
    if not recipe.optimizer_offload:
        yield _set("recipe.optimizer_offload", True, "time to move the states over PCIe each step")
    if not recipe.activation_offloading:
        yield _set("recipe.activation_offloading", True, "PCIe traffic in every block, and host memory")
    if (recipe.gpus or 1) > 1 and recipe.sharding in (None, "none", "ddp", "zero1", "zero2"):
        yield _set("recipe.sharding", "fsdp", "more traffic: weights gathered over all GPUs")
    if full and (recipe.optimizer or "adamw") == "adamw":
        eight = _set("recipe.optimizer", "adamw-8bit", "moments in 8 bits; needs bitsandbytes or torchao")
        yield eight._replace(kind=Kind.ROUNDED)
    if full and recipe.weight_dtype == "fp32":
        pure = _set("recipe.weight_dtype", "bf16", "weights and moments in 16 bits: small updates are lost")
        yield pure._replace(kind=Kind.ROUNDED)
    if recipe.ctx_tokens and recipe.ctx_tokens > _LEAST_TOKENS:
        shorter = _set("recipe.ctx_tokens", recipe.ctx_tokens, "shorter sequences", least=_LEAST_TOKENS)
        yield shorter._replace(kind=Kind.OTHER)
    if full:
        lora = (("recipe.adapter", "lora"), ("recipe.adapter_rank", _LORA_RANK), ("recipe.adapter_targets", ("all",)))
        yield CandidateChange(lora, "an adapter is trained instead of all weights", kind=Kind.OTHER)
