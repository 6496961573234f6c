"""What a RunSpec resolves to: prime-rl by its generation, a recipe by its program, the bundled trainer by its code."""

from __future__ import annotations

from typing import Any

import pytest

from prime_train import spec
from prime_train.estimate.hardware import hardware_from_name
from prime_train.estimate.memory.coefficients import Coefficients, fitted_entry, is_known
from prime_train.estimate.memory.setup_from_run import setup_of
from prime_train.estimate.memory.sharding import QUANTIZED_BYTES, lora_parameters, quantized_bytes
from prime_train.estimate.memory.train_setup import Head, TrainSetup
from prime_train.estimate.memory.training import training_memory
from prime_train.estimate.model.shape import shape_from_registry
from prime_train.registry.gpus import read_table
from prime_train.spec import RunSpec
from prime_train.spec.prime_rl_parts import Recipe, Trainer
from tests.unit.estimate.training_cases import EIGHT_GPUS, native, prime_rl, recipe, shape


def setup(run: RunSpec) -> TrainSetup:
    return setup_of(run, EIGHT_GPUS, shape())


@pytest.mark.parametrize(
    ("generation", "trainer", "sft", "head"),
    [
        ("2026-01", Trainer(), False, Head("vocab_chunked", chunk_vocab=2048)),
        ("2026-01", Trainer(), True, Head("full")),
        ("2026-01", Trainer(head_chunk_vocab=512), False, Head("vocab_chunked", chunk_vocab=512)),
        ("2026-05", Trainer(), False, Head("full")),
        ("2026-05", Trainer(head_chunk_tokens=8192), False, Head("tiled", chunk_tokens=8192)),
        ("2026-08", Trainer(head_chunk_tokens=8192), False, Head("tiled", chunk_tokens=8192)),
        ("2026-05", Trainer(head_chunk_tokens=8192), True, Head("full")),
        ("2026-08", Trainer(head_chunk_tokens=8192), True, Head("tiled", chunk_tokens=8192)),
        ("2026-08", Trainer(head_chunk_tokens=1024), True, Head("tiled", chunk_tokens=1024)),
    ],
)
def test_the_head_of_prime_rl_follows_its_generation(generation: str, trainer: Trainer, sft: bool, head: Head) -> None:
    run = prime_rl(trainer._replace(ctx_tokens=4096), generation=generation, sft=sft)
    assert setup(run).head == head


@pytest.mark.parametrize(("ctx_tokens", "measured_gib"), [(8192, 63.0), (16384, 67.0), (32768, 74.0), (65536, 90.3)])
def test_published_runs_of_sft_with_the_head_in_chunks(ctx_tokens: int, measured_gib: float) -> None:
    """PrimeIntellect-ai/prime-rl, pull request 3234: Qwen3-30B-A3B on 8 H200, the optimizer on the GPU."""
    trainer = Trainer(
        ctx_tokens=ctx_tokens, head_chunk_tokens=8192, compile=True, activation_checkpointing=True,
        activation_offloading=True,
    )  # fmt: skip
    model, hardware = shape_from_registry("Qwen/Qwen3-30B-A3B"), hardware_from_name("8xh200")
    assert model is not None
    found = setup_of(prime_rl(trainer, gpus=8, generation="2026-08", sft=True), hardware, model)
    memory = training_memory(found, hardware).reserved
    assert memory.typical / 2**30 == pytest.approx(measured_gib, rel=0.05)
    assert memory.low / 2**30 <= measured_gib <= memory.high / 2**30


@pytest.mark.parametrize(
    ("generation", "trainer", "experts", "expert_parallel"),
    [
        ("2026-08", Trainer(ctx_tokens=4096), 4, 8),
        ("2026-08", Trainer(ctx_tokens=4096, dp_replicate=4), 4, 4),
        ("2026-08", Trainer(ctx_tokens=4096, expert_parallel=1), 4, 1),
        ("2026-08", Trainer(ctx_tokens=4096), 0, 1),
        ("2026-05", Trainer(ctx_tokens=4096), 4, 1),
    ],
)
def test_experts_are_spread_over_the_gpus_of_a_copy(
    generation: str, trainer: Trainer, experts: int, expert_parallel: int
) -> None:
    found = setup_of(prime_rl(trainer, gpus=16, generation=generation), EIGHT_GPUS, shape(experts=experts))
    assert found.layout.expert == expert_parallel


def test_prime_rl_keeps_fp32_weights_of_base_and_adapter_in_every_slot() -> None:
    found = setup(prime_rl(Trainer(ctx_tokens=4096, max_concurrent_runs=4), gpus=4, rank=16))
    assert (found.numerics.weight, found.numerics.base, found.numerics.state) == (4.0, 4.0, 8.0)
    assert found.adapter is not None
    assert (found.adapter.slots, found.adapter.rank) == (4, 16)
    assert (found.layout.sharding, found.layout.shards) == ("fsdp", 4)


def test_context_parallelism_splits_a_sequence_and_not_the_shards() -> None:
    found = setup(prime_rl(Trainer(ctx_tokens=4096, context_parallel=2), gpus=8))
    assert (found.tokens, found.layout.shards, found.layout.context) == (2048, 8, 2)


