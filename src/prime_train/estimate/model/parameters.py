"""Counts the parameters of a decoder from its config, part by part. Pure.

Sources: grouped-query attention, arXiv 2305.13245; gated MLP, arXiv 2002.05202; latent attention, arXiv 2405.04434,
s. 2.1; gated delta rule, arXiv 2412.06464 as Qwen3-Next has it; each family's modelling code in transformers 5.
"""

from __future__ import annotations

import re

from prime_train.estimate.model.blocks import Blocks, BlockWidths, Numbers, ShapeError
from prime_train.estimate.model.families import DecoderFamily


def attention_parameters(numbers: Numbers, family: DecoderFamily, widths: BlockWidths) -> int:
    """Parameters of one softmax attention, including its norms of queries and keys."""
    if numbers.raw("kv_lora_rank"):
        return _latent_attention(numbers, widths)
    hidden, queries, keys = widths.hidden_size, widths.heads * widths.head_dim, widths.kv_heads * widths.head_dim
    made = queries * (2 if family.gated_attention else 1)
    count = hidden * made + 2 * hidden * keys + queries * hidden
    biased = _biases(numbers, family)
    if biased:
        count += made + 2 * keys + (hidden if biased == "all" else 0)
    if family.query_norm == "wide":
        count += queries + keys
    elif family.query_norm and (not family.query_norm_key or numbers.flag(family.query_norm_key)):
        count += 2 * widths.head_dim
    return count + (widths.heads if family.attention_sinks else 0)


def _biases(numbers: Numbers, family: DecoderFamily) -> str:
    if numbers.raw("no_bias") is True:
        return ""
    if not family.bias_key or numbers.raw(family.bias_key) is None:
        return family.attention_bias
    switched_on = family.attention_bias or family.biased
    return switched_on if numbers.flag(family.bias_key) else ""


def _latent_attention(numbers: Numbers, widths: BlockWidths) -> int:
    """Parameters of one latent attention: low-rank queries, and the low-rank keys that are cached.

    Source: arXiv 2405.04434, s. 2.1.
    """
    nope, rope = numbers.integer("qk_nope_head_dim"), numbers.integer("qk_rope_head_dim")
    value, kv_rank = numbers.integer("v_head_dim"), numbers.integer("kv_lora_rank")
    queries = widths.heads * (nope + rope)
    if numbers.raw("q_lora_rank"):
        rank = numbers.integer("q_lora_rank")
        count = widths.hidden_size * rank + rank + rank * queries
    else:
        count = widths.hidden_size * queries
    count += widths.hidden_size * (kv_rank + rope) + kv_rank + kv_rank * widths.heads * (nope + value)
    return count + widths.heads * value * widths.hidden_size + _indexer_parameters(numbers, widths.hidden_size)


def _indexer_parameters(numbers: Numbers, hidden: int) -> int:
    """The indexer that chooses tokens for sparse attention. Source: deepseek_v32 in transformers 5."""
    heads = numbers.integer("index_n_heads", default=0, least=0)
    if not heads:
        return 0
    head_dim = numbers.integer("index_head_dim")
    return numbers.integer("q_lora_rank") * heads * head_dim + hidden * (head_dim + heads) + 2 * head_dim


def linear_attention_parameters(numbers: Numbers, hidden: int) -> int:
    """Parameters of one gated delta net: projections, short convolution, decay, norm, output."""
    if numbers.raw("linear_num_key_heads") is None:
        return _delta_attention(numbers, hidden)
    key_heads, value_heads = numbers.integer("linear_num_key_heads"), numbers.integer("linear_num_value_heads")
    key_size = key_heads * numbers.integer("linear_key_head_dim")
    value_dim = numbers.integer("linear_value_head_dim")
    value_size = value_heads * value_dim
    projections = hidden * (2 * key_size + 2 * value_size + 2 * value_heads)
    convolution = (2 * key_size + value_size) * numbers.integer("linear_conv_kernel_dim", default=4)
    return projections + convolution + 2 * value_heads + value_dim + value_size * hidden


