"""The time of a step: what must hold of every one, what it rests on, and how near it comes to measured ones."""

from __future__ import annotations

import math
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tomli
from hypothesis import given, settings
from hypothesis import strategies as st

from prime_train.config import detect
from prime_train.core.errors import UserError
from prime_train.estimate.hardware import hardware_from_name
from prime_train.estimate.memory.setup_from_run import setup_of
from prime_train.estimate.model.shape import ModelShape, shape_from_registry
from prime_train.estimate.time.measured_rows import MeasuredRow, find_nearby, measured_rows
from prime_train.estimate.time.rl_step_time import broadcast_s
from prime_train.estimate.time.run_time import step_setup_of
from prime_train.estimate.time.step_flops import StepSetup
from prime_train.estimate.time.step_terms import (
    gpu_class,
    kernel_in_use,
    published_costs,
    rates_of,
    unmeasured_spread,
)
from prime_train.estimate.time.throughput import throughput_of
from prime_train.estimate.values import Hardware
from prime_train.registry import gpus
from prime_train.spec import Data, Run, RunSpec, Source, prime_rl_parts
from tests.unit.estimate.step_cases import GPUS, LLAMA_1B, QWEN_30B, changed, dense, setups, step

A100, H100, H200, B200, A6000 = GPUS
ROOT = Path(__file__).resolve().parents[3]
GPU = st.sampled_from(GPUS)


def step_s(setup: StepSetup, hardware: Hardware) -> float:
    return throughput_of(setup, hardware, rows=()).step_s.typical


@given(setups(), GPU)
def test_terms_add_up_and_intervals_are_in_order(setup: StepSetup, hardware: Hardware) -> None:
    speed = throughput_of(setup, hardware, rows=())
    assert math.fsum(term.seconds for term in speed.terms) == pytest.approx(speed.step_s.typical)
    assert all(term.seconds > 0 and term.name and term.formula for term in speed.terms)
    assert 0 < speed.step_s.low < speed.step_s.typical < speed.step_s.high < math.inf
    assert speed.tokens_per_s.low < speed.tokens_per_s.typical < speed.tokens_per_s.high
    assert 0 < speed.mfu < 1


@given(setups(), GPU)
def test_tokens_per_second_times_seconds_are_tokens(setup: StepSetup, hardware: Hardware) -> None:
    speed = throughput_of(setup, hardware, rows=())
    wait_s = speed.broadcast_s.typical if speed.broadcast_s else 0.0
    assert speed.tokens_per_s.typical * (speed.step_s.typical + wait_s) == pytest.approx(setup.tokens_per_step)
    assert (speed.broadcast_s is not None) == (setup.objective == "rl")


@given(setups(), GPU, st.integers(1, 100_000))
def test_time_never_falls_when_the_batch_or_the_context_grows(setup: StepSetup, hardware: Hardware, more: int) -> None:
    before = step_s(setup, hardware)
    assert step_s(setup._replace(micro_batch_tokens=setup.micro_batch_tokens + more), hardware) >= before
    assert step_s(setup._replace(ctx_tokens=setup.ctx_tokens + more), hardware) >= before * (1 - 1e-12)
    assert step_s(setup._replace(micro_batches=setup.micro_batches + more), hardware) >= before * (1 - 1e-12)


@given(setups(), GPU, st.integers(1, 40), st.integers(1, 40), st.integers(1, 60))
def test_time_never_falls_when_the_model_grows(
    setup: StepSetup, hardware: Hardware, layers: int, width: int, more: int
) -> None:
    small = dense(layers, 64 * width, 32000)
    before = step_s(setup._replace(shape=small), hardware)
    for large in (dense(layers + more, 64 * width, 32000), dense(layers, 64 * (width + more), 32000)):
        assert step_s(setup._replace(shape=large), hardware) > before


@given(setups(), GPU)
def test_recomputing_more_never_takes_less(setup: StepSetup, hardware: Hardware) -> None:
    none, selective, full = (step_s(setup._replace(recompute=kind), hardware) for kind in ("none", "selective", "full"))
    assert none <= selective <= full


@given(setups(), GPU, st.sampled_from((2, 4, 16)))
def test_more_ranks_never_lower_the_speed_of_all_where_links_are_free(
    setup: StepSetup, hardware: Hardware, times: int
) -> None:
    rates = rates_of(setup.trainer)
    free = {term: {"any": 0.0} for term in ("node", "network", "network_visits")}
    rates = rates._replace(
        fitted={term: costs for term, costs in rates.fitted.items() if term not in free},
        published={**rates.published, **free},
    )
    few = throughput_of(setup, hardware, rates=rates, rows=())
    many = throughput_of(setup._replace(dp_shard=times * setup.dp_shard), hardware, rates=rates, rows=())
    assert many.tokens_per_s.typical >= few.tokens_per_s.typical * (1 - 1e-12)