def test_micro_batches_of_sft_are_counted() -> None:
    assert setup(prime_rl(Trainer(ctx_tokens=4096), gpus=8, sft=True)).micro_batches == 1
    assert setup(prime_rl(Trainer(ctx_tokens=4096), gpus=2, sft=True)).micro_batches == 4


def test_the_bundled_trainer_casts_under_autocast_and_not_under_fsdp() -> None:
    assert setup(native()).numerics.autocast
    assert not setup(native(processes=8, shards=8)).numerics.autocast
    assert setup(native(compute="fp32")).numerics.compute == 4.0
    assert setup(native(processes=8)).layout.sharding == "ddp"


def test_deepspeed_keeps_masters_and_peft_fp32_adapters() -> None:
    assert setup(recipe(Recipe(program="hf", sharding="zero3"))).numerics.master == 4.0
    adapted = setup(recipe(Recipe(program="peft", adapter="lora", quantization="nf4"))).numerics
    assert (adapted.weight, adapted.base, adapted.quantized_ends) == (4.0, 2.0, 4.0)
    assert setup(recipe(Recipe(program="litgpt", adapter="lora"))).numerics.weight == 2.0


def test_a_pipeline_cuts_its_batch_and_holds_each_part_and_all_of_its_weights() -> None:
    asked = Recipe(program="torchtitan", ctx_tokens=8192, micro_batch=32, pipeline_parallel=8, shards=8, gpus=64)
    model = shape(vocab=256)
    found = setup_of(recipe(asked._replace(sharding="fsdp")), EIGHT_GPUS, model)
    assert (found.tokens, found.layout.in_flight, found.layout.reshards) == (4 * 8192, 8, False)
    terms = {term.name: term.bytes for term in training_memory(found, EIGHT_GPUS).terms}
    block = (model.parameters - 256 * 1024 - 1024) / 28
    assert terms["block gather"] == pytest.approx(28 / 8 * 2 * block)
    assert terms["whole gradients of a stage"] == pytest.approx(28 / 8 * 4 * block)  # torchtitan reduces in fp32


def test_lora_counts_rank_times_inputs_and_outputs() -> None:
    model = shape(layers=2, hidden=128)  # 2 heads of 64, 1 of keys, 384 inner
    assert lora_parameters(model, 8, ("q_proj",)) == 2 * 8 * (128 + 128)
    assert lora_parameters(model, 8, ("c_attn",)) == lora_parameters(model, 8, ("q_proj", "k_proj", "v_proj"))
    assert lora_parameters(model, 8, ("nothing_of_ours",)) == 0
    experts = shape(layers=2, hidden=128, experts=4)
    assert lora_parameters(experts, 8) - lora_parameters(experts, 8, ("q_proj", "k_proj", "v_proj", "o_proj")) == (
        2 * 4 * 3 * 8 * (128 + 256)
    )


@pytest.mark.parametrize("quantization", QUANTIZED_BYTES)
def test_a_quantised_base_is_smaller_than_one_in_16_bits(quantization: str) -> None:
    model = shape()
    assert model.parameters / 2 < quantized_bytes(model, quantization) < 2 * model.parameters


def test_each_entry_of_the_registry_is_coefficients_of_a_known_name() -> None:
    for name, entry in read_table("memory.toml").items():
        about = {"programs", "models", "features", "most_tokens", "most_vocab", "allocated", "compared"}
        assert set(entry) <= {"source", "interval", "coefficients", "era", *about}, name
        numbers = (entry["coefficients"], *entry.get("era", {}).values())
        assert all(set(table) <= set(Coefficients._fields) for table in numbers), name
        assert all(value >= 0 for table in numbers for value in table.values()), name
        assert all(0 < low < 1 < high for low, high in entry["interval"].values()), name
        assert "any" in entry["interval"], name


def test_a_later_era_keeps_what_an_earlier_one_changed() -> None:
    first, second, later = (fitted_entry("prime-rl", era).coefficients for era in ("2026-01", "2026-02", "2026-08"))
    assert first.adapter_mlp < second.adapter_mlp == later.adapter_mlp
    assert first.block_hidden == second.block_hidden > later.block_hidden


def test_an_unknown_program_is_reckoned_as_hugging_face() -> None:
    assert not is_known("nobody-knows")
    assert fitted_entry("nobody-knows", "").coefficients == fitted_entry("hf", "").coefficients


@pytest.mark.parametrize(("sync", "state_bytes"), [("local_sgd", 8.0), ("diloco", 12.0)])
def test_diloco_has_a_momentum_beside_the_moments(sync: Any, state_bytes: float) -> None:
    layout = spec.Parallel(processes=2, replicas=2, sync_every=10, sync=sync)
    data = spec.Data(sources=(spec.Source(kind="python-stdlib"),))
    run = RunSpec(run=spec.Run(name="a", max_steps=10), data=data, parallel=layout)
    assert setup(run).numerics.state == state_bytes