def _delta_sizes(numbers: Numbers) -> tuple[int, int, int]:
    """(heads, head_dim, convolution width) for Kimi delta attention, by either config's names."""
    table = Numbers(numbers.table("linear_attn_config") or {}, {})
    if numbers.table("linear_attn_config"):
        return table.integer("num_heads"), table.integer("head_dim"), table.integer("short_conv_kernel_size", default=4)
    width = numbers.integer("linear_conv_kernel_dim", default=4)
    return numbers.integer("linear_num_heads"), numbers.integer("linear_head_dim"), width


def _delta_attention(numbers: Numbers, hidden: int) -> int:
    """Parameters in one Kimi delta attention, whose forget and output gates have a low rank.

    Source: Kimi Linear, arXiv 2510.26692, s. 4; its modelling code in transformers 5.
    """
    heads, head_dim, width = _delta_sizes(numbers)
    size = heads * head_dim
    projections = 4 * hidden * size + hidden * heads
    gates = 2 * (hidden * head_dim + head_dim * size)
    return projections + gates + 3 * size * width + size + heads + head_dim


def linear_state_bytes(numbers: Numbers) -> float:
    """Bytes that one gated delta net keeps per sequence: a matrix per value head, and the end of the convolution.

    Source: vLLM, MambaStateShapeCalculator.gated_delta_net_state_shape; its log of Qwen3-Next-80B-A3B on two GPUs pads
    half of this by 1.49 % to 544 tokens of attention.
    """
    if numbers.raw("linear_num_key_heads") is None:
        heads, head_dim, width = _delta_sizes(numbers)
        return heads * head_dim * (head_dim * 4.0 + 2.0 * 3 * (width - 1))  # an fp32 matrix per head
    keys = numbers.integer("linear_num_key_heads") * numbers.integer("linear_key_head_dim")
    values = numbers.integer("linear_num_value_heads") * numbers.integer("linear_value_head_dim")
    tail = (2 * keys + values) * (numbers.integer("linear_conv_kernel_dim", default=4) - 1)
    state = 4.0 if numbers.raw("mamba_ssm_dtype") == "float32" else 2.0
    return values * numbers.integer("linear_key_head_dim") * state + 2.0 * tail


def mlp_parameters(hidden: int, inner: int, family: DecoderFamily, *, biased: bool) -> int:
    """Parameters of one MLP of two matrices, three if gated."""
    bias = (2 if family.gated else 1) * inner + hidden if biased else 0
    return (3 if family.gated else 2) * hidden * inner + bias


def blocks_parameters(numbers: Numbers, family: DecoderFamily, widths: BlockWidths, blocks: Blocks) -> int:
    """Parameters of all blocks together."""
    hidden = widths.hidden_size
    unbiased = numbers.raw("no_bias") is True
    biased_mlp = numbers.flag("mlp_bias", "use_mlp_bias", default=family.mlp_bias) and not unbiased
    attention = (blocks.layers - blocks.linear_layers) * attention_parameters(numbers, family, widths)
    if blocks.linear_layers:
        attention += blocks.linear_layers * linear_attention_parameters(numbers, hidden)
    norms = blocks.layers * norms_per_block(numbers, family) * norm_parameters(numbers, family, hidden)
    dense = blocks.dense_layers * mlp_parameters(hidden, blocks.mlp_size, family, biased=biased_mlp)
    expert = mlp_parameters(hidden, blocks.expert_mlp_size, family, biased=biased_mlp)
    router = blocks.experts * (hidden + family.router_bias + family.router_correction)
    shared = mlp_parameters(hidden, blocks.shared_expert_mlp_size, family, biased=False)
    shared += hidden if family.shared_gate and blocks.shared_expert_mlp_size else 0
    routed = (blocks.layers - blocks.dense_layers) * (blocks.experts * expert + router + shared)
    return attention + norms + dense + routed