@settings(max_examples=25)  # each looks through all rows
@given(setups(), GPU)
def test_an_interval_is_wider_where_nothing_is_near(setup: StepSetup, hardware: Hardware) -> None:
    setup = setup._replace(trainer="prime-rl")
    speed = throughput_of(setup, hardware)
    near = MeasuredRow(setup, hardware, speed.tokens_per_s.typical, "a test")
    beside = throughput_of(setup, hardware, rows=(near,))
    assert beside.step_s.typical == speed.step_s.typical
    assert beside.step_s.high - beside.step_s.low <= speed.step_s.high - speed.step_s.low
    assert beside.basis.startswith("1 measured rows of prime-rl")


def test_the_basis_names_the_rows_nearby() -> None:
    setup = step(trainer="prime-rl", objective="rl", lora_rank=16, kernel="fa3", head="vocab_chunked")
    basis = throughput_of(setup, H100).basis
    assert "measured rows of prime-rl on hopper GPUs" in basis
    assert "nearest: meta-llama/Llama-3.2-1B-Instruct on 2xh100-80gb" in basis


def test_a_trainer_without_rows_is_a_roofline_and_reports_it() -> None:
    speed = throughput_of(step(trainer="bundled"), H100)
    assert speed.basis.startswith("roofline of published kernel speeds; no measurement of bundled")
    assert not any(term.measured for term in speed.terms)
    near = throughput_of(step(trainer="prime-rl", kernel="fa3"), H100)
    assert speed.step_s.high / speed.step_s.low > near.step_s.high / near.step_s.low


def test_a_class_without_rows_states_what_is_measured_and_what_is_not() -> None:
    basis = throughput_of(step(trainer="prime-rl", kernel="fa2"), A100).basis
    assert basis.startswith("no measurement of prime-rl on ampere GPUs: its rates on other GPUs for ")
    assert "a roofline of published speeds for the rest; nearest: " in basis
    unfitted = throughput_of(step(trainer="torchtune"), H100)
    assert unfitted.basis.startswith("no measurement of torchtune on hopper GPUs: a roofline of published speeds;")
    assert unfitted.step_s.high / unfitted.step_s.low == pytest.approx(
        unmeasured_spread().high / unmeasured_spread().low
    )


@pytest.mark.parametrize(
    ("trainer", "hardware", "why"),
    [("prime-rl", A6000, "all of one model"), ("torchtitan", A100, "all of one publication")],
)
def test_few_rows_give_the_interval_of_a_trainer_without_rows(trainer: str, hardware: Hardware, why: str) -> None:
    """Also for a setup that was measured: the rows do not show how far another host or month is off."""
    rows = [row for row in measured_rows() if row.setup.trainer == trainer and row.hardware.id == hardware.id]
    off = unmeasured_spread()
    for row in rows:
        speed = throughput_of(row.setup, row.hardware)
        assert f"{why}: the interval is that of trainers without rows" in speed.basis
        assert speed.step_s.low <= off.low * speed.step_s.typical * (1 + 1e-9)
        assert speed.step_s.high >= off.high * speed.step_s.typical * (1 - 1e-9)


def test_a_geforce_reaches_its_peak_and_other_cards_of_its_chip_do_not() -> None:
    """Its data sheet counts sums in fp32 at half the rate, so that power does not limit it."""

    def linear_s(name: str) -> float:
        card = hardware_from_name(name)
        terms = throughput_of(step(), card).terms
        return card.peak_flops_bf16 * next(term.seconds for term in terms if term.name == "linear layers")

    assert linear_s("1xrtx-4090") == pytest.approx(linear_s("1xrtx-5090")) == pytest.approx(linear_s("1xrtx-3090"))
    assert linear_s("1xrtx-4090") < 0.75 * linear_s("1xrtx-6000-ada")
    assert linear_s("1xrtx-6000-ada") == pytest.approx(linear_s("1xrtx-a6000"))


