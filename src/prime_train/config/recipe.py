"""A `[recipe]` file, which tells a training of any other program for an estimate: a text becomes a RunSpec. Pure.

Nothing is launched from it: it has what memory, time and cost depend on, and no more.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, get_type_hints

from prime_train.config.parsed_config import MISSING_KEY, SYNTAX, Fault, Reading
from prime_train.config.schema import Array, Bound, Choice, Field, Flag, Number, Shape, Table, Text
from prime_train.config.validate import walk
from prime_train.spec import ENDLESS_STEPS, Data, Run, RunSpec
from prime_train.spec.prime_rl_parts import Recipe
from prime_train.toml.document import Document

DIALECT = "recipe"
ROOT = "recipe"

_DTYPES = ("fp32", "bf16", "fp16", "float8")
_CHOICES: Mapping[str, tuple[str, ...]] = {
    "sharding": ("none", "ddp", "fsdp", "zero1", "zero2", "zero3", "device_map"),
    "weight_dtype": ("fp32", "bf16", "fp16"),
    "compute_dtype": _DTYPES,
    "optimizer": ("adamw", "adamw-8bit", "sgd"),
    "optimizer_state_dtype": ("fp32", "bf16", "fp16"),
    "head": ("full", "token-chunked", "vocab-chunked"),
    "activation_checkpointing": ("none", "selective", "full"),
    "adapter": ("none", "lora", "adapter", "adapter-v2"),
    "quantization": ("nf4", "nf4-dq", "int4", "int8"),
    "attention": ("flash", "sdpa", "eager"),
}
# What the same thing is called in Hugging Face's Trainer, torchtune, torchtitan and axolotl.
_ELSEWHERE = {
    "model": "recipe.model_name",
    "model_name_or_path": "recipe.model_name",
    "base_model": "recipe.model_name",
    "seq_len": "recipe.ctx_tokens",
    "max_seq_len": "recipe.ctx_tokens",
    "max_seq_length": "recipe.ctx_tokens",
    "sequence_len": "recipe.ctx_tokens",
    "batch_size": "recipe.micro_batch",
    "micro_batch_size": "recipe.micro_batch",
    "per_device_train_batch_size": "recipe.micro_batch",
    "gradient_accumulation_steps": "recipe.micro_batches_per_step",
    "gradient_checkpointing": "recipe.activation_checkpointing",
    "lora_rank": "recipe.adapter_rank",
    "lora_r": "recipe.adapter_rank",
    "lora_target_modules": "recipe.adapter_targets",
    "torch_dtype": "recipe.weight_dtype",
    "dtype": "recipe.weight_dtype",
    "num_gpus": "recipe.gpus",
    "optim": "recipe.optimizer",
    "steps": "run.max_steps",
}


@cache
def schema() -> Table:
    """The legal keys: all of a Recipe's fields, and the name and steps of the run, which cost is reckoned from."""
    positive = Number(True, (Bound(">", 0),))
    run = {
        "name": Field("name", "name", Text(), "Names the run.", "recipe"),
        "max_steps": Field("max_steps", "max_steps", positive, "Optimizer steps to take in all.", ENDLESS_STEPS),
    }
    fields = {
        "run": Field("run", "run", Table(run, _run), "The run.", None),
        "recipe": Field("recipe", "recipe", Table(_recipe_fields(), Recipe), "The training.", None),
    }
    return Table(fields, _run_of)


def _recipe_fields() -> dict[str, Field]:
    hints = get_type_hints(Recipe)
    return {
        name: Field(name, name, _shape(name, hints[name]), "", default)
        for name, default in Recipe._field_defaults.items()
    }


def _shape(name: str, hint: Any) -> Shape:
    """The shape of one field of a Recipe; every number is a count, so none is below 1."""
    kinds: dict[type, Shape] = {str: Text(), bool: Flag(), int: Number(True, (Bound(">", 0),))}
    if name in _CHOICES:
        return Choice(_CHOICES[name])
    for kind, shape in kinds.items():
        if hint == kind | None:
            return shape
    if hint == tuple[str, ...] | None:
        return Array(Text(), 1)
    raise TypeError(f"a recipe cannot hold {name}: {hint!r}")


def _run_of(run: Run | None = None, recipe: Recipe | None = None) -> RunSpec:
    return RunSpec(run=run or _run(), data=Data(sources=()), recipe=recipe or Recipe())


def _run(name: str = "recipe", max_steps: int = ENDLESS_STEPS) -> Run:
    return Run(name=name, max_steps=max_steps)


def read_document(document: Document) -> Reading:
    """The reading of a parsed text. Its `run` is there also beside faults, where defaults stand in."""
    root = schema()
    run, faults = walk(root, document.values, _ELSEWHERE)
    if document.fault is not None:
        correct = document.fault.fix or "correct the line; what stands in it is unread"
        unread = Fault(SYNTAX, (), document.fault.what, correct)
        run, faults = None, [unread, *(fault for fault in faults if fault.code != MISSING_KEY)]
    keys = {f"{table}.{name}": f"{table}.{name}" for table in ("run", "recipe") for name in _below(root, table)}
    return Reading(document, DIALECT, "", ROOT, run, tuple(faults), keys, all_fields=False)


def _below(root: Table, table: str) -> Mapping[str, Field]:
    shape = root.fields[table].shape
    return shape.fields if isinstance(shape, Table) else {}
