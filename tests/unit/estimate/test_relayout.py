from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_train.config import detect
from prime_train.estimate.hardware import hardware_from_name
from prime_train.estimate.memory.setup_from_run import setup_of
from prime_train.estimate.model.shape import shape_from_registry
from prime_train.estimate.relayout import Impossible, Relayout, layout_settings, relayout, work_of_run
from prime_train.estimate.time.run_time import step_setup_of
from prime_train.registry import gpus as gpu_registry
from prime_train.spec import RunSpec
from prime_train.spec.answers import global_batch, prime_rl_of, replicas_of, tokens_per_step

NATIVE = """[run]
name = "x"
max_steps = 100

[[data.sources]]
kind = "python-stdlib"

[batch]
micro_batch = 8
"""
RL = """max_steps = 10
seq_len = 2048

[prime_train]
prime_rl = "2026-08"

[model]
name = "Qwen/Qwen3-0.6B"

[deployment]
num_train_gpus = 4
num_infer_gpus = 4

[orchestrator]
batch_size = 64

[trainer]

[inference]
"""
RL_2026_01 = """trainer_gpu_ids = [0]
inference_gpu_ids = [1]
seq_len = 2048

[prime_train]
prime_rl = "2026-01"

[model]
name = "Qwen/Qwen3-0.6B"

[orchestrator]
batch_size = 64

[trainer]

[inference]
"""
SFT = """max_steps = 10

[prime_train]
prime_rl = "2026-05"

[slurm]

[deployment]
type = "multi_node"
num_nodes = 1

[data]
batch_size = 32
micro_batch_size = 4
"""


def run(text: str, name: str = "run.toml") -> RunSpec:
    found = detect.read(text, name, None).run
    assert found is not None
    return found


def native(batch: str = "") -> RunSpec:
    return run(NATIVE + batch)


def over(spec: RunSpec, gpus: int) -> Relayout:
    laid = relayout(spec, hardware_from_name(f"{gpus}xh100-80gb"))
    assert isinstance(laid, Relayout), laid
    return laid


def test_a_run_is_sharded_over_all_gpus() -> None:
    laid = over(native(), 8)
    assert (laid.run.parallel.processes, laid.run.parallel.dp_shard, replicas_of(laid.run)) == (8, 8, 1)


def test_a_batch_per_gpu_is_split_over_the_gpus() -> None:
    laid = over(native(), 8)
    assert (laid.run.batch.micro_batch, laid.run.batch.global_batch) == (1, None)
    assert laid.work == work_of_run(native())
    two = over(run(NATIVE.replace("batch = 8", "batch = 6")), 4)  # 6 sequences do not divide by 4
    assert (two.work.steps, two.work.batch and two.work.batch.sequences) == (25, 24)


def recipe_text(**fields: object) -> str:
    lines = [f"{name} = {json.dumps(value)}" for name, value in fields.items() if value is not None]
    return "\n".join(["[run]", "max_steps = 1000", "[recipe]", 'model_name = "Qwen/Qwen3-0.6B"', *lines])


RECIPES = st.fixed_dictionaries(
    {
        "program": st.sampled_from(["hf", "trl", "torchtitan", "axolotl", "unsloth", "litgpt"]),
        "gpus": st.sampled_from([None, 1, 2, 8, 64]),
        "sharding": st.sampled_from([None, "none", "ddp", "fsdp", "zero3", "device_map"]),
        "micro_batch": st.sampled_from([None, 1, 3, 8]),
        "micro_batches_per_step": st.sampled_from([None, 1, 4]),
        "tensor_parallel": st.sampled_from([None, 2]),
        "context_parallel": st.sampled_from([None, 2]),
    }
)


@given(RECIPES, st.sampled_from([1, 2, 4, 8, 16, 64]))
def test_a_recipe_trains_on_the_same_tokens_on_every_number_of_gpus(fields: dict[str, object], gpus: int) -> None:
    """The batch of a recipe is one of a GPU, so the same steps on fewer GPUs would be a part of the training."""
    spec = run(recipe_text(**fields))
    asked, laid = work_of_run(spec), relayout(spec, hardware_from_name(f"{gpus}xh100-80gb"))
    if isinstance(laid, Impossible):
        return
    tokens = asked.tokens or 0
    assert 0 < tokens <= (laid.work.tokens or 0) <= 1.05 * tokens
    # what is priced is what is reported: the time of a step is that of as many tokens
    hardware = hardware_from_name(f"{gpus}xh100-80gb")
    shape = shape_from_registry("Qwen/Qwen3-0.6B")
    assert shape is not None
    step, _ = step_setup_of(laid.run, setup_of(laid.run, hardware, shape), hardware)
    if step.pp == 1:
        assert step.tokens_per_step == (laid.work.batch and laid.work.batch.tokens)
        assert step.gpus == gpus


@given(st.sampled_from([1, 2, 4, 8, 16, 64]), st.integers(1, 10_000), st.sampled_from([1, 6, 8]))
def test_a_run_toml_trains_on_the_same_tokens(gpus: int, steps: int, micro: int) -> None:
    spec = run(NATIVE.replace("= 100", f"= {steps}").replace("batch = 8", f"batch = {micro}"))
    laid = relayout(spec, hardware_from_name(f"{gpus}xh100-80gb"))
    if isinstance(laid, Impossible):
        return
    asked = steps * tokens_per_step(spec)
    assert (laid.work.batch and laid.work.batch.tokens) == tokens_per_step(laid.run)
    assert asked <= (laid.work.tokens or 0) <= 1.05 * asked
    if "run.max_steps" not in dict(layout_settings(spec, laid)):
        assert (laid.work.steps, laid.work.tokens) == (steps, asked)


