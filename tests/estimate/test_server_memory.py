"""The memory of a server against what vLLM printed, and what must hold for every server."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_train.core.units import GIB
from prime_train.estimate.model.shape import ModelShape
from prime_train.estimate.serving.server_memory import (
    activation_bytes,
    bytes_for,
    capacity_of,
    graph_bytes,
    inference_memory,
    smallest_fraction,
)
from prime_train.estimate.serving.server_setup import ServeSetup, default_setup, engine_of, serve_setup_of
from prime_train.estimate.serving.server_weights import weight_gib
from prime_train.spec import Data, Run, RunSpec, Source, prime_rl_parts
from tests.estimate.served import ROWS, Served, gpu, named, shape_of


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


@pytest.mark.parametrize("row", [row for row in ROWS if row.activation_gib is not None], ids=named)
def test_the_trial_run_lies_in_its_interval(row: Served) -> None:
    assert row.activation_gib is not None
    peak = activation_bytes(row.setup)
    assert peak.low * 0.98 <= row.activation_gib * GIB <= peak.high * 1.08  # the log rounds 0.19 GiB to two digits


@pytest.mark.parametrize(
    "row", [row for row in ROWS if row.kv_gib is not None and "gpu_memory_fraction" in row.change], ids=named
)
def test_the_cache_that_is_left_lies_in_its_interval(row: Served) -> None:
    assert row.kv_gib is not None
    left = inference_memory(row.setup, row.hardware).kv_bytes
    assert left.low / GIB - 0.1 <= row.kv_gib <= left.high / GIB + 0.1


def test_graphs_move_into_the_fraction_with_the_version() -> None:
    shape, hardware = shape_of("Qwen/Qwen3-8B"), gpu(79.2, "a100-80gb")
    before = default_setup(shape, hardware, "0.20.0")._replace(gpu_memory_fraction=0.9)
    after = default_setup(shape, hardware, "0.21.0")._replace(gpu_memory_fraction=0.9)
    assert not engine_of("0.20.2").graphs_in_budget
    lost = inference_memory(before, hardware).kv_bytes.typical - inference_memory(after, hardware).kv_bytes.typical
    assert lost == pytest.approx(graph_bytes(after).typical)
    eager = after._replace(eager=True)
    kept = inference_memory(eager, hardware).kv_bytes.typical
    assert kept == pytest.approx(inference_memory(before, hardware).kv_bytes.typical)


def test_what_a_run_asks_for_is_what_is_served() -> None:
    run = _run(
        prime_rl_parts.Inference(
            ctx_tokens=4096, tensor_parallel=2, gpu_memory_fraction=0.5, max_sequences=64, enforce_eager=True
        ),
        prime_rl_parts.Deployment(infer_gpus=4),
    )
    setup = serve_setup_of(run, gpu(79.2), shape_of("Qwen/Qwen3-8B"))
    assert (setup.ctx_tokens, setup.sequences, setup.gpu_memory_fraction) == (4096, 64, 0.5)
    assert (setup.tensor_parallel, setup.data_parallel, setup.gpus) == (2, 2, 4)
    assert setup.eager
    assert setup.lora_slots == 0


def test_what_is_passed_through_to_vllm_counts() -> None:
    run = _run(prime_rl_parts.Inference(cache_dtype="fp8_e4m3", batched_tokens=512, dtype="float32"), None)
    setup = serve_setup_of(run, gpu(79.2), shape_of("Qwen/Qwen3-8B"))
    assert (setup.number_bytes, setup.cache_number_bytes, setup.batched_tokens) == (4.0, 1.0, 512)
    automatic = _run(prime_rl_parts.Inference(cache_dtype="auto", dtype="float32"), None)
    assert serve_setup_of(automatic, gpu(79.2), shape_of("Qwen/Qwen3-8B")).cache_number_bytes == 4.0


def test_a_trained_adapter_takes_slots_of_its_server() -> None:
    run = _run(prime_rl_parts.Inference(max_loras=8), None)
    with_adapter = RunSpec(run=run.run, data=run.data, inference=run.inference, lora=prime_rl_parts.Lora(rank=32))
    setup = serve_setup_of(with_adapter, gpu(79.2), shape_of("Qwen/Qwen3-8B"))
    assert (setup.lora_slots, setup.lora_rank) == (8, 32)


def test_the_generation_of_a_run_decides_the_version() -> None:
    run = _run(prime_rl_parts.Inference(), None)
    old = RunSpec(
        run=run.run, data=run.data, inference=run.inference, launch=prime_rl_parts.Launch(generation="2026-01")
    )
    assert not serve_setup_of(old, gpu(79.2), shape_of("Qwen/Qwen3-8B")).engine.graphs_in_budget
    assert serve_setup_of(run, gpu(79.2), shape_of("Qwen/Qwen3-8B")).engine.graphs_in_budget


def test_a_model_that_is_larger_than_the_gpu_does_not_start() -> None:
    memory = inference_memory(default_setup(shape_of("meta-llama/Llama-3.1-70B"), gpu(79.2)), gpu(79.2))
    assert not memory.starts
    assert memory.kv_tokens == memory.full_length_sequences == memory.longest_ctx_tokens == 0
    assert memory.memory.needed_bytes > 79.2 * GIB


def test_no_longer_context_is_offered_than_the_model_was_made_for() -> None:
    shape, hardware = shape_of("Qwen/Qwen3-0.6B")._replace(ctx_tokens=40960), gpu(79.2)
    assert inference_memory(default_setup(shape, hardware), hardware).longest_ctx_tokens == 40960
    unknown = default_setup(shape._replace(ctx_tokens=0), hardware, ctx_tokens=4096)
    assert inference_memory(unknown, hardware).longest_ctx_tokens > 100_000


def _run(inference: prime_rl_parts.Inference, deployment: prime_rl_parts.Deployment | None) -> RunSpec:
    data = Data(sources=(Source(kind="python-stdlib"),))
    return RunSpec(run=Run(name="served", max_steps=10), data=data, inference=inference, deployment=deployment)


_NAMES = sorted({row.model for row in ROWS})


@st.composite
def _setups(draw: st.DrawFn) -> ServeSetup:
    shape: ModelShape = shape_of(draw(st.sampled_from(_NAMES)))
    hardware = gpu(draw(st.sampled_from((23.5, 79.2, 139.8, 178.4))))
    setup = default_setup(shape, hardware, draw(st.sampled_from(("0.7", "0.9", "0.10", "0.21", "0.32"))))
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


@pytest.mark.slow
@given(_setups())
def test_the_parts_add_up(setup: ServeSetup) -> None:
    memory = inference_memory(setup, gpu(79.2)).memory
    assert math.isclose(sum(term.bytes for term in memory.terms), memory.reserved.typical, rel_tol=1e-9)
    assert all(term.bytes >= 0 and term.formula and term.source for term in memory.terms + memory.outside)
    assert memory.reserved.low <= memory.reserved.typical <= memory.reserved.high


@pytest.mark.slow
@given(_setups(), st.integers(1, 65536), st.integers(0, 512))
def test_needs_never_fall_with_longer_or_more_requests(setup: ServeSetup, more_tokens: int, more_requests: int) -> None:
    longer = setup._replace(ctx_tokens=setup.ctx_tokens + more_tokens)
    assert bytes_for(longer, longer.ctx_tokens, 8) >= bytes_for(setup, setup.ctx_tokens, 8)
    wider = setup._replace(sequences=setup.sequences + more_requests)
    assert activation_bytes(wider).typical >= activation_bytes(setup).typical
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


@pytest.mark.slow
@given(_setups(), st.floats(0.0, 0.9))
def test_tokens_never_fall_with_a_larger_fraction(setup: ServeSetup, more: float) -> None:
    hardware = gpu(79.2)
    larger = setup._replace(gpu_memory_fraction=setup.gpu_memory_fraction + more)
    assert inference_memory(larger, hardware).kv_tokens >= inference_memory(setup, hardware).kv_tokens


@pytest.mark.slow
@given(_setups(), st.floats(0.5, 64))
def test_the_smallest_fraction_holds_what_was_asked(setup: ServeSetup, requests: float) -> None:
    hardware = gpu(79.2)
    fraction = smallest_fraction(setup, hardware, setup.ctx_tokens, requests)
    memory = inference_memory(setup._replace(gpu_memory_fraction=fraction * (1 + 1e-12)), hardware)
    assert memory.kv_bytes.low + 1024 >= bytes_for(setup, setup.ctx_tokens, requests)


def test_a_cache_of_given_size_is_that_size_whatever_the_fraction() -> None:
    run = _run(prime_rl_parts.Inference(cache_bytes=8 * 2**30, gpu_memory_fraction=0.2), None)
    setup = serve_setup_of(run, gpu(79.2), shape_of("Qwen/Qwen3-8B"))
    memory = inference_memory(setup, gpu(79.2))
    assert memory.kv_bytes.low == memory.kv_bytes.high == 8 * GIB
    assert memory.kv_tokens == capacity_of(setup, 8 * GIB).tokens
    assert memory.starts
    assert not inference_memory(setup._replace(cache_bytes=70 * 2**30), gpu(79.2)).starts
