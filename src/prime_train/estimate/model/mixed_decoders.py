"""Reads families whose blocks differ from each other: Nemotron-H, Gemma 3n, Gemma 4. Pure.

Source: configuration and modelling code of nemotron_h, gemma3n and gemma4 in transformers 5. A test builds each of them
and compares the parameter counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from prime_train.estimate.model.blocks import (
    Blocks,
    BlockWidths,
    Numbers,
    ShapeError,
    UnknownBlocksError,
    sliding_layers_of,
)

_FP32, _BF16 = 4.0, 2.0


class MixedDecoder(NamedTuple):
    """A decoder counted block by block. `parameters` leave out a head that is not tied to the embedding.

    `lookup_parameters`: of embeddings that each block has beside that of the input; a token reads one row of each.
    """

    widths: BlockWidths
    blocks: Blocks
    parameters: int
    linear_state_bytes: float = 0.0
    lookup_parameters: int = 0
    sliding: tuple[int, int] = (0, 0)  # window tokens, layers that have it


_LETTERS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
_KINDS = {"linear_attention": "mamba", "full_attention": "attention"}


def _read_nemotron_h(numbers: Numbers) -> MixedDecoder:
    """One mixer per block: Mamba-2 (arXiv 2405.21060), attention, an MLP or experts.

    A block of the shape is a mixer of tokens with the MLP that follows it, so that attention and MLP count once each.
    """
    kinds = _read_pattern(numbers)
    hidden = numbers.integer("hidden_size")
    widths = _widths(numbers, hidden)
    count = {kind: kinds.count(kind) for kind in _LETTERS.values()}
    moe, mixers = count["moe"], count["mamba"] + count["attention"]
    blocks = Blocks(
        layers=max(mixers, moe + count["mlp"]),
        linear_layers=count["mamba"],
        dense_layers=max(mixers, moe + count["mlp"]) - moe,
        mlp_size=numbers.integer("intermediate_size") if count["mlp"] else 0,
        experts=numbers.integer("n_routed_experts", "num_local_experts") if moe else 0,
        experts_per_token=numbers.integer("num_experts_per_tok") if moe else 0,
        expert_mlp_size=numbers.integer("moe_intermediate_size") if moe else 0,
        shared_expert_mlp_size=numbers.integer("moe_shared_expert_intermediate_size") if moe else 0,
    )
    each = {
        "mamba": _mamba2_parameters(numbers, hidden) if count["mamba"] else 0,
        "attention": 2 * hidden * widths.head_dim * (widths.heads + widths.kv_heads),
        "mlp": _plain_mlp(numbers, hidden, blocks.mlp_size),
        "moe": _experts_parameters(numbers, hidden, blocks) if moe else 0,
    }
    parameters = sum(count[kind] * (each[kind] + hidden) for kind in count) + hidden
    state = _mamba2_state_bytes(numbers) if count["mamba"] else 0.0
    return MixedDecoder(widths, blocks, parameters + numbers.integer("vocab_size") * hidden, state)


def _read_pattern(numbers: Numbers) -> list[str]:
    """Each block's kind, from the list or the letters. Raises UnknownBlocksError for one that is not known."""
    listed = numbers.strings("layers_block_type") or numbers.strings("layer_types")
    if listed:
        kinds = [_KINDS.get(kind, kind) for kind in listed]
        unknown = next((kind for kind in kinds if kind not in _LETTERS.values()), None)
        if unknown is not None:
            raise UnknownBlocksError("layers_block_type", f"has {unknown!r}, which is not known")
        return kinds
    pattern = numbers.raw("hybrid_override_pattern")
    if not isinstance(pattern, str) or not pattern:
        raise ShapeError("hybrid_override_pattern", "is missing, and layers_block_type too")
    unknown = next((letter for letter in pattern if letter not in _LETTERS), None)
    if unknown is not None:
        raise UnknownBlocksError("hybrid_override_pattern", f"has {unknown!r}, which is not known")
    return [_LETTERS[letter] for letter in pattern]


