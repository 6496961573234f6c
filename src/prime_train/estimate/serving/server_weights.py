"""Computes the bytes of weights and adapter slots on one GPU of a vLLM server. Pure."""

from __future__ import annotations

import math
from typing import NamedTuple

from prime_train.core.units import GIB
from prime_train.estimate.model.shape import ModelShape
from prime_train.estimate.serving.server_setup import ServeSetup, quantized_bytes
from prime_train.estimate.values import Term

_VOCAB_PADDING = 64  # vLLM, DEFAULT_VOCAB_PADDING_SIZE
# torch, c10/cuda/CUDACachingAllocator: kMinLargeAlloc, kRoundLarge, kSmallSize. Blocks from 10 MiB on are rounded up to
# 2 MiB; an unused rest of more than 1 MiB is split off.
_LARGE_BLOCK, _GRANULE, _SPLIT = 10 * 2**20, 2 * 2**20, 2**20
_ALLOCATOR = "torch c10/cuda/CUDACachingAllocator.cpp; vLLM's logs of Qwen2.5-32B on 2 GPUs (30.71 GiB)"
_EXPERTS_ONLY = "mxfp4"  # gpt-oss: attention, routers and embeddings are not quantised
_SHARDING = "Megatron-LM, arXiv 1909.08053, s. 3; vLLM model_executor/layers/linear.py"


class Parts(NamedTuple):
    """Parameter counts of a model by kind, over all GPUs."""

    embeddings: int
    norms_and_routers: int
    keys_and_values: int
    latent: int
    experts: int
    other_matrices: int
    vision: int


def parts_of(shape: ModelShape) -> Parts:
    """The parameters of a shape by how vLLM shards them. Parameters without a formula count as other matrices."""
    hidden, attending = shape.hidden_size, shape.layers - shape.linear_layers
    routed = (shape.layers - shape.dense_layers) if shape.is_moe else 0
    query_norms = 2 * shape.head_dim * attending if shape.qk_norm else 0
    is_latent = shape.kv_lora_rank > 0
    known = Parts(
        embeddings=shape.vocab_size * hidden * (1 if shape.tie_embeddings else 2),
        norms_and_routers=(2 * shape.layers + 1) * hidden + query_norms + routed * shape.experts * hidden,
        keys_and_values=0 if is_latent else 2 * attending * hidden * shape.kv_heads * shape.head_dim,
        latent=attending * hidden * (shape.kv_lora_rank + shape.rope_head_dim) if is_latent else 0,
        experts=routed * shape.experts * (3 if shape.gated_mlp else 2) * hidden * shape.expert_mlp_size,
        other_matrices=0,
        vision=shape.vision_parameters,
    )
    return known._replace(other_matrices=max(0, shape.parameters - sum(known)))


def number_bytes_of_matrices(setup: ServeSetup, parts: Parts) -> float:
    """Bytes of one number in the matrices of the blocks, scales included. MXFP4 quantises experts only.

    For a quantised checkpoint: its stored bytes minus those of the parts that are not quantised.
    """
    if not setup.quantization or setup.quantization == _EXPERTS_ONLY:
        return setup.number_bytes
    shape = setup.shape
    whole = parts.embeddings + parts.norms_and_routers + parts.vision
    matrices = sum(parts) - whole
    if setup.quantization == shape.quantization and 0 < shape.weight_bytes < 2.0 and matrices > 0:
        return max(0.25, (shape.weight_bytes * sum(parts) - setup.number_bytes * whole) / matrices)
    known = quantized_bytes(setup.quantization)
    return setup.number_bytes if known is None else known


def _expert_number_bytes(setup: ServeSetup, packed: float) -> float:
    """Bytes of one number of an expert; the matrices are padded for the MXFP4 kernel.

    Source: vLLM quantization/mxfp4.py, Marlin: inner width to 128, residual width to 256.
    """
    known = quantized_bytes(setup.quantization) if setup.quantization == _EXPERTS_ONLY else None
    if known is None:
        return packed
    hidden, inner = setup.shape.hidden_size, setup.shape.expert_mlp_size
    padded = math.ceil(hidden / 256) * 256 * math.ceil(inner / 128) * 128
    return known * padded / (hidden * inner)


def weight_terms(setup: ServeSetup) -> tuple[Term, ...]:
    """The weights on the fullest GPU by part; vLLM prints their sum as "Model loading took X GiB"."""
    parts, tensor = parts_of(setup.shape), setup.tensor_parallel
    stage = math.ceil(setup.shape.layers / setup.pipeline_parallel) / setup.shape.layers
    whole, packed = setup.number_bytes, number_bytes_of_matrices(setup, parts)
    copies = max(1.0, tensor / setup.shape.kv_heads) if setup.shape.kv_heads else 1.0
    cut = parts.other_matrices + parts.keys_and_values * copies
    matrices = stage * packed * (cut / tensor + parts.latent)
    terms = [
        Term(
            "embeddings",
            _embedding_bytes(setup),
            f"{_vocabulary_matrices(setup)} x vocabulary / {tensor} x {whole:g} B",
            _SHARDING,
        ),
        Term("matrices", matrices, f"{stage * cut:.4g} / {tensor} x {packed:.4g} B", _SHARDING),
        Term("norms_and_routers", stage * whole * parts.norms_and_routers, "on every GPU", _SHARDING),
        Term("rotary_table", _rotary_bytes(setup), "positions x rotary width", "vLLM RotaryEmbedding"),
    ]
    if parts.experts:
        width = _expert_number_bytes(setup, packed)
        share = 1 / setup.expert_gpus
        if setup.expert_parallel:  # whole experts instead of a slice of each
            share = math.ceil(setup.shape.experts / setup.expert_gpus) / setup.shape.experts
        experts = stage * width * parts.experts * share
        terms.append(Term("experts", experts, f"{parts.experts:.4g} / {setup.expert_gpus} x {width:.4g} B", _SHARDING))
    if parts.vision:
        terms.append(Term("vision_tower", parts.vision * whole / tensor, f"/ {tensor}", "vLLM mm_encoder_tp_mode"))
    if parts.latent and packed < whole:
        terms.append(_absorbed_projections(setup, stage))
    terms.append(Term("block_rounding", _rounding_bytes(setup, packed), "blocks of 2 MiB from 10 MiB on", _ALLOCATOR))
    return tuple(terms)


