from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from prime_train.config import detect
from prime_train.config.parsed_config import GENERATION
from prime_train.estimate.advice import Case, Keys, advise
from prime_train.estimate.estimate import estimate
from prime_train.estimate.hardware import hardware_from_name
from prime_train.estimate.memory.roles import GpusPerRole, gpus_of, memory_of
from prime_train.estimate.memory.setup_from_run import setup_of
from prime_train.estimate.model.shape import ModelShape, shape_from_registry, shape_from_run
from prime_train.estimate.time.run_time import STEPS_WITHOUT_END, step_setup_of, time_of
from prime_train.estimate.time.token_flops import active_expert_parameters
from prime_train.estimate.values import Hardware
from prime_train.estimate.verdict import MemoryVerdict
from prime_train.prices.price import Price
from prime_train.spec import RunSpec, prime_rl_parts
from prime_train.spec.decoder_size import architecture_from_fields

RUN = """[run]
name = "r"
max_steps = 500
[model]
layers = 8
hidden_size = 512
heads = 8
[data]
ctx_tokens = 1024
[[data.sources]]
kind = "python-stdlib"
[batch]
micro_batch = 8
[parallel]
processes = 4
dp_shard = 4
"""
RL = """max_steps = 200
seq_len = 4096
[prime_train]
prime_rl = "2026-08"
[model]
name = "Qwen/Qwen3-4B"
[deployment]
num_train_gpus = 2
num_infer_gpus = 6
[orchestrator]
batch_size = 128
[inference.vllm]
data_parallel_size = 6
max_model_len = 4096
[trainer]
"""
SHARED = """seq_len = 2048
trainer_gpu_ids = [0]
inference_gpu_ids = [0]
[prime_train]
prime_rl = "2026-01"
[model]
name = "Qwen/Qwen3-0.6B"
[orchestrator]
batch_size = 8
rollouts_per_example = 2
[orchestrator.sampling]
max_tokens = 1024
[trainer.model.compile]
[trainer.model.ac]
freq = 1
[inference]
gpu_memory_utilization = {fraction}
[inference.model]
max_model_len = 2048
[inference.parallel]
dp = 1
"""
RECIPE = """[recipe]
program = "hf"
model_name = "Qwen/Qwen3-4B"
gpus = 2
sharding = "zero3"
ctx_tokens = 2048
"""


def _run(text: str, path: str = "rl.toml") -> RunSpec:
    reading = detect.read(text, path)
    assert reading.run is not None
    assert not [fault for fault in reading.faults if fault.code != GENERATION]
    return reading.run


def _model(name: str) -> ModelShape:
    shape = shape_from_registry(name)
    assert shape is not None
    return shape


QWEN = _model("Qwen/Qwen3-4B")
SMALL = _model("Qwen/Qwen3-0.6B")
PRICES = tuple(
    Price("somewhere", "h100-80gb", 8, usd, spot, "", "example.org", "2026-11-01")
    for usd, spot in ((2.0, False), (3.0, False), (4.0, False), (1.0, True), (1.5, True))
)


@pytest.mark.parametrize(
    ("text", "gpus"),
    [
        (RUN, GpusPerRole(4, 0)),
        (RL, GpusPerRole(2, 6)),
        (SHARED.format(fraction=0.4), GpusPerRole(1, 1, shared=True)),
        (RECIPE, GpusPerRole(2, 0)),
        (RECIPE.replace("gpus = 2\n", ""), GpusPerRole(8, 0)),
        (RECIPE.replace("gpus = 2\n", "shards = 4\nreplicas = 2\n"), GpusPerRole(8, 0)),
    ],
)
def test_the_config_states_which_gpus_do_what(text: str, gpus: GpusPerRole) -> None:
    assert gpus_of(_run(text), hardware_from_name("8xh100-80gb")) == gpus


def test_gpus_that_are_shared_are_counted_once() -> None:
    assert GpusPerRole(1, 1, shared=True).all == 1
    assert GpusPerRole(2, 6).all == 8


