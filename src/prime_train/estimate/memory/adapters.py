"""Counts the parameters of adapters and the bytes of a quantised base. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from prime_train.estimate.model.shape import ModelShape

ALL_LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "experts")
_QKV, _MLP = ("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj", "down_proj")
_ALIASES = {
    "q": ("q_proj",), "k": ("k_proj",), "v": ("v_proj",), "o": ("o_proj",), "output_proj": ("o_proj",),
    "attn_qvo": ("q_proj", "v_proj", "o_proj"),
    "c_attn": _QKV, "qkv_proj": _QKV, "query_key_value": _QKV, "w_pack": _QKV,
    "mlp": _MLP, "w1": ("gate_proj",), "w2": ("up_proj",), "w3": ("up_proj",), "c_proj": ("o_proj", "down_proj"),
    "all": ALL_LINEAR, "all-linear": ALL_LINEAR,
}  # fmt: skip

# Bytes per number. nf4: 4 bits and an fp32 scale for 64 numbers, with double quantisation 0.127 bits for it (QLoRA,
# arXiv 2305.14314, s. 3). int4, int8: groups of 128 with a 16-bit scale and a 4-bit zero (GPTQ, arXiv 2210.17323).
QUANTIZED_BYTES = {"nf4": 4.5 / 8, "nf4-dq": 4.127 / 8, "int4": 4.16 / 8, "int8": 8.16 / 8}


def lora_parameters(shape: ModelShape, rank: int, targets: Iterable[str] = ALL_LINEAR) -> int:
    """Parameters of one adapter: rank x (inputs + outputs) per adapted matrix. Source: LoRA, arXiv 2106.09685, s. 4.

    `targets` may use module names of other projects (`c_attn`, `w1`, "all"); an unknown name adds nothing.
    """
    wanted = {name for target in targets for name in _ALIASES.get(target.lower(), (target.lower(),))}
    hidden = shape.hidden_size
    query, key = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    attention = {"q_proj": hidden + query, "k_proj": hidden + key, "v_proj": hidden + key, "o_proj": query + hidden}
    in_mlp = [name for name in ("gate_proj", "up_proj", "down_proj") if name in wanted]
    if not shape.gated_mlp:
        in_mlp = [name for name in in_mlp if name != "gate_proj"] or in_mlp[:1]
    dense_layers = shape.dense_layers if shape.is_moe else shape.layers
    expert_layers = shape.layers - dense_layers
    sums = shape.layers * sum(size for name, size in attention.items() if name in wanted)
    sums += dense_layers * len(in_mlp) * (hidden + shape.mlp_size)
    if expert_layers:
        if shape.shared_expert_mlp_size:
            sums += expert_layers * len(in_mlp) * (hidden + shape.shared_expert_mlp_size)
        if "experts" in wanted:
            sums += expert_layers * shape.experts * 3 * (hidden + shape.expert_mlp_size)
    return rank * sums


def quantized_bytes(shape: ModelShape, quantization: str, end_bytes: float = 2.0) -> float:
    """Bytes of a frozen base. Block matrices are quantised; embedding and head take `end_bytes` per number."""
    ends = shape.vocab_size * shape.hidden_size * (1 if shape.tie_embeddings else 2)
    return (shape.parameters - ends) * QUANTIZED_BYTES[quantization] + ends * end_bytes