def _mamba2_sizes(numbers: Numbers) -> tuple[int, int, int, int]:
    """(heads, inner size, convolution channels and width)."""
    heads = numbers.integer("mamba_num_heads")
    inner = heads * numbers.integer("mamba_head_dim")
    channels = inner + 2 * numbers.integer("n_groups", "mamba_n_groups") * numbers.integer("ssm_state_size")
    return heads, inner, channels, numbers.integer("conv_kernel", "mamba_d_conv", default=4)


def _mamba2_parameters(numbers: Numbers, hidden: int) -> int:
    heads, inner, channels, width = _mamba2_sizes(numbers)
    convolution = channels * (width + numbers.flag("use_conv_bias", "mamba_conv_bias", default=True))
    projected = inner + channels + heads
    biases = projected + hidden if numbers.flag("use_bias", default=False) else 0
    # three numbers per head: step, decay and skip; a norm over the inner size
    return hidden * projected + convolution + 3 * heads + inner + inner * hidden + biases


def _mamba2_state_bytes(numbers: Numbers) -> float:
    """Bytes that one layer keeps per served sequence: a state for each inner number, and the convolution's end."""
    _, inner, channels, width = _mamba2_sizes(numbers)
    state = _FP32 if numbers.raw("mamba_ssm_cache_dtype") in (None, "float32") else _BF16
    return inner * numbers.integer("ssm_state_size") * state + channels * (width - 1) * _BF16


def _plain_mlp(numbers: Numbers, hidden: int, inner: int) -> int:
    """An MLP with two matrices."""
    return 2 * hidden * inner + (inner + hidden if numbers.flag("mlp_bias", default=False) else 0)


def _experts_parameters(numbers: Numbers, hidden: int, blocks: Blocks) -> int:
    """Router with its correction, routed experts, shared expert, and projections into the experts' space."""
    latent = numbers.integer("moe_latent_size", default=0, least=0)
    router = blocks.experts * (hidden + 1)
    routed = blocks.experts * 2 * (latent or hidden) * blocks.expert_mlp_size
    return router + routed + _plain_mlp(numbers, hidden, blocks.shared_expert_mlp_size) + 2 * hidden * latent


def _widths(numbers: Numbers, hidden: int) -> BlockWidths:
    heads = numbers.integer("num_attention_heads")
    kv_heads = numbers.integer("num_key_value_heads", default=heads)
    if heads % kv_heads:
        raise ShapeError("num_key_value_heads", f"is {kv_heads}, which does not divide the {heads} heads")
    return BlockWidths(hidden, heads, kv_heads, numbers.integer("head_dim"))


def _mlp_sizes(numbers: Numbers, layers: int) -> list[int]:
    """Each block's inner MLP size, which a config gives once or per block."""
    sizes = numbers.raw("intermediate_size")
    if not isinstance(sizes, list | tuple):
        return [numbers.integer("intermediate_size")] * layers
    if len(sizes) != layers:
        raise ShapeError("intermediate_size", f"has {len(sizes)} sizes for {layers} layers")
    return [Numbers({"intermediate_size": size}, {}).integer("intermediate_size") for size in sizes]


def _own_keys(numbers: Numbers, layers: int) -> int:
    """How many first layers have own keys and values; the others use those from an earlier layer."""
    shared = numbers.integer("num_kv_shared_layers", default=0, least=0)
    if shared >= layers:
        raise ShapeError("num_kv_shared_layers", f"is {shared} of {layers} layers")
    return layers - shared


def _per_layer_inputs(numbers: Numbers, layers: int, hidden: int) -> tuple[int, int]:
    """(parameters in all per-layer embeddings, parameters that use them): 0 without such an input."""
    size = numbers.integer("hidden_size_per_layer_input", default=0, least=0)
    if not size:
        return 0, 0
    lookup = numbers.integer("vocab_size_per_layer_input") * layers * size
    projection = hidden * layers * size + size  # from the input, with its norm
    return lookup, projection + layers * (2 * hidden * size + hidden)