def test_each_role_has_its_own_verdict_and_all_must_fit() -> None:
    found = estimate(_run(RL), hardware_from_name("8xh100-80gb"), QWEN)
    assert [role.memory.role for role in found.memory.roles] == ["trainer", "inference"]
    assert [role.memory.gpus for role in found.memory.roles] == [2, 6]
    assert found.fits
    for role in found.memory.roles:
        assert role.headroom_bytes == pytest.approx(found.hardware.usable_bytes - role.memory.need.high)
    assert not estimate(_run(RL), hardware_from_name("8xrtx-4090"), QWEN).fits


def test_the_verdict_is_taken_from_the_upper_bound() -> None:
    run = _run(RL)
    needed = memory_of(run, hardware_from_name("8xh100-80gb"), QWEN)[0].roles[0].memory.needed_bytes
    hardware = hardware_from_name("8xh100-80gb")
    assert memory_of(run, hardware._replace(usable_bytes=needed + 1), QWEN)[0].roles[0].fits
    assert not memory_of(run, hardware._replace(usable_bytes=needed - 1), QWEN)[0].roles[0].fits


def test_a_trainer_that_typically_fits_beside_the_server_likely_fits() -> None:
    hardware = hardware_from_name("rtx-4090")
    fits = memory_of(_run(SHARED.format(fraction=0.3)), hardware, SMALL)[0]
    assert fits.sharing is not None
    fraction = fits.sharing.window.largest + 0.005
    likely = memory_of(_run(SHARED.format(fraction=fraction)), hardware, SMALL)[0]
    assert (fits.chance.verdict, likely.chance.verdict) == (MemoryVerdict.FITS, MemoryVerdict.LIKELY)
    assert all(role.chance.verdict is MemoryVerdict.LIKELY for role in likely.roles)


def test_a_run_between_its_typical_value_and_its_bound_likely_fits_and_is_not_refused() -> None:
    run, hardware = _run(RECIPE), hardware_from_name("2xh100-80gb")
    trainer = memory_of(run, hardware, QWEN)[0].roles[0].memory
    need = trainer.need
    between = hardware._replace(usable_bytes=(need.typical + need.high) / 2)
    found = estimate(run, between, QWEN, prices=PRICES)
    assert found.chance.verdict is MemoryVerdict.LIKELY
    assert 0.5 < found.chance.probability < 0.95
    assert (found.fits, found.is_refused) == (False, False)
    assert found.costs
    refused = estimate(run, hardware._replace(usable_bytes=need.typical / 2), QWEN, prices=PRICES)
    assert (refused.is_refused, refused.costs) == (True, ())


def test_fewer_gpus_than_asked_for_do_not_fit() -> None:
    found = estimate(_run(RL), hardware_from_name("4xh100-80gb"), QWEN)
    assert all(role.fits for role in found.memory.roles)
    assert not found.memory.enough_gpus
    assert not found.fits


def test_a_shared_gpu_needs_a_fraction_between_both() -> None:
    hardware = hardware_from_name("rtx-4090")
    by_fraction = {
        fraction: memory_of(_run(SHARED.format(fraction=fraction)), hardware, SMALL)[0] for fraction in (0.3, 0.9)
    }
    assert by_fraction[0.3].fits
    assert not by_fraction[0.9].fits
    sharing = by_fraction[0.9].sharing
    assert sharing is not None
    assert sharing.window.smallest <= 0.3 <= sharing.window.largest < 0.9


def test_advice_is_given_in_the_users_own_keys_and_only_where_it_does_not_fit() -> None:
    text = RL.replace("num_train_gpus = 2", "num_train_gpus = 1").replace(
        "[trainer]", "[trainer.model]\noptim_cpu_offload = false"
    )
    reading = detect.read(text, "rl.toml")
    run = _run(text)
    hardware = hardware_from_name("8xrtx-a6000")
    memory, _ = memory_of(run, hardware, QWEN)
    lines = advise(Case(run, hardware, QWEN, memory), Keys(reading.key, reading.has))
    assert any(line.startswith("trainer.model.fsdp_cpu_offload = true (saves ") for line in lines)
    assert any("sharded over" in line for line in lines)
    roomy, _ = memory_of(run, hardware_from_name("8xh200"), QWEN)
    assert advise(Case(run, hardware_from_name("8xh200"), QWEN, roomy), Keys(reading.key, reading.has)) == ()


