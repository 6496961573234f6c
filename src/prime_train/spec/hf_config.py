"""Reads and writes the config.json of a Hugging Face folder, and judges whether it can be trained. Without torch.

A feature that the Decoder does not compute (other biases, rotary positions of a part of a head, quantised weights) is
refused by name, because training the folder anyway would train another model. The rules ask before a run for settings
that do not go together, and the trainer asks again, because a folder may have changed between the two.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from prime_train.core.errors import UserError
from prime_train.spec import RunSpec
from prime_train.spec.answers import policy_of
from prime_train.spec.decoder_size import Architecture, RopeScaling
from prime_train.spec.hf_families import (
    FAMILIES,
    PARTS,
    ConfigFamily,
    Raw,
    config_error,
    read_integer,
    read_positive,
    show,
)

_NOT_COMPUTED = "this decoder does not compute it"
MODEL_TYPES = tuple(FAMILIES)
_WHY_TYPES = f"the bundled trainer trains {', '.join(MODEL_TYPES[:-1])} and {MODEL_TYPES[-1]}"
_ALIGNED = 8  # numbers of 16 bytes in bf16: F.grouped_mm needs rows that begin at multiples of 16 bytes (torch 2.13)
FP8_MULTIPLE = 16  # of both sizes of a matrix, and of the tokens of a micro-batch: torch._scaled_mm (torch 2.13)


def find_model_type(architecture: Architecture) -> str:
    """The model type of config.json; "" if no family has this combination of features."""
    fitting = (name for name, family in FAMILIES.items() if _has_features(architecture, family))
    return architecture.model_type or next(fitting, "")


def _has_features(architecture: Architecture, family: ConfigFamily) -> bool:
    read = {entry.field for entry in family.entries}
    return all(getattr(architecture, name) == value for name, value in family.fixed.items()) and all(
        bool(getattr(architecture, part)) == (part in read) for part in PARTS
    )


def read_architecture(config: Mapping[str, Any], where: str) -> Architecture:
    """The architecture of a config.json.

    UserError with `where` if the Decoder does not compute it. This is the one judge of what the bundled trainer can
    train.
    """
    model_type = config.get("model_type")
    family = FAMILIES.get(model_type) if isinstance(model_type, str) else None
    if family is None:
        raise _unsupported(f"model_type = {show(model_type)}", where, _WHY_TYPES)
    spelled = {other: key for other, key in family.renamed.items() if config.get(key) is None}
    raw = Raw({spelled.get(key, key): value for key, value in config.items()}, where)
    for key, supported in (*family.required, ("quantization_config", (None,))):
        if raw.values.get(key) not in supported:
            raise _unsupported(f"{key} = {show(raw.values.get(key))}", where, _NOT_COMPUTED)
    _check_layer_types(raw)
    fields = dict(family.fixed)
    for entry in family.entries:
        default = entry.default(fields) if callable(entry.default) else entry.default
        fields[entry.field] = entry.read(raw, entry.key, default) if entry.key else default
    if not fields.get("learned_positions"):
        fields["rope_theta"], fields["rope_scaling"] = _read_rope(raw, family)
    architecture = Architecture(**fields)
    _check_sizes(architecture, where)
    if find_model_type(architecture) == model_type:
        return architecture
    return replace(architecture, model_type=str(model_type))  # a Mistral without a window is a Llama by its fields


def _check_layer_types(raw: Raw) -> None:
    types = raw.values.get("layer_types") or []
    others = [name for name in types if name != "full_attention"] if isinstance(types, list) else [types]
    if others:
        raise _unsupported(f"layer_types has {show(others[0])}", raw.where, _NOT_COMPUTED)


def _check_sizes(sizes: Architecture, where: str) -> None:
    if sizes.heads % sizes.kv_heads:
        what = f"num_key_value_heads = {sizes.kv_heads} does not divide num_attention_heads = {sizes.heads}"
        raise config_error(what, where, "each key and value head serves the same number of query heads")
    if sizes.learned_positions and sizes.hidden_size % sizes.heads:
        what = f"n_head = {sizes.heads} does not divide n_embd = {sizes.hidden_size}"
        raise config_error(what, where, "the heads share the width of the residual stream")
    if not sizes.learned_positions and sizes.head_dim % 2:
        what = f"head_dim = {sizes.head_dim} is odd"
        raise config_error(what, where, "rotary positions turn the dimensions of a head in pairs")
    if sizes.experts_per_token > sizes.experts:
        what = f"num_experts_per_tok = {sizes.experts_per_token} is more than the {sizes.experts} experts"
        raise config_error(what, where, "a token visits each expert at most once")


def _read_rope(raw: Raw, family: ConfigFamily) -> tuple[float, RopeScaling | None]:
    """Base and scaling of rotary positions. transformers 5 nests the base, which is top-level in version 4."""
    nested = raw.values.get("rope_parameters") or raw.values.get("rope_scaling") or {}
    if not isinstance(nested, dict):
        raise config_error(f"rope_parameters = {show(nested)}", raw.where, "it must be an object")
    usual = raw.values.get("partial_rotary_factor") or family.rotary_part
    if nested.get("partial_rotary_factor", usual) != 1:
        raise _unsupported("partial_rotary_factor below 1", raw.where, "this decoder rotates whole heads")
    theta = read_positive(raw if "rope_theta" not in nested else Raw(nested, raw.where), "rope_theta", 10000.0)
    rope_type = nested.get("rope_type", nested.get("type", "default"))
    if rope_type == "default":
        return theta, None
    if rope_type != "llama3":
        why = "this decoder has rotary positions without scaling, or with that of Llama 3"
        raise _unsupported(f"rope_type = {show(rope_type)}", raw.where, why)
    return theta, _read_scaling(Raw(nested, raw.where))


_SCALING_KEYS = {
    "factor": "factor",
    "low_freq_factor": "low_freq_factor",
    "high_freq_factor": "high_freq_factor",
    "original_positions": "original_max_position_embeddings",
}


def _read_scaling(nested: Raw) -> RopeScaling:
    missing = [key for key in _SCALING_KEYS.values() if nested.values.get(key) is None]
    if missing:
        why = "the scaling of Llama 3 is computed from it"
        raise config_error(f'rope_type = "llama3" without {missing[0]}', nested.where, why)
    factor, low, high = (
        read_positive(nested, _SCALING_KEYS[name], None) for name in ("factor", "low_freq_factor", "high_freq_factor")
    )
    if not low < high:
        what = f'rope_type = "llama3" with low_freq_factor = {low:g} and high_freq_factor = {high:g}'
        raise config_error(what, nested.where, "the frequencies between the two are interpolated")
    return RopeScaling(factor, low, high, read_integer(nested, _SCALING_KEYS["original_positions"], None))


def find_context_limit(architecture: Architecture) -> tuple[int, str] | None:
    """The longest context in tokens that the Decoder computes, and the reason; None without a limit."""
    if architecture.learned_positions:
        return architecture.learned_positions, "the model has a learned position for no more tokens"
    if architecture.sliding_window is not None:
        return architecture.sliding_window, "the model attends to a sliding window of that many tokens"
    return None


def describe_decoder(
    sizes: Architecture, *, ctx_tokens: int, stop_token: int | None = None, dtype: str = "float32"
) -> dict[str, Any]:
    """The content of config.json.

    The rotary base is written for transformers 4 and for 5. UserError if no family has this combination of features.
    """
    model_type = find_model_type(sizes)
    if not model_type:
        what = "no model type of Hugging Face has this combination of features"
        why = "softmax routing is that of qwen3_moe: with query and key norms, and without shared experts"
        raise UserError(what, "model", why, 'model.router = "sigmoid"')
    family = FAMILIES[model_type]
    ends = {"bos_token_id": None, "eos_token_id": stop_token, "dtype": dtype}
    return {
        "architectures": [family.name],
        "model_type": model_type,
        **{entry.key: getattr(sizes, entry.field) for entry in family.entries if entry.key},
        **family.written,
        **({} if sizes.learned_positions else _describe_rope(sizes, family, ctx_tokens)),
        **ends,
    }


def _describe_rope(sizes: Architecture, family: ConfigFamily, ctx_tokens: int) -> dict[str, Any]:
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": sizes.rope_theta}
    flat: dict[str, Any] = {"rope_theta": sizes.rope_theta, "max_position_embeddings": ctx_tokens}
    if sizes.rope_scaling is not None:
        scaling = {key: getattr(sizes.rope_scaling, name) for name, key in _SCALING_KEYS.items()}
        rope |= {"rope_type": "llama3", **scaling}
        flat["rope_scaling"] = {"rope_type": "llama3", **scaling}
    if family.rotary_part != 1.0:
        rope["partial_rotary_factor"] = flat["partial_rotary_factor"] = 1.0
    return flat | {"rope_parameters": rope}


def _unsupported(what: str, where: str, why: str) -> UserError:
    return config_error(what, where, why, "set model.path to a folder of a supported model")


class SettingConflict(NamedTuple):
    """A setting that the architecture does not allow. `value`: one that it allows; None = take the key out."""

    at: str  # RunSpec field
    what: str
    why: str
    value: object


def find_conflicts(run: RunSpec, sizes: Architecture) -> Iterator[SettingConflict]:
    """The conflicts of an architecture; its experts are judged first, because their sizes are used by the others."""
    if sizes.experts:
        yield from _judge_experts(run, sizes)
    limit = find_context_limit(sizes)
    if limit is not None and run.data.ctx_tokens > limit[0]:
        what = f"{run.data.ctx_tokens} tokens, and the model has {limit[0]}"
        yield SettingConflict("data.ctx_tokens", what, limit[1], limit[0])


def _judge_experts(run: RunSpec, sizes: Architecture) -> Iterator[SettingConflict]:
    if sizes.experts_per_token > sizes.experts:
        what = f"{sizes.experts_per_token} is more than the {sizes.experts} experts of a block"
        yield SettingConflict("model.experts_per_token", what, "a token visits each expert at most once", sizes.experts)
    if not find_model_type(sizes):
        what = '"softmax" without `model.qk_norm`' if not sizes.qk_norm else '"softmax" with shared experts'
        why = "Qwen3-MoE, the family with this router, has query and key norms and no shared experts"
        yield SettingConflict("model.router", what, why, "sigmoid")
    for name, size in (("hidden_size", sizes.hidden_size), ("expert_mlp_size", sizes.expert_mlp_size)):
        if size % _ALIGNED:
            why = "grouped matrix products read rows that begin at multiples of 16 bytes"
            fitting = -(-size // _ALIGNED) * _ALIGNED
            what = f"{size} is not a multiple of {_ALIGNED}, with experts"
            yield SettingConflict(f"model.{name}", what, why, fitting)
    shards = run.parallel.dp_shard
    if sizes.experts % shards:
        fitting = max(number for number in range(1, shards) if sizes.experts % number == 0 and shards % number == 0)
        what = f"{sizes.experts} experts do not divide by {shards} processes"
        why = "FSDP2 gives each process a part of the experts, and an uneven part leaves memory unused on the others"
        yield SettingConflict("parallel.dp_shard", what, why, fitting)
    if run.model.lora is not None:
        targets = run.model.lora.targets
        kept = [name for name in targets if name not in ("gate", "up", "down")]
        if len(kept) < len(targets):
            why = "the weights of the experts are stacked, and adapters are for single linear layers"
            fitting_targets = kept or ["query", "value"]
            yield SettingConflict("model.lora.targets", "gate, up and down of experts", why, fitting_targets)


def find_fp8_conflicts(run: RunSpec) -> Iterator[SettingConflict]:
    """The settings of a run that do not go with precision.fp8 in any architecture."""
    if run.precision.fp8 == "none":
        return
    given = f'"{run.precision.fp8}"'
    if policy_of(run) is not None:
        why = "the update compares log-probabilities with those of an engine, which does not compute in fp8"
        yield SettingConflict("precision.fp8", f'{given}, and `run.kind` is "rl"', why, "none")
    if run.model.lora is not None:
        why = "torchao converts plain linear layers, and a layer with an adapter is none"
        yield SettingConflict("precision.fp8", f"{given}, and `model.lora` is set", why, "none")
    if run.precision.compute == "fp32":
        what = f'"fp32", and `precision.fp8` is {given}'
        yield SettingConflict("precision.compute", what, "the results of fp8 products are bf16", "bf16")
    ctx_tokens = run.data.ctx_tokens
    if ctx_tokens % FP8_MULTIPLE:
        what = f"{ctx_tokens} is not a multiple of {FP8_MULTIPLE}, with `precision.fp8`"
        why = "the gradient of a weight is a product over the tokens of a micro-batch"
        yield SettingConflict("data.ctx_tokens", what, why, max(1, ctx_tokens // FP8_MULTIPLE) * FP8_MULTIPLE)


def find_fp8_size_conflict(run: RunSpec, sizes: Architecture) -> Iterator[SettingConflict]:
    """A conflict if precision.fp8 could convert no layer: one side of each is the width of the model."""
    if run.precision.fp8 == "none":
        return
    mlp_size = sizes.shared_mlp_size if sizes.experts else sizes.mlp_size
    others = (sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim, mlp_size)
    if sizes.hidden_size % FP8_MULTIPLE or all(size % FP8_MULTIPLE for size in others if size):
        what = (
            f'"{run.precision.fp8}", and no linear layer of a block has two sizes that are multiples of {FP8_MULTIPLE}'
        )
        why = f"the width is {sizes.hidden_size}; other layers stay in bf16, so nothing would be computed in fp8"
        yield SettingConflict("precision.fp8", what, why, "none")