def test_a_setup_far_from_all_rows_states_so_and_is_less_sure() -> None:
    near = step(trainer="prime-rl", objective="rl", lora_rank=16, kernel="fa3", head="vocab_chunked")
    far = near._replace(ctx_tokens=512, micro_batch_tokens=512, dp_shard=256, lora_rank=0)
    speed = throughput_of(far, H100)
    assert "no measurement nearby, nearest: " in speed.basis
    beside = throughput_of(near, H100)
    assert speed.step_s.high / speed.step_s.low > beside.step_s.high / beside.step_s.low


@pytest.mark.parametrize(
    ("kernel", "hardware", "runs"),
    [
        ("fa4", B200, "fa4"),
        ("fa4", H100, "fa3"),
        ("fa3", H200, "fa3"),
        ("fa3", A100, "fa2"),
        ("fa3", B200, "fa2"),
        ("fa2", B200, "fa2"),
        ("sdpa", A6000, "fa2"),
        ("sdpa", H100, "sdpa"),
        ("eager", A100, "eager"),
    ],
)
def test_the_kernel_that_runs_is_one_the_gpu_has(kernel: str, hardware: Hardware, runs: str) -> None:
    assert kernel_in_use(step(kernel=kernel), hardware) == runs


def test_flash_attention_2_is_a_fallback_on_blackwell() -> None:
    long = step(trainer="prime-rl", ctx_tokens=65536, micro_batch_tokens=65536)
    assert step_s(long._replace(kernel="fa2"), B200) > 1.5 * step_s(long._replace(kernel="fa4"), B200)


def test_faster_hardware_is_faster() -> None:
    setup = step(kernel="fa2")
    assert step_s(setup, A6000) > step_s(setup, A100) > step_s(setup, H100)


def test_context_parallelism_shortens_a_step_of_one_long_sequence() -> None:
    long = step(ctx_tokens=131072, micro_batch_tokens=131072, dp_shard=1, kernel="fa3")
    assert step_s(long._replace(cp=8), H100) < 0.5 * step_s(long, H100)


def test_a_pipeline_waits_for_its_first_micro_batch() -> None:
    few, many = (throughput_of(step(pp=8, micro_batches=n), H100) for n in (1, 64))
    assert few.tokens_per_s.typical < 0.3 * many.tokens_per_s.typical
    bubble = next(term for term in few.terms if term.name == "pipeline bubble")
    assert bubble.formula.startswith("7 of 1 micro-batches")


def test_all_weights_take_seconds_and_adapters_little_of_them() -> None:
    whole, adapters = broadcast_s(QWEN_30B, H100), broadcast_s(QWEN_30B, H100, lora_rank=16)
    # 61 GB at 1.5 GB/s, as measured on Qwen3-4B.
    assert whole.typical == pytest.approx(QWEN_30B.parameters * 2 / 1.5e9)
    assert adapters.typical < 0.05 * whole.typical
    assert whole.low < whole.typical < whole.high


def test_nccl_hands_over_faster_than_a_disk() -> None:
    assert broadcast_s(LLAMA_1B, H100, way="nccl").typical < broadcast_s(LLAMA_1B, H100).typical


@pytest.mark.parametrize("change", ["ctx_tokens", "micro_batch_tokens", "micro_batches", "dp_shard"])
def test_a_step_of_nothing_is_refused(change: str) -> None:
    with pytest.raises(UserError) as refusal:
        throughput_of(changed(step(), change, 0), H100)
    assert refusal.value.what.endswith("= 0")
    assert refusal.value.fix


def test_a_gpu_without_a_peak_is_refused() -> None:
    with pytest.raises(UserError, match="peak 0"):
        throughput_of(step(), H100._replace(peak_flops_bf16=0.0))


def test_each_published_cost_names_its_source_and_has_a_last_resort() -> None:
    published = tomli.loads(gpus.data_file("throughput.toml").read_text(encoding="utf-8"))
    for term, costs in published_costs().items():
        assert published["cost"][term]["source"]
        assert "any" in costs
        assert all(0 <= value < 1000 for value in costs.values())


def test_fitted_costs_are_of_terms_that_exist() -> None:
    for trainer in ("prime-rl", "llm-foundry", "torchtitan"):
        rates = rates_of(trainer)
        assert rates.fitted.keys() <= rates.published.keys()
        assert all(spread.low < 1 < spread.high for spread in (*rates.spreads.values(), rates.off))
        assert rates.fitted_rows == sum(row.setup.trainer == trainer for row in measured_rows())


def test_every_measured_row_has_a_source_and_is_its_own_neighbour() -> None:
    rows = measured_rows()
    assert len(rows) > 200
    for row in rows:
        assert row.source
        assert row.tokens_per_s > 0
        around = find_nearby(row.setup, row.hardware, rows)
        assert around is not None
        assert around.distance == 0