def test_advice_for_a_shared_gpu_sets_what_both_fit_with() -> None:
    text = SHARED.format(fraction=0.9)
    reading, run, hardware = detect.read(text, "rl.toml"), _run(text), hardware_from_name("rtx-4090")
    memory, _ = memory_of(run, hardware, SMALL)
    settings, order = advise(Case(run, hardware, SMALL, memory), Keys(reading.key, reading.has))
    assert settings.startswith("inference.gpu_memory_utilization = 0.")
    assert "orchestrator.rollouts_per_example = 2" in settings
    assert order.startswith("start inference first")


def test_a_run_without_training_has_memory_and_no_time() -> None:
    found = estimate(
        _run('[model]\nname = "Qwen/Qwen3-4B"\nmax_model_len = 4096\n', "infer.toml"),
        hardware_from_name("h100-80gb"),
        QWEN,
    )
    assert [role.memory.role for role in found.memory.roles] == ["inference"]
    assert found.time is None
    assert found.costs == ()


def test_time_of_rl_covers_trainer_rollouts_and_hand_over() -> None:
    run, hardware = _run(RL), hardware_from_name("8xh100-80gb")
    memory, setup = memory_of(run, hardware, QWEN)
    assert setup is not None
    time = time_of(run, setup, hardware, memory)
    assert time.rollouts is not None
    assert time.overlap is not None
    assert time.throughput.broadcast_s is not None
    assert time.step_s.typical >= time.throughput.step_s.typical
    assert time.step_s.typical >= time.rollouts.seconds.typical
    assert time.steps == 200


def test_micro_batches_of_rl_follow_the_rollouts() -> None:
    hardware = hardware_from_name("8xh100-80gb")

    def micro_batches(text: str) -> int:
        run = _run(text)
        return step_setup_of(run, setup_of(run, hardware, QWEN), hardware)[0].micro_batches

    few, many = micro_batches(RL), micro_batches(RL.replace("batch_size = 128", "batch_size = 512"))
    assert many == pytest.approx(4 * few, rel=0.1)
    assert micro_batches(RL.replace("num_train_gpus = 2", "num_train_gpus = 1")) >= few


def test_a_run_without_an_end_is_reckoned_for_a_round_number_of_steps() -> None:
    found = estimate(_run(RL.replace("max_steps = 200\n", "")), hardware_from_name("8xh100-80gb"), QWEN)
    assert found.time is not None
    assert (found.time.steps, found.time.is_endless) == (STEPS_WITHOUT_END, True)


def test_cost_is_on_demand_and_spot_and_grows_with_steps() -> None:
    run, hardware = _run(RL), hardware_from_name("8xh100-80gb")
    costs = estimate(run, hardware, QWEN, prices=PRICES).costs
    assert [cost.spot for cost in costs] == [False, True]
    assert costs[0].usd.low < costs[0].usd.typical < costs[0].usd.high
    twice = estimate(_run(RL.replace("= 200", "= 400")), hardware, QWEN, prices=PRICES).costs
    assert twice[0].usd.typical == pytest.approx(2 * costs[0].usd.typical, rel=0.01)
    assert estimate(run, hardware_from_name("8xh200"), QWEN, prices=PRICES).costs == ()


def test_what_is_not_certain_is_reported() -> None:
    run = _run(RUN, "run.toml")
    shape = shape_from_run(run, 4096)
    assert any("from memory" in line for line in estimate(run, hardware_from_name("4xrtx-3090"), shape).assumptions)
    assert not any(
        "from memory" in line for line in estimate(run, hardware_from_name("4xh100-80gb"), shape).assumptions
    )
    guessed = shape._replace(source="config.json, parameters counted; zeta: read as a Llama")
    assert any(
        "read as a Llama" in line for line in estimate(run, hardware_from_name("4xh100-80gb"), guessed).assumptions
    )