def _read_gemma3n(numbers: Numbers) -> MixedDecoder:
    """Per-layer embeddings, alternating updates (AltUp), learned residuals (LAuReL) and shared keys and values."""
    hidden, layers = numbers.integer("hidden_size"), numbers.integer("num_hidden_layers")
    widths = _widths(numbers, hidden)
    queries, keys = widths.heads * widths.head_dim, widths.kv_heads * widths.head_dim
    mlps, inputs = _mlp_sizes(numbers, layers), numbers.integer("altup_num_inputs")
    attention = 2 * hidden * queries + widths.head_dim
    own = 2 * hidden * keys + widths.head_dim
    rank = numbers.integer("laurel_rank")
    altup = hidden + inputs**2 + inputs**3 + hidden * inputs + hidden
    of_layer = attention + 4 * hidden + altup + 2 * hidden * rank + hidden
    lookup, used = _per_layer_inputs(numbers, layers, hidden)
    parameters = layers * of_layer + _own_keys(numbers, layers) * own + 3 * hidden * sum(mlps)
    parameters += lookup + used + 2 * (inputs - 1) * hidden**2 + hidden + numbers.integer("vocab_size") * hidden
    return MixedDecoder(
        widths,
        Blocks(layers, 0, layers, sum(mlps) // layers, 0, 0, 0, 0),
        parameters,
        lookup_parameters=lookup,
        sliding=sliding_layers_of(numbers, layers, every=5),
    )


def _read_gemma4(numbers: Numbers) -> MixedDecoder:
    """Wider heads in global layers, per-layer embeddings, shared keys and values, and experts beside a dense MLP."""
    hidden, layers = numbers.integer("hidden_size"), numbers.integer("num_hidden_layers")
    widths = _widths(numbers, hidden)
    window, sliding = sliding_layers_of(numbers, layers, every=6)
    own, wide = _own_keys(numbers, layers), numbers.flag("use_double_wide_mlp", default=False)
    size = numbers.integer("intermediate_size")
    inner = size * (layers + (layers - own if wide else 0))
    lookup, used = _per_layer_inputs(numbers, layers, hidden)
    parameters = sum(_gemma4_attention(numbers, hidden)) + 3 * hidden * inner + layers * 4 * hidden
    parameters += lookup + used + hidden + numbers.integer("vocab_size") * hidden
    experts = numbers.integer("num_experts", default=0, least=0) if numbers.raw("enable_moe_block") is True else 0
    expert_size = numbers.integer("moe_intermediate_size") if experts else 0
    per_token = numbers.integer("top_k_experts", "num_experts_per_tok") if experts else 0
    if experts:  # a router with two scales, and three norms more
        parameters += layers * (experts * (3 * hidden * expert_size + hidden + 1) + 4 * hidden)
    dense = 0 if experts else layers
    shared = size if experts else 0
    blocks = Blocks(layers, 0, dense, 0 if experts else inner // layers, experts, per_token, expert_size, shared)
    return MixedDecoder(widths, blocks, parameters, lookup_parameters=lookup, sliding=(window, sliding))


def _gemma4_attention(numbers: Numbers, hidden: int) -> Iterator[int]:
    """Attention parameters, layer by layer."""
    layers, kinds = numbers.integer("num_hidden_layers"), numbers.strings("layer_types")
    own, overridden = _own_keys(numbers, layers), numbers.table("per_layer_config")
    heads, local = numbers.integer("num_attention_heads"), numbers.integer("head_dim")
    same = numbers.flag("attention_k_eq_v", default=False)
    for layer in range(layers):
        is_global = kinds[layer] == "full_attention" if layer < len(kinds) else (layer + 1) % 6 == 0
        is_global = is_global or layer == layers - 1
        head_dim, kv_heads = local, numbers.integer("num_key_value_heads")
        if is_global:
            head_dim = numbers.integer("global_head_dim", default=512)
            kv_heads = numbers.integer("num_global_key_value_heads", default=kv_heads) if same else kv_heads
        written = overridden.get(str(layer), overridden.get(f"{layer:02d}"))
        if isinstance(written, Mapping):
            here = Numbers({"head_dim": head_dim, "num_key_value_heads": kv_heads, **written}, {})
            head_dim, kv_heads = here.integer("head_dim"), here.integer("num_key_value_heads")
        yield 2 * hidden * heads * head_dim + head_dim
        if layer < own:
            yield hidden * kv_heads * head_dim * (1 if same and is_global else 2) + head_dim


READERS: Mapping[str, Callable[[Numbers], MixedDecoder]] = {
    "nemotron_h": _read_nemotron_h,
    "gemma3n_text": _read_gemma3n,
    "gemma4_text": _read_gemma4,
}
