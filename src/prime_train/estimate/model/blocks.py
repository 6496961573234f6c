"""Reads how the blocks of a decoder are built: widths, experts, windows, quantisation. Counts no parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from prime_train.estimate.model.families import DecoderFamily

_DTYPE_BYTES = {"float32": 4.0, "float16": 2.0, "bfloat16": 2.0, "float8_e4m3fn": 1.0}
_MXFP4_BITS = 4.25  # a scale of 8 bits per 32 values; OCP Microscaling formats 1.0, s. 5
_NF4_BITS = 4.5  # an fp32 absmax per 64 values; QLoRA, arXiv 2305.14314, s. 3
_PER_TOKEN = ("num_experts_per_tok", "num_experts_per_token", "experts_per_token", "moe_topk", "top_k_experts")
_FULL_EVERY = 4  # Qwen3-Next and Qwen3.5: full_attention_interval of their configurations in transformers 5


class BlockWidths(NamedTuple):
    """The sizes of the residual stream and of attention. With latent attention, `head_dim` is that of the queries."""

    hidden_size: int
    heads: int
    kv_heads: int
    head_dim: int


class Blocks(NamedTuple):
    """The number of blocks with each kind of attention and MLP, and the sizes of MLPs and experts."""

    layers: int
    linear_layers: int
    dense_layers: int
    mlp_size: int
    experts: int
    experts_per_token: int
    expert_mlp_size: int
    shared_expert_mlp_size: int


def widths_of(numbers: Numbers) -> BlockWidths:
    """The widths. Raises ShapeError if heads do not divide evenly."""
    hidden = numbers.integer("hidden_size", "d_model", "n_embd")
    heads = numbers.integer("num_attention_heads", "n_heads", "n_head")
    kv_heads = numbers.integer("num_key_value_heads", "num_kv_heads", "multi_query_group_num", default=heads)
    if numbers.raw("multi_query") is True and numbers.raw("new_decoder_architecture") is False:
        kv_heads = 1  # falcon-7b
    if heads % kv_heads:
        raise ShapeError("num_key_value_heads", f"is {kv_heads}, which does not divide the {heads} heads")
    if numbers.raw("kv_lora_rank"):
        head_dim = numbers.integer("qk_nope_head_dim") + numbers.integer("qk_rope_head_dim")
    elif numbers.raw("head_dim", "kv_channels"):
        head_dim = numbers.integer("head_dim", "kv_channels")
    elif hidden % heads:
        raise ShapeError("hidden_size", f"is {hidden}, not divisible by {heads} heads, and head_dim is missing")
    else:
        head_dim = hidden // heads
    return BlockWidths(hidden, heads, kv_heads, head_dim)


def blocks_of(numbers: Numbers, family: DecoderFamily, hidden: int) -> Blocks:
    """The blocks. Raises ShapeError if a number is missing."""
    layers = numbers.integer("num_hidden_layers", "n_layers", "n_layer", "num_layers")
    experts = _experts(numbers, family)
    dense_layers = _dense_layers(numbers, layers) if experts else layers
    expert_keys = (family.expert_key,) if family.expert_key else ("moe_intermediate_size", "intermediate_size")
    expert_size = numbers.integer(*expert_keys) if experts else 0
    per_token = numbers.integer(*_PER_TOKEN) if experts else 0
    if per_token > experts:
        raise ShapeError("num_experts_per_tok", f"is {per_token}, more than the {experts} experts")
    return Blocks(
        layers=layers,
        linear_layers=_linear_layers(numbers, layers),
        dense_layers=dense_layers,
        mlp_size=_mlp_size(numbers, family, hidden) if dense_layers else 0,
        experts=experts,
        experts_per_token=per_token,
        expert_mlp_size=expert_size,
        shared_expert_mlp_size=_shared_size(numbers, family, expert_size) if experts else 0,
    )


def _experts(numbers: Numbers, family: DecoderFamily) -> int:
    names = ("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts")
    marked = family.has_experts or numbers.raw("moe_intermediate_size", *_PER_TOKEN) is not None
    if numbers.raw("is_moe") is False or (not marked and numbers.raw(*names) in (None, 0, 1)):
        return 0
    return numbers.integer(*names, least=0)


def _dense_layers(numbers: Numbers, layers: int) -> int:
    """The number of dense layers: the first ones, the listed ones, and those that decoder_sparse_step skips.

    Source: configurations of deepseek_v3, qwen3_moe and llama4 in transformers 5.
    """
    kinds, sparse = numbers.strings("mlp_layer_types"), numbers.raw("moe_layers")
    if kinds:
        return sum(kind == "dense" for kind in kinds[:layers])
    if isinstance(sparse, list | tuple):
        return sum(layer not in sparse for layer in range(layers))
    first = min(layers, numbers.integer("first_k_dense_replace", default=0, least=0))
    step = numbers.integer("decoder_sparse_step", "interleave_moe_layer_step", default=1)
    listed = numbers.raw("mlp_only_layers") or ()
    if not isinstance(listed, list | tuple):
        raise ShapeError("mlp_only_layers", "is not a list of layers")
    return sum(layer < first or layer in listed or (layer + 1) % step > 0 for layer in range(layers))


def _mlp_size(numbers: Numbers, family: DecoderFamily, hidden: int) -> int:
    names = (family.dense_key, "ffn_hidden_size", "n_inner")
    if family.gated or numbers.raw(*names) is not None:
        size = numbers.integer(*names)
        return size // 2 if family.halved_mlp else size
    return hidden * numbers.integer("expansion_ratio", default=4)


def _shared_size(numbers: Numbers, family: DecoderFamily, expert_size: int) -> int:
    if family.always_shared:
        return expert_size
    if numbers.raw("shared_expert_intermediate_size") is not None:
        return numbers.integer("shared_expert_intermediate_size", least=0)
    return expert_size * numbers.integer("n_shared_experts", "num_shared_experts", default=0, least=0)


def _linear_layers(numbers: Numbers, layers: int) -> int:
    kinds, listed = numbers.strings("layer_types"), numbers.table("linear_attn_config").get("kda_layers")
    if kinds:
        return sum(kind == "linear_attention" for kind in kinds)
    if isinstance(listed, list | tuple):  # Kimi-Linear
        return min(layers, len(listed))
    if numbers.raw("linear_num_key_heads") is None:
        return 0
    return layers - layers // numbers.integer("full_attention_interval", default=_FULL_EVERY)


def sliding_of(numbers: Numbers, family: DecoderFamily, layers: int) -> tuple[int, int]:
    """(tokens of the window, layers that have it); (0, 0) if every layer sees all tokens."""
    window = numbers.integer("sliding_window", "attention_chunk_size", default=0, least=0)
    kinds = numbers.strings("layer_types")
    if not window or numbers.raw("use_sliding_window") is False:
        return 0, 0
    if kinds:
        sliding = sum(kind in ("sliding_attention", "chunked_attention") for kind in kinds)
    elif family.sliding_pattern:
        names = ("sliding_window_pattern", "_sliding_window_pattern")
        sliding = layers - layers // numbers.integer(*names, default=family.sliding_pattern)
    elif numbers.raw("use_sliding_window") is True:
        sliding = max(0, layers - numbers.integer("max_window_layers", default=0, least=0))
    else:
        sliding = layers if family.sliding_default else 0
    return (window, sliding) if sliding else (0, 0)


def sliding_layers_of(numbers: Numbers, layers: int, every: int) -> tuple[int, int]:
    """(window tokens, layers that have it), where each layer has a kind or every n-th one is global."""
    kinds = numbers.strings("layer_types")
    if kinds and len(kinds) != layers:
        raise ShapeError("layer_types", f"has {len(kinds)} kinds for {layers} layers")
    sliding = sum(kind == "sliding_attention" for kind in kinds) if kinds else layers - layers // every
    return numbers.integer("sliding_window", default=512), sliding


def stored_bytes(numbers: Numbers, dense_parameters: int, parameters: int) -> tuple[str, float]:
    """(method of quantisation, "" for none; mean bytes per stored parameter).

    `dense_parameters` are not quantised: embedding and head.
    """
    dtype = str(numbers.raw("dtype", "torch_dtype") or "bfloat16").removeprefix("torch.")
    plain = _DTYPE_BYTES.get(dtype, 2.0)
    table = numbers.table("quantization_config")
    if not table:
        return "", plain
    bits = _bits(Numbers(table, {}))
    if bits is None:
        return str(table.get("quant_method", "unknown")), plain
    kept = dense_parameters / max(1, parameters)
    return str(table.get("quant_method", "")), kept * plain + (1 - kept) * bits / 8


def _bits(quantization: Numbers) -> float | None:
    """Bits per quantised value, scales included; None for an unknown method."""
    method = quantization.raw("quant_method")
    if method == "fp8":
        return 8.0
    if method == "mxfp4":
        return _MXFP4_BITS
    if method in ("awq", "gptq"):
        bits = quantization.integer("bits", "w_bit", default=4)
        return bits + (16 + bits) / max(1, quantization.integer("group_size", "q_group_size", default=128, least=-1))
    if method == "bitsandbytes":
        return 8.0 if quantization.raw("load_in_8bit") is True else _NF4_BITS
    if method == "compressed-tensors":
        groups = [group for group in quantization.table("config_groups").values() if isinstance(group, dict)]
        widths = [Numbers(group, {}).table("weights").get("num_bits") for group in groups]
        return max((float(width) for width in widths if isinstance(width, int)), default=None)
    return None


_LARGEST = 2**31  # far above any real size of a decoder; protects against mistakes and malicious files


class ShapeError(ValueError):
    """A config that describes no decoder. `field`: the wrong key ("" for the whole config); `what`: what is wrong."""

    def __init__(self, field: str, what: str) -> None:
        super().__init__(f"{field}: {what}" if field else what)
        self.field = field
        self.what = what


class UnknownBlocksError(ShapeError):
    """A config whose blocks cannot be counted, though the file is correct. `key`: what makes them different."""

    def __init__(self, key: str, what: str) -> None:
        super().__init__("", f"{key} {what}" if key else what)
        self.key = key


class Numbers:
    """The values of one config. Each method takes several names, because families name the same size differently."""

    def __init__(self, config: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
        self._values = {**defaults, **{key: value for key, value in config.items() if value is not None}}

    def _find(self, names: tuple[str, ...], default: Any = None) -> tuple[str, Any]:
        """The first name that is set, and its value; the first name and `default` if none is."""
        name = next((name for name in names if name in self._values), names[0])
        return name, self._values.get(name, default)

    def set_values(self) -> Iterator[tuple[str, Any]]:
        """Each key whose value switches something on, with the value: no zero, no empty list, not false."""
        return ((key, value) for key, value in self._values.items() if value)

    def raw(self, *names: str) -> Any:
        """The value of the first name that is set; None if none is."""
        return self._find(names)[1]

    def integer(self, *names: str, default: int | None = None, least: int = 1) -> int:
        """A whole number from `least` up. Raises ShapeError if it is missing, too small or absurd."""
        name, value = self._find(names, default)
        if value is None:
            raise ShapeError(name, "is missing")
        if isinstance(value, bool) or not isinstance(value, int):
            raise ShapeError(name, f"is {_short_repr(value)}, but must be a whole number")
        if not least <= value < _LARGEST:
            raise ShapeError(name, f"is {value:.3g}, but a size of a decoder lies between {least} and 2^31")
        return value

    def flag(self, *names: str, default: bool = False) -> bool:
        """True or false. Raises ShapeError for any other value."""
        name, value = self._find(names, default)
        if not isinstance(value, bool):
            raise ShapeError(name, f"is {_short_repr(value)}, but must be true or false")
        return value

    def strings(self, name: str) -> tuple[str, ...]:
        """A list of strings; () if it is missing. Raises ShapeError for any other value."""
        value = self._values.get(name, ())
        if isinstance(value, str) or not isinstance(value, list | tuple) or not all(isinstance(v, str) for v in value):
            raise ShapeError(name, f"is {_short_repr(value)}, but must be a list of strings")
        return tuple(value)

    def table(self, name: str) -> Mapping[str, Any]:
        """A table; empty if it is missing. Raises ShapeError for any other value."""
        value = self._values.get(name, {})
        if not isinstance(value, Mapping):
            raise ShapeError(name, f"is {_short_repr(value)}, but must be a table")
        return value


def _short_repr(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