def test_the_experts_of_a_run_toml_count_in_full_for_memory_and_in_part_for_time() -> None:
    hardware = hardware_from_name("4xh100-80gb")
    found = []
    for experts in (4, 16):
        sizes = f"[model]\nexperts = {experts}\nexperts_per_token = 2\nshared_experts = 1\n"
        run = _run(RUN.replace("[model]\n", sizes), "run.toml")
        shape = shape_from_run(run, 4096)
        decoder = architecture_from_fields(run.model, 4096)
        assert (shape.experts, shape.experts_per_token, shape.dense_layers) == (experts, 2, 0)
        assert shape.parameters == decoder.parameters > decoder.active_parameters
        assert estimate(run, hardware, shape).memory
        found.append((shape.parameters, active_expert_parameters(shape)))
    (few, active), (many, active_of_many) = found
    assert many > 2 * few
    assert active_of_many == active


def test_where_gpus_are_missing_the_roles_that_would_not_fit_on_them_are_advised_too() -> None:
    text = RL.replace("num_train_gpus = 2", "num_train_gpus = 1")
    reading, run, hardware = detect.read(text, "rl.toml"), _run(text), hardware_from_name("4xrtx-a6000")
    memory, _ = memory_of(run, hardware, QWEN)
    lines = advise(Case(run, hardware, QWEN, memory), Keys(reading.key, reading.has))
    assert lines[0].startswith("--gpus 7xrtx-a6000")
    assert any("then it fits" in line for line in lines[1:])


def test_a_change_to_the_trainer_that_the_server_does_not_bear_is_reported() -> None:
    # Room in the cache for one sequence of full length, and none beside the buffers of an adapter.
    text = RL.replace("num_train_gpus = 2", "num_train_gpus = 1")
    reading, run, hardware = detect.read(text, "rl.toml"), _run(text), hardware_from_name("7xrtx-a6000")
    keys = Keys(reading.key, reading.has)

    def reported(fraction: float) -> tuple[str, ...]:
        tight = dataclasses.replace(run, inference=_with_fraction(run, fraction))
        memory, _ = memory_of(tight, hardware, QWEN)
        assert [role.fits for role in memory.roles] == [False, True]
        lines = advise(Case(tight, hardware, QWEN, memory), keys)
        return tuple(line for line in lines if "lora.rank" in line)

    assert not any("the server does not fit" in line for line in reported(0.9))
    least = next(
        hundredth / 100
        for hundredth in range(10, 90)
        if _serves(dataclasses.replace(run, inference=_with_fraction(run, hundredth / 100)), hardware)
    )
    assert all(line.endswith("; the server does not fit with it") for line in reported(least))
    assert reported(least)


def _with_fraction(run: RunSpec, fraction: float) -> prime_rl_parts.Inference:
    assert run.inference is not None
    return run.inference._replace(gpu_memory_fraction=fraction)


def _serves(run: RunSpec, hardware: Hardware) -> bool:
    memory, _ = memory_of(run, hardware, QWEN)
    return all(role.fits for role in memory.roles if role.served is not None)


@pytest.mark.parametrize(("scales", "precision"), [("tensorwise", "fp8"), ("rowwise", "fp8_rowwise")])
def test_fp8_shortens_the_products_and_leaves_the_memory(scales: Any, precision: str) -> None:
    """The table of costs gives rows' scales as much time as they gain."""
    hardware = hardware_from_name("4xh100-80gb")
    plain = _run(RUN.replace("layers = 8", "layers = 8\ncompile = true"))
    run = dataclasses.replace(plain, precision=dataclasses.replace(plain.precision, fp8=scales))
    shape = shape_from_run(run, 50257)
    assert step_setup_of(run, setup_of(run, hardware, shape), hardware)[0].precision == precision
    found, expected = estimate(run, hardware, shape), estimate(plain, hardware, shape)
    assert found.memory.roles == expected.memory.roles
    assert found.time is not None
    assert expected.time is not None
    gained = expected.time.step_s.typical - found.time.step_s.typical
    assert gained > 0 if scales == "tensorwise" else gained == pytest.approx(0)
    assert [text for text in found.assumptions if text not in expected.assumptions] != []
    assert sum("precision.fp8" in text for text in found.assumptions) == 1
    assert not any("fp8" in text for text in expected.assumptions)
