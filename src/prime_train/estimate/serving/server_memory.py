"""Estimates the memory of a vLLM server on one of its GPUs: weights, profile run, graphs, and the KV cache. Pure."""

from __future__ import annotations

import math
from typing import NamedTuple

from prime_train.estimate.serving.server_setup import (
    ServeSetup,
    is_at_least,
    table_interval,
    table_interval_bytes,
    table_number,
    table_text,
)
from prime_train.estimate.serving.server_weights import adapter_term, weight_terms
from prime_train.estimate.values import ZERO, Hardware, Interval, RoleMemory, Term, find_largest

_BUDGET = "vLLM v1/worker/gpu_worker.py determine_available_memory"


class ServeMemory(NamedTuple):
    """Memory of one GPU of a server.

    `kv_tokens` and `max_concurrency` are the values that vLLM prints when it starts; `kv_tokens_low` is the value if
    the profile run uses its upper bound. `full_length_sequences` sequences of ctx_tokens run at once without
    preemption. `longest_ctx_tokens` is the longest max_model_len that fits, at most the model's own. `starts`: one
    request of ctx_tokens fits, which vLLM requires to start.
    """

    memory: RoleMemory
    kv_bytes: Interval
    kv_tokens: int
    kv_tokens_low: int
    full_length_sequences: int
    max_concurrency: float
    longest_ctx_tokens: int
    starts: bool


class _Needs(NamedTuple):
    """Memory beside the cache. `budgeted` is the part that counts against the fraction."""

    held: tuple[Term, ...]
    activation: Interval
    outside: tuple[Term, ...]
    budgeted: Interval


def inference_memory(setup: ServeSetup, hardware: Hardware) -> ServeMemory:
    """The memory of one GPU of the server. The terms add up to what torch reserves; NCCL and graphs are outside.

    If the weights alone exceed the budget, the cache is empty and `starts` is False.
    """
    needs = _needs_of(setup)
    taken = needs.budgeted
    if setup.cache_bytes:  # vLLM then ignores the fraction
        budget = taken.high + setup.cache_bytes
        kv = Interval(*3 * (float(setup.cache_bytes),))
    else:
        budget = setup.gpu_memory_fraction * hardware.usable_bytes
        kv = Interval(*(max(0.0, budget - size) for size in (taken.high, taken.typical, taken.low)))
    capacity, low = capacity_of(setup, kv.typical), capacity_of(setup, kv.low)
    return ServeMemory(
        memory=_role(setup, needs, kv),
        kv_bytes=kv,
        kv_tokens=capacity.tokens,
        kv_tokens_low=low.tokens,
        full_length_sequences=min(setup.sequences, int(capacity.concurrency)),
        max_concurrency=capacity.concurrency,
        longest_ctx_tokens=min(capacity.longest_ctx_tokens, setup.shape.ctx_tokens or capacity.longest_ctx_tokens),
        starts=capacity.concurrency >= 1 and budget <= hardware.usable_bytes,
    )


def smallest_fraction(setup: ServeSetup, hardware: Hardware, ctx_tokens: int, requests: float) -> float:
    """The smallest gpu_memory_utilization with which `requests` requests of ctx_tokens run at once.

    Uses the upper bound of the profile run. A result above 1 means that no fraction is enough.
    """
    return (_needs_of(setup).budgeted.high + bytes_for(setup, ctx_tokens, requests)) / hardware.usable_bytes


def budgeted_bytes(setup: ServeSetup) -> Interval:
    """Bytes beside the cache that count against the fraction: weights, adapters, profile run, NCCL, and graphs if the
    vLLM version counts them."""
    return _needs_of(setup).budgeted


def beyond_budget_bytes(setup: ServeSetup) -> float:
    """Upper bound of the bytes outside the fraction: CUDA graphs of a vLLM that captures them afterwards."""
    return 0.0 if setup.engine.graphs_in_budget else graph_bytes(setup).high


def _needs_of(setup: ServeSetup) -> _Needs:
    adapters = adapter_term(setup)
    held = weight_terms(setup) + ((adapters,) if adapters is not None else ())
    held_bytes = sum(term.bytes for term in held)
    activation, rest, graphs = activation_bytes(setup), non_torch_bytes(setup), graph_bytes(setup)
    counted = graphs if setup.engine.graphs_in_budget else ZERO
    budgeted = Interval(*(held_bytes + sum(parts) for parts in zip(activation, rest, counted, strict=True)))
    graph_size = graphs.typical if setup.engine.graphs_in_budget else graphs.high
    place = "inside the fraction" if setup.engine.graphs_in_budget else "beyond the fraction"
    outside = (
        Term("non_torch", rest.typical, f"{setup.gpus} GPUs", table_text("non_torch", "source")),
        Term("cuda_graphs", graph_size, f"{setup.shape.layers} layers, {place}", table_text("graphs", "source")),
    )
    return _Needs(held, activation, outside, budgeted)


