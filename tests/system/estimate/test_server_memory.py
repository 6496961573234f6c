"""The memory of a server against what vLLM printed, and what must hold for every server."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_train.core.units import GIB
from prime_train.estimate.model.shape import ModelShape
from prime_train.estimate.serving.server_cache import bytes_for, capacity_of
from prime_train.estimate.serving.server_memory import (
    activation_bytes,
    beyond_budget_bytes,
    budgeted_bytes,
    explain_activation,
    forward_bytes,
    graph_bytes,
    inference_memory,
    non_torch_bytes,
    smallest_fraction,
)
from prime_train.estimate.serving.server_setup import (
    ServeSetup,
    default_setup,
    engine_of,
    serve_setup_of,
    table_interval,
    table_interval_bytes,
    table_number,
    table_text,
)
from prime_train.estimate.serving.server_weights import adapter_term, weight_gib, weight_terms
from prime_train.spec import Data, Run, RunSpec, Source, prime_rl_parts
from tests.unit.estimate.served import ROWS, Served, gpu, named, shape_of


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
    with_adapter = RunSpec(
        run=run.run,
        data=run.data,
        inference=run.inference,
        format="prime-rl",
        prime_rl=prime_rl_parts.PrimeRl(lora=prime_rl_parts.Lora(rank=32)),
    )
    setup = serve_setup_of(with_adapter, gpu(79.2), shape_of("Qwen/Qwen3-8B"))
    assert (setup.lora_slots, setup.lora_rank) == (8, 32)


def test_the_generation_of_a_run_decides_the_version() -> None:
    run = _run(prime_rl_parts.Inference(), None)
    old = RunSpec(
        run=run.run,
        data=run.data,
        inference=run.inference,
        format="prime-rl",
        prime_rl=prime_rl_parts.PrimeRl(launch=prime_rl_parts.LaunchPart(generation="2026-01")),
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
    return RunSpec(
        run=Run(name="served", max_steps=10),
        data=data,
        inference=inference,
        format="prime-rl",
        prime_rl=prime_rl_parts.PrimeRl(deployment=deployment),
    )


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


def test_a_cache_of_given_size_is_that_size_for_any_fraction() -> None:
    run = _run(prime_rl_parts.Inference(cache_bytes=8 * 2**30, gpu_memory_fraction=0.2), None)
    setup = serve_setup_of(run, gpu(79.2), shape_of("Qwen/Qwen3-8B"))
    memory = inference_memory(setup, gpu(79.2))
    assert memory.kv_bytes.low == memory.kv_bytes.high == 8 * GIB
    assert memory.kv_tokens == capacity_of(setup, 8 * GIB).tokens
    assert memory.starts
    assert not inference_memory(setup._replace(cache_bytes=70 * 2**30), gpu(79.2)).starts


# --- each term at its bounds -----------------------------------------------------------------------


def _served(model: str = "Qwen/Qwen3-8B", version: str = "0.32.0", **change: Any) -> ServeSetup:
    return default_setup(shape_of(model), gpu(79.2), version)._replace(**change)


def test_every_term_has_its_name_formula_and_source() -> None:
    setup = _served(gpu_memory_fraction=0.9)
    memory = inference_memory(setup, gpu(79.2)).memory
    assert (memory.role, memory.gpus) == ("inference", 1)
    assert [term.name for term in memory.terms[-2:]] == ["activation_peak", "kv_cache"]
    cache = memory.terms[-1]
    assert cache.formula == f"the rest of 0.9 x GPU; {36 * 2 * 8 * 128 * 2} B for each token"
    assert cache.source
    set_size = inference_memory(setup._replace(cache_bytes=2**30), gpu(79.2)).memory.terms[-1]
    assert set_size.formula.startswith("set in the config; ")
    outside = {term.name: term for term in memory.outside}
    assert outside["non_torch"].formula == "1 GPUs"
    assert outside["non_torch"].source
    assert outside["cuda_graphs"].formula == "36 layers, inside the fraction"
    assert outside["cuda_graphs"].source


@pytest.mark.parametrize(("version", "inside"), [("0.20.2", False), ("0.21.0", True)])
def test_graphs_are_typical_inside_the_fraction_and_bounded_beyond_it(version: str, inside: bool) -> None:
    setup = _served(version=version)
    (graphs,) = (t for t in inference_memory(setup, gpu(79.2)).memory.outside if t.name == "cuda_graphs")
    assert graphs.bytes == (graph_bytes(setup).typical if inside else graph_bytes(setup).high)
    assert graphs.formula.endswith("inside the fraction" if inside else "beyond the fraction")
    assert beyond_budget_bytes(setup) == (0.0 if inside else graph_bytes(setup).high)
    parts = (activation_bytes(setup), non_torch_bytes(setup))
    counted = graph_bytes(setup).high if inside else 0.0
    weights = sum(term.bytes for term in weight_terms(setup))
    assert budgeted_bytes(setup).high == pytest.approx(weights + sum(part.high for part in parts) + counted)


def test_the_bounds_of_a_role_move_the_cache_against_the_profile_run() -> None:
    served = inference_memory(_served(gpu_memory_fraction=0.9), gpu(79.2))
    *held, peak, cache = (term.bytes for term in served.memory.terms)
    activation, reserved = activation_bytes(_served()), served.memory.reserved
    assert reserved.typical == pytest.approx(sum(held) + peak + cache)
    assert reserved.high == pytest.approx(max(reserved.typical, sum(held) + activation.high + served.kv_bytes.low))
    assert reserved.low == pytest.approx(min(reserved.typical, sum(held) + activation.low + served.kv_bytes.high))
    full = inference_memory(_served(gpu_memory_fraction=0.01), gpu(79.2))  # the weights alone take more
    assert full.kv_bytes == (0.0, 0.0, 0.0)
    assert full.memory.reserved.high == pytest.approx(sum(held) + activation.high)
    assert full.memory.reserved.low == pytest.approx(sum(held) + activation.low)


def test_a_server_starts_with_the_cache_of_one_request_and_not_with_less() -> None:
    setup = _served(ctx_tokens=4096)
    one = math.ceil(bytes_for(setup, 4096))
    assert inference_memory(setup._replace(cache_bytes=one), gpu(79.2)).starts
    assert not inference_memory(setup._replace(cache_bytes=one - 1), gpu(79.2)).starts
    served = inference_memory(setup._replace(gpu_memory_fraction=1.0), gpu(79.2))
    assert served.starts
    assert served.kv_tokens_low == capacity_of(setup, served.kv_bytes.low).tokens
    assert served.max_concurrency == capacity_of(setup, served.kv_bytes.typical).concurrency
    whole = budgeted_bytes(setup).high + one
    exactly = gpu(79.2)._replace(usable_bytes=whole)
    assert inference_memory(setup._replace(cache_bytes=one), exactly).starts
    assert not inference_memory(setup._replace(cache_bytes=one), exactly._replace(usable_bytes=whole - 1)).starts


def test_the_smallest_fraction_is_need_over_gpu() -> None:
    setup = _served()
    needed = budgeted_bytes(setup).high + bytes_for(setup, 4096, 3.0)
    assert smallest_fraction(setup, gpu(79.2), 4096, 3.0) == pytest.approx(needed / gpu(79.2).usable_bytes)


def test_adapters_count_among_what_is_held() -> None:
    bare, adapted = _served(), _served(lora_slots=2, lora_rank=16)
    more = budgeted_bytes(adapted).typical - budgeted_bytes(bare).typical
    slots = adapter_term(adapted)
    assert slots is not None
    assert more == pytest.approx(slots.bytes)


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({}, "one_gpu"),
        ({"pipeline_parallel": 2, "multicast": False}, "several_gpus"),
        ({"tensor_parallel": 2, "pipeline_parallel": 2, "multicast": False}, "several_gpus"),
        ({"tensor_parallel": 2, "multicast": True, "version": "0.5.0"}, "several_gpus"),
        ({"tensor_parallel": 2, "multicast": False}, "several_gpus"),
        ({"tensor_parallel": 2, "multicast": True}, "multicast"),
    ],
)
def test_memory_outside_torch_by_the_layout(change: dict[str, Any], kind: str) -> None:
    assert non_torch_bytes(_served(**change)) == table_interval_bytes("non_torch", kind)


def test_graphs_by_layers_of_a_stage_and_number_of_gpus() -> None:
    one, several = table_interval_bytes("graphs", "one_gpu"), table_interval_bytes("graphs", "several_gpus")
    assert one != several
    assert graph_bytes(_served()) == one.times(36)
    assert graph_bytes(_served(pipeline_parallel=2)) == several.times(18)
    assert graph_bytes(_served(eager=True)) == (0.0, 0.0, 0.0)


def test_a_batch_goes_through_the_experts_of_one_gpu() -> None:
    """Routed rows: experts of a token x (MLP rows x inner width / sharing GPUs + residual stream)."""
    shape, rows = shape_of("Qwen/Qwen3-30B-A3B"), table_number("activation", "mlp_rows")
    assert not shape.dense_layers
    streams = table_interval("activation", "hidden_rows").typical * shape.hidden_size
    cases: tuple[tuple[dict[str, Any], int], ...] = (
        ({"tensor_parallel": 4}, 4),
        ({"tensor_parallel": 4, "expert_parallel": True}, 1),
    )
    for change, sharing in cases:
        setup = _served("Qwen/Qwen3-30B-A3B", **change)
        routed = shape.experts_per_token * (rows * shape.expert_mlp_size / sharing + shape.hidden_size)
        expected = (streams + routed) * setup.batched_tokens * setup.number_bytes
        assert forward_bytes(setup).typical == pytest.approx(expected)
    mixed = _served("Qwen/Qwen3-30B-A3B")._replace(shape=shape._replace(dense_layers=1, mlp_size=10**6))
    expected = (streams + rows * 10**6) * mixed.batched_tokens * mixed.number_bytes
    assert forward_bytes(mixed).typical == pytest.approx(expected)


def test_the_largest_part_of_the_peak_explains_it() -> None:
    formula, source = explain_activation(_served(sequences=1024, batched_tokens=1024))
    assert formula.endswith("x 1024 sequences x 151936 x 4 B")
    assert source == table_text("activation", "sampler_source")
    formula, source = explain_activation(_served(sequences=1, batched_tokens=65536))
    assert formula == "65536 tokens through one block x 2 B"
    assert source == table_text("activation", "token_source")
    seeing = _served("Qwen/Qwen2.5-VL-7B-Instruct", sequences=1, batched_tokens=16)
    assert explain_activation(seeing) == ("the vision tower's largest item", table_text("activation", "vision_source"))
