"""Lists what a `[recipe]` leaves open and the estimate assumes: types of numbers, and other settings. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator

from prime_train.estimate.memory.setup_from_recipe import with_defaults
from prime_train.estimate.memory.train_setup import TrainSetup
from prime_train.spec.prime_rl_parts import Recipe

_TYPES = ("weight_dtype", "compute_dtype", "optimizer_state_dtype")
_NAMES = {4.0: "fp32", 2.0: "bf16", 6.0: "bf16 and fp32"}  # bytes of a number -> its type


def assumed_by(recipe: Recipe, setup: TrainSetup) -> Iterator[str]:
    """A line with every type, if one of them is not set, and a line with the other settings that are not set."""
    open_types = [name for name in _TYPES if getattr(recipe, name) is None]
    if open_types:
        keys = ", ".join(f"recipe.{name}" for name in open_types)
        yield f"{describe_types(recipe, setup)}; not set: {keys}"
    values = _settings(with_defaults(recipe), setup)
    unset = [f"recipe.{name} = {json.dumps(value)}" for name, value in values if getattr(recipe, name) is None]
    if unset:
        yield f"taken as set: {', '.join(unset)}"


def describe_types(recipe: Recipe, setup: TrainSetup) -> str:
    """The type of each kind of number, for example "types of trl: weights fp32, gradients fp32, ..."."""
    return f"types of {recipe.program or 'hf'}: {', '.join(_types(recipe, setup))}"


def _types(recipe: Recipe, setup: TrainSetup) -> Iterator[str]:
    numerics = setup.numerics
    if setup.adapter is None:
        yield f"weights {_name(numerics.weight)}"
    else:
        yield f"adapters {_name(numerics.weight)}"
        yield f"frozen base {setup.quantization or _name(numerics.base)}"
        if setup.quantization:
            yield f"embedding and head {_name(numerics.quantized_ends)}"
    if numerics.master:
        yield f"master weights {_name(numerics.master)}"
    yield f"gradients {_name(numerics.gradient)}"
    yield f"optimizer states {numerics.state:.3g} B a number"
    yield f"products {recipe.compute_dtype or 'bf16'}"


def _name(number_bytes: float) -> str:
    return _NAMES.get(number_bytes, f"{number_bytes:g} B")


def _settings(recipe: Recipe, setup: TrainSetup) -> Iterator[tuple[str, object]]:
    """The settings that change memory most, with the values that the estimate uses."""
    yield "ctx_tokens", setup.ctx_tokens
    yield "micro_batch", recipe.micro_batch or 1
    yield "micro_batches_per_step", setup.micro_batches
    yield "sharding", setup.layout.sharding
    yield "optimizer", setup.optimizer
    yield "head", recipe.head or "full"
    yield "activation_checkpointing", setup.checkpointing
    yield "compile", setup.compiled
    if setup.adapter is not None and setup.adapter.rank:
        yield "adapter_rank", setup.adapter.rank