def _role(setup: ServeSetup, needs: _Needs, kv_bytes: Interval) -> RoleMemory:
    """The terms, the cache last. A larger profile run shrinks the cache, so the bound grows only without a cache."""
    activation = Term("activation_peak", needs.activation.typical, *explain_activation(setup))
    size = "set in the config" if setup.cache_bytes else f"the rest of {setup.gpu_memory_fraction:g} x GPU"
    formula = f"{size}; {token_bytes(setup):.6g} B for each token"
    terms = (*needs.held, activation, Term("kv_cache", kv_bytes.typical, formula, _BUDGET))
    typical = sum(term.bytes for term in terms)
    held = sum(term.bytes for term in needs.held)
    high = max(typical, held + needs.activation.high + kv_bytes.low)
    low = min(typical, held + needs.activation.low + kv_bytes.high)
    return RoleMemory("inference", setup.gpus, terms, Interval(low, typical, high), needs.outside)


_FP32_BYTES = 4


def activation_bytes(setup: ServeSetup) -> Interval:
    """The peak of the profile run: the larger of sampling a full batch and its forward through one block.

    A vision tower runs its largest item too; its peak is known only within wide bounds.
    """
    return Interval(*(max(ends) for ends in zip(*(part.size for part in _activation_parts(setup)), strict=True)))


def explain_activation(setup: ServeSetup) -> tuple[str, str]:
    """(formula, source) of the largest part of the peak."""
    largest = max(_activation_parts(setup), key=lambda part: part.size.typical)
    return largest.formula, table_text("activation", largest.source_key)


class _ActivationPart(NamedTuple):
    size: Interval
    formula: str
    source_key: str


def _activation_parts(setup: ServeSetup) -> tuple[_ActivationPart, ...]:
    """The fp32 logits of a full batch, which are whole on every GPU; the forward; the vision tower, if there is one."""
    rows, vocab = min(setup.sequences, setup.batched_tokens), setup.shape.vocab_size
    copies = table_interval("activation", "sampler_copies")
    logits = f"{copies.typical:g} x {rows} sequences x {vocab} x 4 B"
    tokens = f"{setup.batched_tokens} tokens through one block x {setup.number_bytes:g} B"
    parts = (
        _ActivationPart(copies.times(rows * vocab * _FP32_BYTES), logits, "sampler_source"),
        _ActivationPart(forward_bytes(setup), tokens, "token_source"),
    )
    if not setup.shape.vision_parameters:
        return parts
    vision = table_interval_bytes("activation", "vision_encoder")
    return (*parts, _ActivationPart(vision, "the vision tower's largest item", "vision_source"))


def forward_bytes(setup: ServeSetup) -> Interval:
    """A full batch of tokens in one block: rows of the residual stream, and of the MLP or its experts."""
    shape = setup.shape
    mlp_rows = table_number("activation", "mlp_rows")
    inner = mlp_rows * shape.mlp_size / setup.tensor_parallel
    if shape.is_moe:
        share = 1 if setup.expert_parallel else setup.expert_gpus
        routed = shape.experts_per_token * (mlp_rows * shape.expert_mlp_size / share + shape.hidden_size)
        inner = max(inner if shape.dense_layers else 0.0, routed)
    streams = table_interval("activation", "hidden_rows").times(shape.hidden_size)
    return streams.plus(Interval(inner, inner, inner)).times(setup.batched_tokens * setup.number_bytes)


def non_torch_bytes(setup: ServeSetup) -> Interval:
    """Memory allocated outside torch: NCCL, workspaces, growth of the CUDA context."""
    if setup.tensor_parallel * setup.pipeline_parallel == 1:
        return table_interval_bytes("non_torch", "one_gpu")
    switched = setup.multicast and is_at_least(setup.version, table_text("non_torch", "multicast_from"))
    return table_interval_bytes("non_torch", "multicast" if switched else "several_gpus")


def graph_bytes(setup: ServeSetup) -> Interval:
    """CUDA graphs of the decode batches; none with enforce_eager."""
    if setup.eager:
        return ZERO
    kind = "one_gpu" if setup.gpus == 1 else "several_gpus"
    return table_interval_bytes("graphs", kind).times(setup.shape.layers / setup.pipeline_parallel)


_PADDING_LIMIT = 1.5  # up to this ratio between kinds of layers, the larger count sets the size of a group
_LONGEST = 2**26  # tokens, more than any model's context


class CacheLayout(NamedTuple):
    """The layer groups of a cache. `block_bytes`: one block over all layers of one group.

    A request holds, per full group, blocks for all its tokens; per sliding group, blocks for its window; per state
    group, one block.
    """

    block_tokens: int
    block_bytes: float
    full_groups: int
    sliding_groups: int
    state_groups: int

    @property
    def groups(self) -> int:
        return self.full_groups + self.sliding_groups + self.state_groups


class CacheCapacity(NamedTuple):
    """Capacity of a cache. vLLM prints `tokens` as "GPU KV cache size" and `concurrency` as "Maximum concurrency";
    `longest_ctx_tokens` is the longest single request."""

    blocks: int
    tokens: int
    concurrency: float
    longest_ctx_tokens: int


