"""Reads a `[recipe]` file, which describes a training of another program for an estimate. Pure.

A recipe is never launched. It has only what memory, time and cost depend on.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, partial
from typing import Any, get_type_hints

from prime_train.config.parsed_config import Reading
from prime_train.config.schema import Array, Field, Flag, Number, OneOf, Shape, Table, Text
from prime_train.config.validate import walk_document
from prime_train.spec import ENDLESS_STEPS, Data, Run, RunSpec
from prime_train.spec.annotations import Gt, Lt
from prime_train.spec.prime_rl_parts import Recipe
from prime_train.toml.document import Document

DIALECT = "recipe"
ROOT = "recipe"

# Optimizer -> moments of the size of the weights, as a share of AdamW's two.
OPTIMIZERS: Mapping[str, float] = {
    "adamw": 1.0,
    "adamw-8bit": 1.0,
    "paged-adamw": 1.0,
    "paged-adamw-8bit": 1.0,
    "lion": 0.5,  # one moment; arXiv 2302.06675
    "muon": 0.5,  # one moment of each matrix, AdamW for embedding and head; torch.optim.Muon
    "adafactor": 0.0,  # a row and a column of each matrix; arXiv 1804.04235
    "sgd": 0.0,
}
_DTYPES = ("fp32", "bf16", "fp16", "float8")
_CHOICES: Mapping[str, tuple[str, ...]] = {
    "sharding": ("none", "ddp", "fsdp", "zero1", "zero2", "zero3", "device_map"),
    "weight_dtype": ("fp32", "bf16", "fp16"),
    "base_dtype": ("fp32", "bf16", "fp16"),
    "compute_dtype": _DTYPES,
    "objective": ("sft", "dpo", "grpo"),
    "optimizer": tuple(OPTIMIZERS),
    "optimizer_state_dtype": ("fp32", "bf16", "fp16"),
    "head": ("full", "token-chunked", "vocab-chunked", "fused-loss", "liger", "cce", "in-place"),
    "activation_checkpointing": ("none", "selective", "full"),
    "adapter": ("none", "lora", "dora", "adapter", "adapter-v2"),
    "quantization": ("nf4", "nf4-dq", "int4", "int8"),
    "attention": ("flash", "sdpa", "eager"),
}


_RUN = partial(Run, name="recipe", max_steps=ENDLESS_STEPS)
_COUNT = Number(True, (Gt(0),))  # every number of a recipe is a count
_SHAPES: Mapping[Any, Shape] = {
    str | None: Text(),
    bool | None: Flag(),
    int | None: _COUNT,
    float | None: Number(False, (Gt(0), Lt(1))),
    tuple[str, ...] | None: Array(Text(), 1),
}


@cache
def schema() -> Table:
    """The legal keys: the fields of a Recipe, and the run's name and steps, because its cost depends on them."""
    run = {
        "name": Field("name", "name", Text(), "Names the run.", "recipe"),
        "max_steps": Field("max_steps", "max_steps", _COUNT, "Optimizer steps to take in all.", ENDLESS_STEPS),
    }
    recipe = {
        name: Field(name, name, OneOf(_CHOICES[name]) if name in _CHOICES else _SHAPES[hint], "", None)
        for name, hint in get_type_hints(Recipe).items()
    }
    fields = {
        "run": Field("run", "run", Table(run, _RUN), "The run.", None),
        "recipe": Field("recipe", "recipe", Table(recipe, Recipe), "The training.", None),
    }
    return Table(fields, _make_run_spec)


def _make_run_spec(run: Run | None = None, recipe: Recipe | None = None) -> RunSpec:
    return RunSpec(run=run or _RUN(), data=Data(sources=()), recipe=recipe or Recipe(), format="recipe")


def read_document(document: Document) -> Reading:
    """The reading of a parsed text. With faults it still has a `run`, because every field has a default."""
    run, faults = walk_document(schema(), document, ROOT)
    names = ("run.name", "run.max_steps", *(f"recipe.{name}" for name in Recipe._fields))
    return Reading(document, DIALECT, "", ROOT, run, tuple(faults), {name: name for name in names}, all_fields=False)