def decoder_parameters(
    numbers: Numbers, family: DecoderFamily, widths: BlockWidths, blocks: Blocks, *, tied: bool
) -> int:
    """Parameters of embedding, positions, blocks, last norm, and the head if it is not tied to the embedding."""
    vocab_size = numbers.integer("vocab_size", "padded_vocab_size")
    head = 0 if tied else vocab_size * (widths.hidden_size + family.head_bias)
    ends = vocab_size * widths.hidden_size + head + norm_parameters(numbers, family, widths.hidden_size)
    ends += positions_parameters(numbers, family, widths.hidden_size)
    return ends + blocks_parameters(numbers, family, widths, blocks)


def norms_per_block(numbers: Numbers, family: DecoderFamily) -> int:
    """Norms of one block: one if attention and MLP run in parallel on it (falcon-7b), else the family's number."""
    if numbers.raw("parallel_attn") is True and numbers.raw("new_decoder_architecture") is False:
        return 1
    return family.norms


def norm_parameters(numbers: Numbers, family: DecoderFamily, hidden: int) -> int:
    """Parameters of one norm: a scale, and an offset in a LayerNorm with bias; 0 if the family's norms have none."""
    if family.norms == 0:
        return 0
    return hidden * (2 if family.norm_bias and numbers.raw("no_bias") is not True else 1)


def positions_parameters(numbers: Numbers, family: DecoderFamily, hidden: int) -> int:
    """Parameters of learned positions, if there are any (gpt2; llm-foundry's mpt without ALiBi)."""
    if family.learned_positions:
        return numbers.integer("n_positions", "max_position_embeddings") * hidden
    if numbers.raw("learned_pos_emb") is True and not numbers.table("attn_config").get("alibi", False):
        return numbers.integer("max_seq_len") * hidden
    return 0


def vision_parameters(numbers: Numbers, hidden: int) -> int:
    """Approximate parameters of the vision tower and its projector, 0 without one; norms and biases are left out.

    Source: Qwen2-VL, arXiv 2409.12191, s. 2.1 (a ViT whose patches are merged two by two); SigLIP as Gemma 3 has it.
    """
    table = numbers.table("vision_config")
    audio = _conformer_parameters(Numbers(numbers.table("audio_config"), {}), hidden)
    if not table:
        return audio
    vision = Numbers(table, {})
    if (named := re.search(r"_(\d+)m_", str(vision.raw("architecture")))) is not None:  # mobilenetv5_300m_enc
        return int(named[1]) * 10**6 + audio
    try:
        width = vision.integer("embed_dim") if vision.raw("embed_dim") else vision.integer("hidden_size")
        depth = vision.integer("depth", "num_hidden_layers")
        inner = vision.integer("intermediate_size", default=4 * width)
    except ShapeError as error:
        raise ShapeError(f"vision_config.{error.field}", error.what) from None
    gated = vision.raw("hidden_act") == "silu"
    blocks = depth * (4 * width**2 + (3 if gated else 2) * width * inner)
    merged = width * vision.integer("spatial_merge_size", default=1) ** 2
    merger = merged**2 + merged * hidden if merged > width else width * hidden
    deep = vision.raw("deepstack_visual_indexes") or ()  # Qwen3-VL merges the features of these layers too
    return blocks + merger * (1 + (len(deep) if isinstance(deep, list) else 0)) + audio


def _conformer_parameters(audio: Numbers, hidden: int) -> int:
    """Approximate parameters in the audio encoder that Gemma 3n and 4 have, 0 for any other.

    Attention with five matrices, two MLPs four times as wide, a gated convolution. Source: Conformer, arXiv
    2005.08100, s. 2, and modelling code of gemma3n in transformers 5.
    """
    if audio.raw("model_type") not in ("gemma3n_audio", "gemma4_audio"):
        return 0
    width = audio.integer("hidden_size")
    return audio.integer("conf_num_hidden_layers", "num_hidden_layers") * 24 * width**2 + width * hidden
