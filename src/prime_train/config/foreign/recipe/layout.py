"""Finds on how many GPUs a training of another program runs, and how it is spread over them. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

from prime_train.config.foreign.recipe.fields import Fields, Found, mapping_of, read_fields, value_in
from prime_train.config.foreign.values import ForeignPart, Open

# A launcher's format -> the flags whose product is its number of processes, with one for each GPU.
_LAUNCHERS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "launch": (("world",),),
    "accelerate-launch": (("num_processes",),),
    "torchrun": (("nproc_per_node",), ("nnodes",)),
    "deepspeed-launch": (("num_gpus",), ("num_nodes",)),
}
_STRATEGIES: Mapping[str, str] = {
    **dict.fromkeys(("full_shard", "1", "true", "hybrid_shard", "4"), "fsdp"),
    **dict.fromkeys(("shard_grad_op", "2", "false", "hybrid_shard_zero2", "_hybrid_shard_zero2", "5"), "zero2"),
    **dict.fromkeys(("no_shard", "3"), "ddp"),
}
_DEEPSPEED_FLAGS = ("zero_stage", "offload_optimizer_device", "offload_param_device", "deepspeed_config_file")
_UPCAST = "accelerate casts trained weights to fp32 under FSDP with mixed precision"


class Beside(NamedTuple):
    """The parts beside a trainer's own: fields of a DeepSpeed file and of an accelerate file, None without one."""

    deepspeed: Fields | None = None
    accelerate: Fields | None = None


class Layout(NamedTuple):
    """The fields of the layout. `engine` is "deepspeed" or "fsdp" where one of them holds the weights, else ""."""

    fields: Fields
    engine: str = ""


def beside_of(parts: Sequence[ForeignPart], trainer: Fields) -> Beside:
    """The parts of DeepSpeed and accelerate.

    A trainer's key may hold a whole DeepSpeed file, and the flags of `accelerate launch` overrule its file.
    """
    values = {part.format: part.values for part in reversed(parts)}
    named = trainer.get("deepspeed", Found(None)).value
    if isinstance(named, Mapping):
        values["deepspeed"] = named
    flags = _accelerate_flags(values.get("accelerate-launch", {}))
    if "accelerate" in values or flags.get("distributed_type"):
        values["accelerate"] = _merged(values.get("accelerate", {}), flags)
    return Beside(
        *(read_fields(name, values[name]) if name in values else None for name in ("deepspeed", "accelerate"))
    )


def _accelerate_flags(values: Mapping[str, Any]) -> dict[str, Any]:
    """The flags of `accelerate launch` as the keys of its file."""
    kinds = {"use_deepspeed": "DEEPSPEED", "use_fsdp": "FSDP", "multi_gpu": "MULTI_GPU"}
    kind = next((kind for flag, kind in kinds.items() if str(values.get(flag)).lower() == "true"), None)
    plain = {key: values[key] for key in ("num_processes", "mixed_precision") if key in values}
    tables = {
        "fsdp_config": {key: value for key, value in values.items() if key.startswith("fsdp_")},
        "deepspeed_config": {key: values[key] for key in _DEEPSPEED_FLAGS if key in values},
    }
    found = plain | {name: table for name, table in tables.items() if table}
    return found if kind is None else {"distributed_type": kind, **found}


def _merged(file: Mapping[str, Any], flags: Mapping[str, Any]) -> dict[str, Any]:
    below = {key: _merged(file[key], value) for key, value in flags.items() if isinstance(file.get(key), Mapping)}
    return {**file, **flags, **below}


def gpus_of(parts: Sequence[ForeignPart], beside: Beside) -> Found | None:
    """The number of GPUs that the launcher, the accelerate file or the scheduler sets; None if none of them does."""
    found = [
        product
        for part in parts
        if part.values.get("kind") != "python"  # one process, which takes the GPUs that it finds
        and (product := _product(part.values, _LAUNCHERS.get(part.format, ()))) is not None
    ]
    found += filter(None, ((beside.accelerate or {}).get("gpus"), _scheduled(parts)))
    return next((one for one in found if not isinstance(one.value, Open)), found[0] if found else None)