@pytest.mark.parametrize(("trainer", "bar"), [("prime-rl", 0.05), ("llm-foundry", 0.04), ("torchtitan", 0.06)])
def test_shipped_rates_are_near_the_rows_they_were_fitted_to(trainer: str, bar: float) -> None:
    errors, inside = [], []
    for row in (row for row in measured_rows() if row.setup.trainer == trainer):
        speed = throughput_of(row.setup, row.hardware)
        wait_s = speed.broadcast_s.typical if speed.broadcast_s and row.counts_handover else 0.0
        measured_s = row.setup.tokens_per_step / row.tokens_per_s - wait_s
        errors.append(abs(measured_s / speed.step_s.typical - 1))
        inside.append(speed.step_s.low <= measured_s <= speed.step_s.high)
    assert statistics.mean(errors) <= bar
    assert statistics.mean(inside) >= 0.9


def test_the_classes_of_gpus() -> None:
    assert [gpu_class(gpu) for gpu in GPUS] == ["ampere", "hopper", "hopper", "blackwell", "workstation"]
    assert gpu_class(H100._replace(compute_capability=None)) == "other"


def test_programs_that_nothing_was_fitted_to_are_near_their_published_speed() -> None:
    sys.path.insert(0, str(ROOT / "bench"))
    try:
        from throughput_rows import single_rows
    finally:
        sys.path.pop(0)
    for row in single_rows():
        speed = throughput_of(row.setup, row.hardware).tokens_per_s
        assert speed.typical == pytest.approx(row.tokens_per_s, rel=0.15), row.setup.trainer


def test_a_pipeline_of_a_recipe_works_on_one_part_of_the_batch_for_each_stage() -> None:
    shape = LLAMA_1B
    recipe = prime_rl_parts.Recipe(
        program="torchtitan", gpus=8, sharding="fsdp", pipeline_parallel=8, micro_batch=32, ctx_tokens=4096
    )
    run = RunSpec(
        run=Run(name="r", max_steps=1),
        data=Data(sources=(Source(kind="python-stdlib"),)),
        recipe=recipe,
        format="recipe",
    )
    setup, _ = step_setup_of(run, setup_of(run, H100._replace(gpus=8), shape), H100._replace(gpus=8))
    assert (setup.micro_batches, setup.micro_batch_tokens) == (8, 4 * 4096)
    assert setup.tokens_per_step == 32 * 4096


def test_more_stages_on_a_gpu_shorten_the_idle_time_of_a_pipeline() -> None:
    setup = step()._replace(pp=4, micro_batches=4, trainer="torchtitan")

    def idle_s(stages: int) -> float:
        terms = throughput_of(setup._replace(stages_per_gpu=stages), H100._replace(gpus=setup.gpus), rows=()).terms
        return next(term.seconds for term in terms if term.name == "pipeline bubble")

    assert idle_s(2) == pytest.approx(idle_s(1) / 2)


def test_tensor_parallelism_waits_less_where_its_exchange_runs_beside_the_products() -> None:
    setup = step()._replace(tp=8, trainer="torchtitan")
    eight = H100._replace(gpus=setup.gpus)
    assert step_s(setup._replace(async_tp=True), eight) < step_s(setup, eight)


def test_the_shipped_rates_are_those_of_the_shipped_rows(tmp_path: Path) -> None:
    written = tmp_path / "fitted.toml"
    program = [sys.executable, str(ROOT / "bench" / "fit_throughput.py"), "--output", str(written)]
    subprocess.run(program, check=True, capture_output=True, timeout=250)
    shipped = ROOT / "registry" / "throughput_fitted.toml"
    assert written.read_text(encoding="utf-8") == shipped.read_text(encoding="utf-8")


def recipe_setup(shape: ModelShape, hardware: Hardware, **fields: Any) -> StepSetup:
    recipe = prime_rl_parts.Recipe(gpus=hardware.gpus, sharding="fsdp", ctx_tokens=8192, **fields)
    run = RunSpec(run=Run(name="r", max_steps=1), data=Data(sources=()), recipe=recipe, format="recipe")
    return step_setup_of(run, setup_of(run, hardware, shape), hardware)[0]


def sft_setup(generation: str, lines: str, model: str = "Qwen/Qwen3-8B") -> StepSetup:
    text = f'[prime_train]\nprime_rl = "{generation}"\n[data]\nseq_len = 8192\n[model]\nname = "{model}"\n{lines}\n'
    run, shape = detect.read(text, "sft.toml", None).run, shape_from_registry(model)
    assert run is not None
    assert shape is not None
    return step_setup_of(run, setup_of(run, H100, shape), H100)[0]