def adapter_term(setup: ServeSetup) -> Term | None:
    """The adapter slots, which vLLM allocates at its start for every matrix of a block; None without adapters.

    A column-parallel layer keeps all of A on each GPU and splits B; a row-parallel layer splits A and keeps B.
    Source: vLLM lora/layers/base_linear.py create_lora_weights.
    """
    if not setup.lora_slots:
        return None
    shape, tensor = setup.shape, setup.tensor_parallel
    hidden = shape.hidden_size
    queries = shape.heads * shape.head_dim / tensor
    keys = math.ceil(shape.kv_heads / tensor) * shape.head_dim
    attention = (hidden + queries) + 2 * (hidden + keys) + (queries + hidden)
    dense_layers = shape.dense_layers if shape.is_moe else shape.layers
    rows = shape.layers * attention + dense_layers * _mlp_rows(shape, shape.mlp_size / tensor)
    if shape.is_moe and shape.expert_mlp_size:
        local = math.ceil(shape.experts / setup.expert_gpus) if setup.expert_parallel else shape.experts
        width = shape.expert_mlp_size / (1 if setup.expert_parallel else setup.expert_gpus)
        rows += (shape.layers - shape.dense_layers) * local * _mlp_rows(shape, width)
    size = setup.lora_slots * setup.lora_rank * rows / setup.pipeline_parallel * setup.number_bytes
    formula = f"{setup.lora_slots} slots x rank {setup.lora_rank} x {rows:.4g} x {setup.number_bytes:g} B"
    return Term("adapter_slots", size, formula, "vLLM lora/layers/base_linear.py")


def _mlp_rows(shape: ModelShape, width: float) -> float:
    return (3 if shape.gated_mlp else 2) * (shape.hidden_size + width)


def _vocabulary_matrices(setup: ServeSetup) -> int:
    """Matrices of vocabulary size on the fullest stage: embedding and head, unless tied or on different stages."""
    return 1 if setup.shape.tie_embeddings or setup.pipeline_parallel > 1 else 2


def _embedding_bytes(setup: ServeSetup) -> float:
    padded = math.ceil(setup.shape.vocab_size / _VOCAB_PADDING) * _VOCAB_PADDING
    rows = math.ceil(padded / setup.tensor_parallel)
    return _vocabulary_matrices(setup) * rows * setup.shape.hidden_size * setup.number_bytes


def _rotary_bytes(setup: ServeSetup) -> float:
    """Cosines and sines of every position of the model.

    Sliding-window layers have a table of their own; the table of multimodal positions is four times as long. Source:
    vLLM MRotaryEmbedding.
    """
    shape = setup.shape
    tables = 4 if shape.multimodal_rope else 2 if 0 < shape.sliding_layers < shape.layers else 1
    positions = max(shape.ctx_tokens, setup.ctx_tokens)
    return tables * positions * (shape.rope_head_dim or shape.head_dim) * setup.number_bytes


def _absorbed_projections(setup: ServeSetup, stage: float) -> Term:
    """The two halves of a quantised kv_b_proj, which latent attention keeps unquantised too.

    Source: vLLM MLAAttention.process_weights_after_loading.
    """
    shape = setup.shape
    width = 2 * max(0, shape.head_dim - shape.rope_head_dim)
    numbers = stage * shape.layers * shape.heads / setup.tensor_parallel * width * shape.kv_lora_rank
    return Term("absorbed_projections", numbers * setup.number_bytes, f"{numbers:.4g} x 2 B", "vLLM MLAAttention")


def _rounding_bytes(setup: ServeSetup, packed: float) -> float:
    """Bytes lost to rounding in torch's allocator: up to 1 MiB per large matrix."""
    shape, tensor = setup.shape, setup.tensor_parallel
    layers = math.ceil(shape.layers / setup.pipeline_parallel)
    hidden, queries = shape.hidden_size, shape.heads * shape.head_dim // tensor
    keys = math.ceil(shape.kv_heads / tensor) * shape.head_dim
    mlp = shape.mlp_size // tensor
    sizes = [packed * hidden * queries]
    if not shape.kv_lora_rank:
        sizes.append(packed * hidden * (queries + 2 * keys))
    if not shape.is_moe:
        sizes += [packed * hidden * mlp * (2 if shape.gated_mlp else 1), packed * hidden * mlp]
    ends = _vocabulary_matrices(setup)
    return layers * sum(map(_rounding_waste, sizes)) + ends * _rounding_waste(_embedding_bytes(setup) / ends)


def _rounding_waste(size_bytes: float) -> float:
    if size_bytes < _LARGE_BLOCK:
        return 0.0
    left = math.ceil(size_bytes / _GRANULE) * _GRANULE - size_bytes
    return left if left <= _SPLIT else 0.0


def weight_gib(setup: ServeSetup) -> float:
    """The weights on one GPU in GiB, without adapter slots."""
    return sum(term.bytes for term in weight_terms(setup)) / GIB