def _product(values: Mapping[str, Any], factors: Sequence[Sequence[str]]) -> Found | None:
    """The product of flags. The first must be there, because nnodes alone gives no number."""
    keys = [next((key for key in names if value_in(values, key) is not None), "") for names in factors]
    if not keys or not keys[0]:
        return None
    written = [key for key in keys if key]
    numbers = [_count(value_in(values, key)) for key in written]
    shown = " x ".join(written)
    if any(number is None for number in numbers):
        texts = " x ".join(_shown(value_in(values, key)) for key in written)
        return Found(Open(f"{shown} = {texts}"), shown)
    return Found(prod(number or 1 for number in numbers), shown)


def _shown(value: Any) -> str:
    return value.text if isinstance(value, Open) else str(value)


def _count(value: Any) -> int | None:
    """A positive count, also in quotes. "gpu", "auto" and "1:4" are none."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        return None
    return int(value) if re.fullmatch(r"\d{1,6}", str(value)) and int(value) > 0 else None


def _scheduled(parts: Sequence[ForeignPart]) -> Found | None:
    """The GPUs of a Slurm job or a SkyPilot task: nodes x GPUs of a node."""
    by_format = {part.format: part.values for part in parts}
    slurm, sky = by_format.get("sbatch"), by_format.get("skypilot")
    if sky is not None:
        asked = re.fullmatch(r"[\w.-]+(?::(\d+))?", str(value_in(sky, "resources.accelerators") or ""))
        nodes = _count(sky.get("num_nodes", 1))
        return Found(int(asked[1] or 1) * nodes, "accelerators x num_nodes") if asked and nodes else None
    if slurm is None:
        return None
    whole, node = _requested(slurm.get("gpus")), _requested(slurm.get("gpus_per_node", slurm.get("gres")))
    if whole is not None:
        return Found(whole, "--gpus")
    nodes = _count(slurm.get("nodes", 1))
    return Found(node * nodes, "nodes x GPUs of a node") if node and nodes else None


def _requested(value: Any) -> int | None:
    """The number in "8", "h100:8" or "gpu:h100:8"."""
    found = re.fullmatch(r"(?:[A-Za-z][\w.-]*:)*(\d{1,6})", str(value))
    return int(found[1]) if found and int(found[1]) > 0 else None


# --- sharding ------------------------------------------------------------------------------------


def layout_of(fields: Fields, beside: Beside, gpus: int | None, format: str) -> Layout:
    """How a trainer on top of accelerate spreads its weights: by DeepSpeed, FSDP, or copies on every GPU."""
    accelerate = beside.accelerate or {}
    kind = str(accelerate.get("kind", Found("")).value).upper()
    if beside.deepspeed is not None:
        return Layout(_of_deepspeed(beside.deepspeed), "deepspeed")
    named = fields.get("deepspeed")
    if named is not None and named.value:
        return _of_named(named, format)
    if kind == "DEEPSPEED":
        return _of_accelerate_zero(accelerate)
    if kind == "FSDP" or fields.get("fsdp", Found(None)).value:
        return Layout(_of_fsdp(fields, accelerate), "fsdp")
    if kind in ("MULTI_GPU", "NO"):
        return Layout({"sharding": Found("ddp" if kind == "MULTI_GPU" else "none", "distributed_type")})
    if kind and kind != "NONE":
        return Layout({"sharding": Found(Open(f"distributed_type = {kind}"), "distributed_type")})
    if gpus is None:
        return Layout({})
    return Layout(
        {"sharding": Found("ddp" if gpus > 1 else "none", "", written=False, why="nothing shards the weights")}
    )


def _of_deepspeed(found: Fields) -> Fields:
    names = ("sharding", "optimizer_offload", "parameter_offload", "shards", "tensor_parallel", "optimizer")
    return {name: found[name] for name in names if name in found}


def _of_named(named: Found, format: str) -> Layout:
    """The layout of a DeepSpeed file that is not there: known if it is one that the program ships."""
    shipped = mapping_of(format).get("shipped", {})
    name = named.value.text if isinstance(named.value, Open) else str(named.value)
    known = next((found for path, found in shipped.items() if name == path or name.endswith(f"/{path}")), None)
    if known is None:
        why = "the file is not there" if not isinstance(named.value, Open) else ""
        return Layout({"sharding": Found(Open(f"{named.key} = {name}"), named.key, why=why)}, "deepspeed")
    why = f"{name}: as {mapping_of(format)['program']} ships it"
    return Layout({name: Found(value, named.key, written=False, why=why) for name, value in known.items()}, "deepspeed")


def _of_accelerate_zero(accelerate: Fields) -> Layout:
    """The layout of an accelerate file that sets up DeepSpeed itself."""
    if "deepspeed_file" in accelerate:
        named = accelerate["deepspeed_file"]
        text = f"{named.key} = {_shown(named.value)}"
        return Layout({"sharding": Found(Open(text), named.key, why="the file is not there")}, "deepspeed")
    names = {
        "sharding": "zero",
        "optimizer_offload": "ds_optimizer_offload",
        "parameter_offload": "ds_parameter_offload",
    }
    return Layout({name: accelerate[theirs] for name, theirs in names.items() if theirs in accelerate}, "deepspeed")


def _of_fsdp(fields: Fields, accelerate: Fields) -> dict[str, Found]:
    """FSDP, by the accelerate file or by the trainer's own keys: fsdp_config, or words such as "full_shard offload"."""
    text = fields.get("fsdp_text", Found("")).value
    words = " ".join(map(str, text)) if isinstance(text, list) else str(text or "")
    found: dict[str, Found] = {}
    strategy = next(
        (one[name] for one in (accelerate, fields) for name in ("fsdp_strategy", "fsdp_reshards") if name in one), None
    )
    word = str(strategy.value).lower() if strategy else next((w for w in words.lower().split() if w in _STRATEGIES), "")
    key = strategy.key if strategy else "fsdp"
    if word and word not in _STRATEGIES:
        found["sharding"] = Found(Open(f"{key} = {word}"), key)
    else:
        found["sharding"] = Found(_STRATEGIES.get(word, "fsdp"), key, written=bool(word) or not accelerate)
    offload = next((one["fsdp_offload"] for one in (accelerate, fields) if "fsdp_offload" in one), None)
    is_offloaded = str(offload.value).lower() == "true" if offload else "offload" in words.split()
    if is_offloaded:
        moved = Found(True, offload.key if offload else "fsdp")
        found |= {"optimizer_offload": moved, "parameter_offload": moved}
    checkpointing = accelerate.get("fsdp_checkpointing")
    if checkpointing is not None and str(checkpointing.value).lower() == "true":
        found["activation_checkpointing"] = Found("full", checkpointing.key)
    sizes = ("shards", "replicas", "tensor_parallel", "context_parallel")
    return found | {name: accelerate[name] for name in sizes if name in accelerate}


# --- types ---------------------------------------------------------------------------------------


def types_of(fields: Fields, engine: str) -> dict[str, Found]:
    """The type of the trained weights, or of the frozen base below an adapter.

    It is what `loads` gives, except where the engine or the trainer casts. DeepSpeed keeps fp32 masters beside weights
    in 16 bits, which the estimate adds.
    """
    loads, keeps = fields["loads"], fields.get("keeps_types")  # whether the program has an FSDP of its own
    compute = fields["compute_dtype"].value
    is_16_bits = compute in ("bf16", "fp16", "float8")
    adapted = fields["adapter"].value != "none"
    if loads.value == "checkpoint":
        loads = loads._replace(value="bf16", why="the type of the checkpoint, here bf16")
    if engine == "deepspeed" and is_16_bits:
        loads = Found("fp16" if compute == "fp16" else "bf16", written=False, why="DeepSpeed, with fp32 masters")
    if adapted:
        return {"base_dtype": loads}
    if engine == "fsdp" and is_16_bits and loads.value != "fp32" and (keeps is None or keeps.value is not True):
        return {"weight_dtype": Found("fp32", written=False, why=_UPCAST)}
    return {"weight_dtype": loads}