def test_fp8_is_faster_in_every_format_that_has_it() -> None:
    plain, fp8 = (recipe_setup(LLAMA_1B, H100, program="torchtitan", compute_dtype=kind) for kind in ("bf16", "float8"))
    assert fp8.precision == "fp8"
    assert step_s(fp8, H100) < step_s(plain, H100)
    for generation, lines in (("2026-05", "fp8 = true"), ("2026-08", '[model.quantization]\ntype = "fp8"')):
        plain, fp8 = sft_setup(generation, ""), sft_setup(generation, lines)
        assert (plain.precision, fp8.precision) == ("bf16", "fp8")
        assert step_s(fp8, H100) < 0.95 * step_s(plain, H100)


@pytest.mark.parametrize("generation", ["2026-01", "2026-05", "2026-08"])
def test_experts_without_a_grouped_product_are_several_times_slower(generation: str) -> None:
    model = "Qwen/Qwen3-30B-A3B-Instruct-2507"
    grouped, looped = (sft_setup(generation, lines, model) for lines in ("", "moe_use_grouped_mm = false"))
    assert (grouped.expert_loop, looped.expert_loop) == ("", "yes")
    fast, slow = throughput_of(grouped, H100).step_s, throughput_of(looped, H100).step_s
    assert slow.typical > 3 * fast.typical
    assert slow.high / slow.low > 2 * fast.high / fast.low
    assert sft_setup(generation, "moe_use_grouped_mm = false").expert_loop == ""  # a dense model has no experts


def test_programs_of_transformers_may_run_experts_one_by_one() -> None:
    """ms-swift publishes 91.2 s for a step of Qwen3-30B-A3B with a loop, and 9.6 s with grouped products."""

    def setup(program: str, **fields: Any) -> StepSetup:
        return recipe_setup(QWEN_30B, H100, program=program, **fields)

    kinds = {
        program: setup(program).expert_loop for program in ("trl", "axolotl", "ms-swift", "torchtitan", "torchtune")
    }
    assert kinds == {"trl": "perhaps", "axolotl": "perhaps", "ms-swift": "perhaps", "torchtitan": "", "torchtune": ""}
    assert (setup("hf", version="4.57").expert_loop, setup("hf", version="5.2").expert_loop) == ("yes", "")
    perhaps = throughput_of(setup("trl"), H100)
    assert perhaps.step_s.high > 5 * perhaps.step_s.typical
    assert "experts one by one" in perhaps.basis


@pytest.mark.parametrize("trainer", ["torchtitan", "prime-rl", "llm-foundry"])
def test_published_speeds_lie_inside_the_interval_without_knowing_the_power(trainer: str) -> None:
    """A user does not know that a table was made with cards below the power of their data sheet."""
    inside = []
    for row in (row for row in measured_rows() if row.setup.trainer == trainer):
        speed = throughput_of(row.setup, hardware_from_name(f"{row.hardware.gpus}x{row.hardware.id}"))
        wait_s = speed.broadcast_s.typical if speed.broadcast_s and row.counts_handover else 0.0
        inside.append(speed.step_s.low <= row.setup.tokens_per_step / row.tokens_per_s - wait_s <= speed.step_s.high)
    assert statistics.mean(inside) >= 0.88


def test_a_power_limit_that_no_config_names_is_inside_the_interval() -> None:
    setup = recipe_setup(LLAMA_1B, B200, program="torchtitan")
    told, limited = throughput_of(setup, B200), throughput_of(setup, B200._replace(power_limited=True))
    assert told.step_s.low < limited.step_s.typical < told.step_s.high
    assert "below the power of the data sheet" in told.basis
    assert "below the power" not in limited.basis


@given(setups(), GPU)
@settings(max_examples=25)
def test_off_the_rows_an_interval_is_as_wide_as_that_of_a_trainer_without_rows(
    setup: StepSetup, hardware: Hardware
) -> None:
    off = unmeasured_spread()
    for trainer in ("prime-rl", "torchtitan", "llm-foundry"):
        here = setup._replace(trainer=trainer, micro_batch_tokens=setup.ctx_tokens, precision="mxfp8")
        around = find_nearby(here, hardware, measured_rows())
        assert around is not None
        step = throughput_of(here, hardware).step_s
        if around.is_off:
            assert step.high / step.low >= 0.999 * off.high / off.low
