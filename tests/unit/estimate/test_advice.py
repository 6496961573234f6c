"""Advice: every change is tried, what it saves is what the memory function says, and the fewest GPUs are the fewest."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_train.core.units import GIB
from prime_train.estimate.advice import (
    Case,
    Keys,
    advise,
    advise_serving,
    advise_training,
    server_fit,
    smallest_gpus,
    trainer_fit,
    trainer_speed,
    with_gpus,
)
from prime_train.estimate.candidate_changes import Kind, apply_changes, serving_changes, training_changes, value_of
from prime_train.estimate.choose_changes import Fit, FitOf, SpeedOf, choose_number
from prime_train.estimate.hardware import hardware_from_name
from prime_train.estimate.memory.roles import memory_of
from prime_train.estimate.values import Hardware
from prime_train.spec import Batch, Data, Model, Parallel, Precision, Run, RunSpec, Source, prime_rl_parts
from prime_train.spec.answers import global_batch, replace_parts
from prime_train.spec.rl import Rl
from tests.unit.estimate.served import gpu, shape_of

_RUN = RunSpec(run=Run(name="advised", max_steps=10), data=Data(sources=(Source(kind="python-stdlib"),)))
_SFT = replace_parts(
    _RUN,
    launch=prime_rl_parts.LaunchPart(generation="2026-08"),
    trainer=prime_rl_parts.Trainer(head_chunk_tokens=8192),
    finetune=prime_rl_parts.Finetune(ctx_tokens=16384, batch_sequences=64, micro_batch_sequences=4),
    deployment=prime_rl_parts.Deployment(train_gpus=1),
    format="prime-rl",
)
_RL = replace_parts(
    _RUN,
    launch=prime_rl_parts.LaunchPart(generation="2026-08"),
    trainer=prime_rl_parts.Trainer(ctx_tokens=16384, head_chunk_tokens=8192),
    rollout=prime_rl_parts.RolloutPart(ctx_tokens=16384),
    inference=prime_rl_parts.Inference(),
    deployment=prime_rl_parts.Deployment(train_gpus=1, infer_gpus=1),
    format="prime-rl",
)


def _fit(hardware: Hardware, model: str) -> FitOf:
    shape = shape_of(model)

    return trainer_fit(hardware, shape)


def test_a_run_that_fits_gets_no_advice() -> None:
    assert advise_training(_RL, _fit(gpu(10000.0), "Qwen/Qwen3-0.6B")) == ()


def test_each_change_is_reported_with_what_it_really_saves() -> None:
    fit = _fit(gpu(79.2), "Qwen/Qwen3-4B")
    before = fit(_SFT)
    assert not before.fits
    advice = advise_training(_SFT, fit)
    assert {field for one in advice for field, _ in one.assignments} >= {
        "trainer.activation_checkpointing",
        "finetune.micro_batch_sequences",
        "trainer.optim_cpu_offload",
        "finetune.ctx_tokens",
        "lora.rank",
    }
    for one in advice:
        after = fit(apply_changes(_SFT, one.assignments))
        assert one.saving_bytes == pytest.approx(before.needed_bytes - after.needed_bytes)
        assert one.saving_bytes > 0
        assert one.fits == after.fits


def test_the_cheapest_change_comes_first() -> None:
    advice = advise_training(_SFT, _fit(gpu(79.2), "Qwen/Qwen3-4B"))
    order = [one.assignments[0][0] for one in advice]
    assert (
        order.index("trainer.activation_checkpointing") < order.index("finetune.ctx_tokens") < order.index("lora.rank")
    )


def test_where_no_change_is_enough_alone_the_first_that_are_together_are_reported() -> None:
    hardware = gpu(23.5, "rtx4090")
    fit = _fit(hardware, "Qwen/Qwen3-1.7B")
    advice = advise_training(_SFT, fit)
    alone = [one for one in advice if len(one.assignments) == 1 and one.assignments[0][0] != "lora.rank"]
    assert not any(one.fits for one in alone)
    assert advice[0].fits
    assert len(advice[0].assignments) > 1
    assert fit(apply_changes(_SFT, advice[0].assignments)).fits


def test_only_what_the_file_has_a_key_for_is_advised() -> None:
    fit = _fit(gpu(79.2), "Qwen/Qwen3-4B")
    advice = advise_training(_SFT, fit, lambda field: field != "trainer.optim_cpu_offload")
    assert all(field != "trainer.optim_cpu_offload" for one in advice for field, _ in one.assignments)


def test_advice_reads_as_an_assignment_in_the_user_s_keys() -> None:
    keys = {"trainer.activation_checkpointing": "model.ac", "finetune.ctx_tokens": "data.seq_len"}
    advice = advise_training(_SFT, _fit(gpu(79.2), "Qwen/Qwen3-4B"))
    texts = [one.text(lambda field: keys.get(field, field)) for one in advice]
    assert any(text.startswith("[model.ac] (saves ") for text in texts)
    assert any(text.startswith("data.seq_len = ") and "GiB per GPU" in text for text in texts)


def test_a_number_that_is_lowered_is_the_largest_that_fits() -> None:
    fit = _fit(gpu(139.8, "h200"), "Qwen/Qwen3-4B")
    shorter = next(
        one for one in advise_training(_SFT, fit) if one.assignments[0][0] == "finetune.ctx_tokens" and one.fits
    )
    tokens = shorter.assignments[0][1]
    assert isinstance(tokens, int)
    assert not fit(apply_changes(_SFT, (("finetune.ctx_tokens", tokens + 256),))).fits


def test_a_run_toml_is_reported_its_own_fields() -> None:
    run = dataclasses.replace(
        _RUN,
        batch=Batch(micro_batch=64),
        precision=Precision(compute="fp32"),
        parallel=Parallel(processes=4),
        data=dataclasses.replace(_RUN.data, ctx_tokens=8192),
    )
    fields = [field for change in training_changes(run) for field, _ in change.assignments]
    assert fields[0] == "precision.compute"
    assert {"batch.micro_batch", "batch.global_batch", "parallel.dp_shard", "data.ctx_tokens"} <= set(fields)
    advice = advise_training(run, _fit(gpu(23.5, "rtx4090"), "Qwen/Qwen3-0.6B"))
    assert advice[0].fits
    fewer = next(one for one in advice if "batch.micro_batch" in dict(one.assignments))
    assert dict(fewer.assignments)["batch.global_batch"] == global_batch(run)  # the step stays what it was


def test_blocks_are_computed_again_before_sequences_are_shortened() -> None:
    parallel, data = Parallel(processes=8, dp_shard=8), dataclasses.replace(_RUN.data, ctx_tokens=8192)
    run = dataclasses.replace(_RUN, batch=Batch(micro_batch=1), parallel=parallel, data=data)
    fit = _fit(gpu(23.5, "rtx4090"), "Qwen/Qwen3-4B")
    first = advise_training(run, fit)[0]
    assert dict(first.assignments) in ({"model.recompute": "selective"}, {"model.recompute": "full"})
    assert first.fits == fit(apply_changes(run, first.assignments)).fits
    every_second = dataclasses.replace(run, model=Model(recompute="full", recompute_every=2))
    fields = [field for change in training_changes(every_second) for field, _ in change.assignments]
    assert fields == ["model.recompute_every", "data.ctx_tokens"]


def test_shorter_sequences_keep_the_batch_whole_and_have_room_for_answers() -> None:
    data = dataclasses.replace(_RUN.data, ctx_tokens=32768)
    tokens = dataclasses.replace(_RUN, data=data, batch=Batch(micro_batch=1, global_batch_tokens=2**19))
    shorter = list(training_changes(tokens))[-1]
    for usable_gib in (15, 20, 30):
        ((_, ctx_tokens),) = choose_number(tokens, _fit(gpu(usable_gib, "rtx4090"), "Qwen/Qwen3-0.6B"), shorter)
        assert isinstance(ctx_tokens, int)
        assert 32768 % ctx_tokens == 0
    learns = dataclasses.replace(_RUN.run, kind="rl")
    answers = dataclasses.replace(_RUN, run=learns, data=data, rl=Rl(answer_tokens=4096))
    assert list(training_changes(answers))[-1].least == 4352


def test_a_recipe_is_reported_its_own_fields() -> None:
    run = dataclasses.replace(
        _RUN,
        recipe=prime_rl_parts.Recipe(program="hf", gpus=2, micro_batch=8, ctx_tokens=4096, weight_dtype="fp32"),
        format="recipe",
    )
    advice = advise_training(run, _fit(gpu(79.2), "Qwen/Qwen3-8B"))
    assert advice
    assert all(field.startswith("recipe.") for one in advice for field, _ in one.assignments)


def test_the_fewest_gpus_are_the_fewest() -> None:
    fit = _fit(gpu(79.2), "Qwen/Qwen3-32B")
    short = apply_changes(_RL, (("trainer.ctx_tokens", 2048), ("trainer.activation_checkpointing", True)))
    fewest = smallest_gpus(short, fit)
    assert fewest is not None
    assert fit(with_gpus(short, fewest)).fits
    assert not fit(with_gpus(short, fewest // 2)).fits


def test_what_no_number_of_gpus_holds_is_reported() -> None:
    fit = _fit(gpu(23.5, "rtx4090"), "Qwen/Qwen3-32B")
    long = apply_changes(_RL, (("trainer.ctx_tokens", 131072),))
    assert smallest_gpus(long, fit) is None


def test_a_server_that_does_not_start_gets_advice() -> None:
    hardware, shape = gpu(79.2), shape_of("Qwen/Qwen3-32B")
    run = apply_changes(_RL, (("inference.ctx_tokens", 131072),))
    fit = server_fit(hardware, shape)
    assert not fit(run).fits
    advice = advise_serving(run, hardware, shape)
    shorter = next(one for one in advice if one.assignments[0][0] == "inference.ctx_tokens")
    wider = next(one for one in advice if one.assignments[0][0] == "inference.tensor_parallel")
    assert shorter.fits
    assert wider.fits
    assert fit(apply_changes(run, shorter.assignments)).fits


def test_a_server_that_starts_gets_none() -> None:
    assert advise_serving(_RL, gpu(79.2), shape_of("Qwen/Qwen3-4B")) == ()


def test_changes_of_a_server_leave_out_what_it_does_already() -> None:
    run = apply_changes(
        _RL,
        (
            ("inference.enforce_eager", True),
            ("inference.gpu_memory_fraction", 0.95),
            ("inference.tensor_parallel", 8),
            ("inference.quantization", "fp8"),
        ),
    )
    assert [change.assignments[0][0] for change in serving_changes(run, 8, 256)] == []


def test_changed_sets_and_makes_parts() -> None:
    run = apply_changes(_RUN, (("lora.rank", 8), ("batch.micro_batch", 2)))
    assert value_of(run, "lora.rank") == 8
    assert value_of(run, "batch.micro_batch") == 2
    assert value_of(_RUN, "lora.rank") is None


@given(st.floats(1, 400), st.sampled_from(("Qwen/Qwen3-0.6B", "Qwen/Qwen3-8B")))
def test_what_is_reported_to_fit_fits(usable_gib: float, model: str) -> None:
    fit = _fit(gpu(usable_gib), model)
    for one in advise_training(_SFT, fit):
        assert one.fits == fit(apply_changes(_SFT, one.assignments)).fits


def test_what_is_missing_is_less_than_nothing_where_there_is_room() -> None:
    assert Fit(2 * GIB, 3 * GIB).missing_bytes == -GIB
    assert Fit(3 * GIB, 2 * GIB).missing_bytes == GIB


@pytest.mark.parametrize("global_batch", [60, 64, 7 * 13])
def test_a_micro_batch_that_is_advised_divides_the_step(global_batch: int) -> None:
    fit = _fit(gpu(79.2), "Qwen/Qwen3-0.6B")
    run = dataclasses.replace(_RUN, batch=Batch(micro_batch=60, global_batch=global_batch))
    found = next(one for one in advise_training(run, fit) if one.assignments[0][0] == "batch.micro_batch")
    micro_batch = found.assignments[0][1]
    assert isinstance(micro_batch, int)
    assert global_batch % micro_batch == 0
    assert found.fits == fit(apply_changes(run, found.assignments)).fits


@given(st.integers(1, 96), st.integers(2, 12), st.floats(10, 200))
def test_a_micro_batch_of_prime_rl_that_is_advised_divides_the_batch(batch: int, micro: int, usable_gib: float) -> None:
    sft = prime_rl_parts.Finetune(ctx_tokens=8192, batch_sequences=batch, micro_batch_sequences=micro)
    run = replace_parts(_SFT, finetune=sft)
    for one in advise_training(run, _fit(gpu(usable_gib), "Qwen/Qwen3-0.6B")):
        said = dict(one.assignments).get("finetune.micro_batch_sequences", 1)
        assert isinstance(said, int)
        assert batch % said == 0


def _speed(hardware: Hardware, model: str) -> SpeedOf:
    return trainer_speed(hardware, shape_of(model))


@pytest.mark.parametrize("gpus", ["rtx-4090", "a100-40gb", "h100-80gb"])
@pytest.mark.parametrize("model", ["Qwen/Qwen3-0.6B", "Qwen/Qwen3-1.7B", "Qwen/Qwen3-4B"])
def test_the_first_advice_is_enough_and_nearly_as_fast_as_any_that_is(model: str, gpus: str) -> None:
    hardware = hardware_from_name(gpus)
    fit, speed = _fit(hardware, model), _speed(hardware, model)
    if fit(_SFT).fits:
        return
    advice = advise_training(_SFT, fit, speed_of=speed)
    followed = apply_changes(_SFT, advice[0].assignments)
    assert fit(followed).fits
    if "finetune.ctx_tokens" in dict(advice[0].assignments):
        return
    for one in advice[1:]:
        if (
            one.fits
            and not {"finetune.ctx_tokens", "lora.rank", "trainer.optimization_dtype"} & dict(one.assignments).keys()
        ):
            assert speed(followed) >= 0.9 * speed(apply_changes(_SFT, one.assignments))


def test_what_keeps_the_training_comes_before_what_rounds_it_and_that_before_what_changes_it() -> None:
    fit = _fit(gpu(79.2), "Qwen/Qwen3-4B")
    first = advise_training(_SFT, fit)[0]
    kinds = {field: change.kind for change in training_changes(_SFT) for field, _ in change.assignments}
    assert {kinds[field] for field, _ in first.assignments} == {Kind.SAME}


def test_fewer_changes_win_where_they_are_as_fast() -> None:
    fit = _fit(gpu(139.8, "h200"), "Qwen/Qwen3-4B")
    hardware = hardware_from_name("h200")
    checkpointed = apply_changes(
        _SFT, (("trainer.activation_checkpointing", True), ("trainer.head_chunk_tokens", 1024))
    )
    more = apply_changes(checkpointed, (("finetune.micro_batch_sequences", 64), ("finetune.batch_sequences", 64)))
    first = advise_training(more, fit, speed_of=_speed(hardware, "Qwen/Qwen3-4B"))[0]
    assert [field for field, _ in first.assignments] == ["finetune.micro_batch_sequences"]


def test_numbers_of_16_and_8_bits_are_named() -> None:
    fields = {field for change in training_changes(_SFT) for field, _ in change.assignments}
    assert "trainer.optimization_dtype" in fields
    recipe = dataclasses.replace(_RUN, recipe=prime_rl_parts.Recipe(program="hf", weight_dtype="fp32"), format="recipe")
    assert {("recipe.optimizer", "adamw-8bit"), ("recipe.weight_dtype", "bf16")} <= {
        pair for change in training_changes(recipe) for pair in change.assignments
    }


@pytest.mark.parametrize(
    "run",
    [
        replace_parts(_SFT, lora=prime_rl_parts.Lora(rank=64)),
        replace_parts(_RL, lora=prime_rl_parts.Lora()),
        dataclasses.replace(
            _RUN, recipe=prime_rl_parts.Recipe(program="hf", adapter="lora", micro_batch=8), format="recipe"
        ),
        dataclasses.replace(
            _RUN, recipe=prime_rl_parts.Recipe(program="hf", adapter_rank=16, micro_batch=8), format="recipe"
        ),
    ],
)
def test_an_adapter_is_not_advised_to_an_adapter(run: RunSpec) -> None:
    fields = {field for change in training_changes(run) for field, _ in change.assignments}
    assert not {"lora.rank", "recipe.adapter", "recipe.optimizer"} & fields


def test_a_frozen_base_in_32_bits_is_advised_to_16() -> None:
    """The base of Qwen2.5-7B takes 28 GiB in fp32: no other change makes an adapter fit on 32 GiB."""
    run = replace_parts(
        _SFT,
        lora=prime_rl_parts.Lora(rank=16),
        trainer=prime_rl_parts.Trainer(activation_offloading=True, optim_cpu_offload=True),
        finetune=prime_rl_parts.Finetune(ctx_tokens=4096, batch_sequences=8),
    )
    fit = _fit(gpu(31.3, "rtx-5090"), "Qwen/Qwen2.5-7B-Instruct")
    first = advise_training(run, fit)[0]
    assert first.fits
    assert ("trainer.optimization_dtype", "bfloat16") in first.assignments


_SHARED = replace_parts(
    _RL,
    launch=prime_rl_parts.LaunchPart(generation="2026-01"),
    trainer=prime_rl_parts.Trainer(ctx_tokens=2048, activation_checkpointing=True),
    rollout=prime_rl_parts.RolloutPart(ctx_tokens=2048, batch_rollouts=8, group_size=2),
    inference=prime_rl_parts.Inference(ctx_tokens=2048),
)


def _lines(run: RunSpec, hardware: Hardware, model: str) -> tuple[str, ...]:
    shape = shape_of(model)
    return advise(Case(run, hardware, shape, memory_of(run, hardware, shape)[0]), Keys(str, bool))


def test_one_gpu_for_two_roles_gets_the_settings_with_which_they_share_it() -> None:
    first = _lines(_SHARED, hardware_from_name("rtx-4090"), "Qwen/Qwen3-0.6B")[0]
    assert first.startswith("trainer and server on the one GPU: deployment.train_gpu_ids = [0]")
    assert "inference.gpu_memory_fraction = 0." in first
    assert "rl-single-gpu" in first


def test_two_gpus_get_no_advice_to_share_one() -> None:
    assert not any("on the one GPU" in line for line in _lines(_RL, hardware_from_name("2xrtx-4090"), "Qwen/Qwen3-4B"))


def test_an_adapter_is_not_advised_where_two_roles_share_a_gpu_with_one() -> None:
    ids = (("deployment.train_gpu_ids", (0,)), ("deployment.infer_gpu_ids", (0,)))
    run = apply_changes(replace_parts(_SHARED, lora=prime_rl_parts.Lora(rank=16)), ids)
    hardware = hardware_from_name("rtx-4090")
    assert not any("LoRA" in line for line in _lines(run, hardware, "Qwen/Qwen3-32B"))
    full = apply_changes(_SHARED, ids)
    assert any("LoRA" in line for line in _lines(full, hardware, "Qwen/Qwen3-32B"))


def test_where_no_change_is_enough_the_gpus_that_are_enough_with_them_come_first() -> None:
    shape, hardware = shape_of("Qwen/Qwen3-32B"), hardware_from_name("h100-80gb")
    case = Case(_SFT, hardware, shape, memory_of(_SFT, hardware, shape)[0])
    keys = Keys(str, lambda field: field in ("trainer.activation_checkpointing", "finetune.micro_batch_sequences"))
    first = advise(case, keys)[0]
    assert "trainer.activation_checkpointing" in first
    gpus = int(first.rpartition("over ")[2].split()[0])
    assert gpus > 1


def test_the_changes_of_more_gpus_name_each_field_once() -> None:
    run = dataclasses.replace(_RUN, batch=Batch(micro_batch=8, global_batch=64), parallel=Parallel(dp_shard=1))
    shape, hardware = shape_of("Qwen/Qwen3-32B"), hardware_from_name("h100-80gb")
    first = advise(Case(run, hardware, shape, memory_of(run, hardware, shape)[0]), Keys(str, bool))[0]
    assert first.startswith('batch.micro_batch = 1, model.recompute = "full": then it fits if sharded over ')