def test_a_step_grows_only_where_the_batch_has_fewer_sequences_than_gpus() -> None:
    spec = run(recipe_text(gpus=8, micro_batch=1))
    assert over(spec, 1).work == over(spec, 8).work == work_of_run(spec)
    assert dict(layout_settings(spec, over(spec, 1))) == {"recipe.gpus": 1, "recipe.micro_batches_per_step": 8}
    assert dict(layout_settings(spec, over(spec, 16)))["run.max_steps"] == 500
    short = run(recipe_text(gpus=8, micro_batch=1).replace("1000", "3"))
    assert relayout(short, hardware_from_name("16xh100-80gb")) == Impossible(
        "its 24 sequences make no whole steps of 16"
    )


def test_a_recipe_without_gpus_counts_as_one_on_a_single_gpu() -> None:
    work = work_of_run(run(recipe_text(micro_batch=2)))
    assert (work.batch and work.batch.sequences, "one GPU" in work.assumed) == (2, True)
    assert work_of_run(run(recipe_text(micro_batch=2, gpus=8))).assumed == ""


def test_gpus_that_share_a_sequence_are_not_split() -> None:
    spec = run(recipe_text(gpus=8, tensor_parallel=4))
    assert relayout(spec, hardware_from_name("2xh100-80gb")) == Impossible(
        "2 GPUs are not divisible by the 4 that share a sequence"
    )


@pytest.mark.parametrize(("gpus", "micro"), [(1, 8), (2, 6), (4, 6), (8, 3), (24, 1)])
def test_a_batch_that_is_set_stays(gpus: int, micro: int) -> None:
    spec = native("global_batch = 24\n")
    laid = over(spec, gpus)
    assert global_batch(laid.run) == 24
    assert laid.run.batch.micro_batch == micro
    assert 24 % (micro * gpus) == 0
    assert laid.work.steps == 100


def test_a_batch_in_tokens_stays_too() -> None:
    spec = native("global_batch_tokens = 12288\n")
    assert over(spec, 8).run.batch.micro_batch == 3  # 24 sequences of 512


def test_a_batch_that_does_not_divide_is_not_laid_out() -> None:
    assert relayout(native("global_batch = 24\n"), hardware_from_name("16xh100-80gb")) == Impossible(
        "its global batch of 24 is not divisible by 16"
    )


def test_servers_keep_their_gpus() -> None:
    laid = over(run(RL, "rl.toml"), 16)
    parts = prime_rl_of(laid.run)
    assert parts.deployment is not None
    assert (parts.deployment.train_gpus, parts.deployment.infer_gpus) == (12, 4)
    assert relayout(run(RL, "rl.toml"), hardware_from_name("4xh100-80gb")) == Impossible(
        "its server alone needs 4 GPUs"
    )


@pytest.mark.parametrize("preset", gpu_registry.presets())
def test_every_preset_can_be_laid_out(preset: str) -> None:
    spec = run(gpu_registry.presets()[preset].read_text(encoding="utf-8"), f"{preset}.toml")
    assert isinstance(relayout(spec, hardware_from_name("8xh200")), Relayout | Impossible)


@pytest.mark.parametrize(
    ("spec", "gpus", "told"),
    [
        (native(), 1, {}),
        (native(), 8, {"parallel.processes": 8, "parallel.dp_shard": 8, "batch.micro_batch": 1}),
        (
            native("global_batch = 24\n"),
            8,
            {"parallel.processes": 8, "parallel.dp_shard": 8, "batch.micro_batch": 3},
        ),
        (run(RL, "rl.toml"), 8, {}),
        (run(RL, "rl.toml"), 6, {"deployment.train_gpus": 2}),
        (run(RL_2026_01, "rl.toml"), 4, {"deployment.train_gpu_ids": (0, 2, 3)}),
        (run(SFT, "sft.toml"), 16, {"deployment.train_nodes": 2, "finetune.micro_batch_sequences": 2}),
    ],
)
def test_what_is_to_be_set_for_the_run_to_be_the_one_that_is_laid_out(
    spec: RunSpec, gpus: int, told: dict[str, Any]
) -> None:
    assert dict(layout_settings(spec, over(spec, gpus))) == told


def test_a_batch_of_prime_rl_and_its_nodes_are_not_cut() -> None:
    spec = run(SFT, "sft.toml")
    assert relayout(spec, hardware_from_name("4xh100-80gb")) == Impossible(
        "its nodes have 8 GPUs each, and 4 would train"
    )
    assert relayout(spec, hardware_from_name("24xh100-80gb")) == Impossible("its batch of 32 is not divisible by 24")
    wide = run(SFT + "[model]\nname = 'Qwen/Qwen3-0.6B'\ncp = 16\n", "sft.toml")
    assert relayout(wide, hardware_from_name("8xh100-80gb")) == Impossible(
        "8 GPUs are not divisible by the 16 that share a sequence"
    )


def test_copies_that_become_shards_of_accelerate_are_trained_in_fp32() -> None:
    text = '[recipe]\nprogram = "hf"\nmodel_name = "Qwen/Qwen3-8B"\nweight_dtype = "bf16"\nsharding = "{}"\ngpus = 2\n'

    def weight_dtype(sharding: str) -> str | None:
        run = detect.read(text.format(sharding), "recipe.toml").run
        assert run is not None
        laid = relayout(run, hardware_from_name("4xh100-80gb"))
        assert isinstance(laid, Relayout)
        assert laid.run.recipe is not None
        return laid.run.recipe.weight_dtype

    assert weight_dtype("ddp") == "fp32"
    assert weight_dtype("fsdp") == "bf16"  # the file sets the type of this layout