def token_bytes_of_layer(setup: ServeSetup) -> float:
    """Bytes of one token in one attention layer on one GPU. Tensor parallelism does not split latent attention."""
    shape = setup.shape
    if shape.kv_lora_rank:
        return (shape.kv_lora_rank + shape.rope_head_dim) * setup.cache_number_bytes
    return 2 * math.ceil(shape.kv_heads / setup.tensor_parallel) * shape.head_dim * setup.cache_number_bytes


def token_bytes(setup: ServeSetup) -> float:
    """Bytes of one token on one GPU, while it is inside the sliding window of every layer."""
    attending = setup.shape.layers - setup.shape.linear_layers
    return attending / setup.pipeline_parallel * token_bytes_of_layer(setup)


def layout_of(setup: ServeSetup) -> CacheLayout:
    """The groups into which vLLM divides the layers of one pipeline stage. Source: v1/core/kv_cache_utils.py,
    _get_kv_cache_groups_uniform_page_size; PagedAttention, arXiv 2309.06180, s. 4."""
    shape = setup.shape
    share = math.ceil(shape.layers / setup.pipeline_parallel) / shape.layers
    states = math.ceil(shape.linear_layers * share) if setup.shape.linear_state_bytes else 0
    attending = max(1, math.ceil((shape.layers - shape.linear_layers) * share))
    sliding = min(attending, math.ceil(shape.sliding_layers * share))
    if sliding and sliding < attending and not setup.engine.hybrid_cache:
        sliding = 0
    counts = [count for count in (attending - sliding, sliding, states) if count]
    size = min(counts)
    if max(counts) < size * _PADDING_LIMIT:
        size = max(counts)
    block_tokens = _block_tokens(setup)
    return CacheLayout(
        block_tokens=block_tokens,
        block_bytes=size * block_tokens * token_bytes_of_layer(setup),
        full_groups=math.ceil((attending - sliding) / size),
        sliding_groups=math.ceil(sliding / size),
        state_groups=math.ceil(states / size),
    )


def capacity_of(setup: ServeSetup, cache_bytes: float) -> CacheCapacity:
    """The capacity of `cache_bytes` on one GPU for requests of ctx_tokens. Source: v1/core/kv_cache_utils.py,
    get_max_concurrency_for_kv_cache_config and estimate_max_model_len."""
    layout = layout_of(setup)
    blocks = max(0, int(cache_bytes // layout.block_bytes))
    usable = max(0, blocks - setup.engine.null_blocks)
    longest = find_largest(0, _LONGEST, lambda length: blocks_per_request(setup, layout, length) <= usable)
    if setup.engine.tokens_by_request:
        # vLLM's log counts the null block, its scheduler does not
        tokens = int(blocks / blocks_per_request(setup, layout, setup.ctx_tokens) * setup.ctx_tokens)
    else:
        tokens = blocks // layout.groups * layout.block_tokens
    return CacheCapacity(blocks, tokens, concurrency_of(setup, cache_bytes), longest)


def concurrency_of(setup: ServeSetup, cache_bytes: float) -> float:
    """Requests of ctx_tokens that `cache_bytes` on one GPU hold at once."""
    layout = layout_of(setup)
    usable = max(0, int(cache_bytes // layout.block_bytes) - setup.engine.null_blocks)
    return usable / blocks_per_request(setup, layout, setup.ctx_tokens)


def blocks_per_request(setup: ServeSetup, layout: CacheLayout, ctx_tokens: int) -> int:
    """Most blocks that a request of ctx_tokens holds. A window may start inside a block, so it needs one more."""
    full = layout.full_groups * math.ceil(ctx_tokens / layout.block_tokens)
    in_flight = setup.engine.batches_in_flight * setup.batched_tokens
    seen = min(setup.shape.sliding_window - 1 + in_flight, ctx_tokens)
    sliding = layout.sliding_groups * (math.ceil(seen / layout.block_tokens) + 1)
    return max(1, full + sliding + layout.state_groups)


def bytes_for(setup: ServeSetup, ctx_tokens: int, requests: float = 1.0) -> float:
    """Bytes of cache on one GPU that `requests` requests of ctx_tokens need."""
    layout = layout_of(setup)
    blocks = math.ceil(requests * blocks_per_request(setup, layout, ctx_tokens)) + setup.engine.null_blocks
    return blocks * layout.block_bytes


def _block_tokens(setup: ServeSetup) -> int:
    """Tokens of a block, increased in steps of 16 until a block is as large as a state of linear attention.
    Source: vLLM platforms/interface.py, "Setting attention block size to N tokens"."""
    if not setup.shape.linear_state_bytes:
        return setup.block_tokens
    state = setup.shape.linear_state_bytes / setup.tensor_parallel
    needed = math.ceil(state / token_bytes_of_layer(setup) / setup.block_tokens) * setup.block_tokens
    return max(setup.block_tokens, needed)
