"""Divides the KV cache of a vLLM server into blocks, and counts the tokens and requests that it holds. Pure."""

from __future__ import annotations

import math
from typing import NamedTuple

from prime_train.estimate.serving.server_setup import ServeSetup
from prime_train.estimate.values import find_largest

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
    """Capacity of a cache.

    vLLM prints `tokens` as "GPU KV cache size" and `concurrency` as "Maximum concurrency"; `longest_ctx_tokens` is the
    longest single request.
    """

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
    """The groups into which vLLM divides the layers of one pipeline stage.

    Source: v1/core/kv_cache_utils.py, _get_kv_cache_groups_uniform_page_size; PagedAttention, arXiv 2309.06180, s. 4.
    """
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
    """The capacity of `cache_bytes` on one GPU for requests of ctx_tokens.

    Source: v1/core/kv_cache_utils.py, get_max_concurrency_for_kv_cache_config and estimate_max_model_len.
    """
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

    Source: vLLM platforms/interface.py, "Setting attention block size to N tokens".
    """
    if not setup.shape.linear_state_bytes:
        return setup.block_tokens
    state = setup.shape.linear_state_bytes / setup.tensor_parallel
    needed = math.ceil(state / token_bytes_of_layer(setup) / setup.block_tokens) * setup.block_tokens
    return max(setup.block_tokens, needed)
