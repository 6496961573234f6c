"""What must hold of every training's memory, and what is known of some."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prime_train.core.units import GIB
from prime_train.estimate.memory.setup_from_run import setup_of
from prime_train.estimate.memory.sharding import lora_parameters
from prime_train.estimate.memory.train_setup import AdapterSize, TrainSetup
from prime_train.estimate.memory.training import training_memory
from prime_train.estimate.model.shape import ModelShape, shape_from_registry
from prime_train.spec import RunSpec
from prime_train.spec.answers import global_batch, prime_rl_of, replace_parts
from prime_train.spec.prime_rl_parts import Recipe, Trainer
from tests.unit.estimate.training_cases import EIGHT_GPUS, native, prime_rl, recipe, runs, shape, shapes


def bytes_of(setup: TrainSetup) -> float:
    return training_memory(setup, EIGHT_GPUS).reserved.typical


def setups() -> st.SearchStrategy[TrainSetup]:
    return st.builds(lambda run, model: setup_of(run, EIGHT_GPUS, model), runs(), shapes())


@given(setups(), st.sampled_from((0.0, 24 * GIB, 80 * GIB)))
def test_terms_add_up_and_none_is_negative(setup: TrainSetup, usable_bytes: float) -> None:
    memory = training_memory(setup, EIGHT_GPUS._replace(usable_bytes=usable_bytes))
    assert math.fsum(term.bytes for term in memory.terms) == pytest.approx(memory.reserved.typical, rel=1e-12)
    assert all(term.bytes >= 0 and math.isfinite(term.bytes) for term in (*memory.terms, *memory.outside))
    assert all(term.name and term.formula and term.source for term in memory.terms)
    assert memory.reserved.low <= memory.reserved.typical <= memory.reserved.high
    assert len({term.name for term in memory.terms}) == len(memory.terms)


@given(setups(), st.integers(1, 10**7))
def test_memory_never_falls_with_more_tokens(setup: TrainSetup, more: int) -> None:
    assert bytes_of(setup._replace(tokens=setup.tokens + more)) >= bytes_of(setup)


def longer(run: RunSpec, factor: int) -> RunSpec:
    """The same run with sequences of so many times the tokens."""
    parts = prime_rl_of(run)
    data = dataclasses.replace(run.data, ctx_tokens=run.data.ctx_tokens * factor)
    trainer, finetune, asked = parts.trainer, parts.finetune, run.recipe
    return replace_parts(
        run,
        data=data,
        trainer=trainer and trainer._replace(ctx_tokens=(trainer.ctx_tokens or 2048) * factor),
        finetune=finetune and finetune._replace(ctx_tokens=(finetune.ctx_tokens or 2048) * factor),
        recipe=asked and asked._replace(ctx_tokens=(asked.ctx_tokens or 2048) * factor),
    )


def broader(run: RunSpec, factor: int) -> RunSpec:
    """The same run with so many times the sequences in each of as many micro-batches."""
    batch = dataclasses.replace(
        run.batch, micro_batch=run.batch.micro_batch * factor, global_batch=global_batch(run) * factor
    )
    finetune, asked = prime_rl_of(run).finetune, run.recipe
    return replace_parts(
        run,
        batch=batch,
        finetune=finetune
        and finetune._replace(
            micro_batch_sequences=(finetune.micro_batch_sequences or 1) * factor,
            batch_sequences=finetune.batch_sequences and finetune.batch_sequences * factor,
        ),
        recipe=asked and asked._replace(micro_batch=(asked.micro_batch or 1) * factor),
    )


@pytest.mark.parametrize("grown", [longer, broader])
@given(run=runs(), model=shapes(), factor=st.integers(2, 64))
def test_memory_of_a_run_never_falls_with_length_or_batch(
    grown: Callable[[RunSpec, int], RunSpec], run: RunSpec, model: ModelShape, factor: int
) -> None:
    before, after = (bytes_of(setup_of(each, EIGHT_GPUS, model)) for each in (run, grown(run, factor)))
    assert after >= before * (1 - 1e-9)


@given(setups(), st.integers(1, 100))
def test_memory_never_falls_with_more_micro_batches(setup: TrainSetup, more: int) -> None:
    assert bytes_of(setup._replace(micro_batches=setup.micro_batches + more)) >= bytes_of(setup)


@given(runs(), st.integers(1, 40), st.integers(1, 40), st.sampled_from((0, 8)))
def test_memory_never_falls_with_more_layers(run: RunSpec, layers: int, more: int, experts: int) -> None:
    fewer, deeper = (setup_of(run, EIGHT_GPUS, shape(count, experts=experts)) for count in (layers, layers + more))
    assert bytes_of(deeper) >= bytes_of(fewer) * (1 - 1e-9)


@given(setups(), st.integers(1, 256), st.integers(1, 256))
def test_memory_never_falls_with_rank(setup: TrainSetup, rank: int, more: int) -> None:
    low, high = (
        setup._replace(adapter=AdapterSize("lora", count, lora_parameters(setup.shape, count)))
        for count in (rank, rank + more)
    )
    assert bytes_of(high) >= bytes_of(low)


@given(setups(), st.integers(1, 8), st.integers(1, 8))
def test_memory_never_rises_with_more_shards(setup: TrainSetup, power: int, more: int) -> None:
    """Among sharded layouts: the first cut brings gather buffers that one GPU does without."""
    few, many = (
        setup._replace(layout=setup.layout._replace(shards=2**count, expert=1)) for count in (power, power + more)
    )
    assert bytes_of(many) <= bytes_of(few) * (1 + 1e-9)


@pytest.mark.parametrize("program", ["bundled", "prime-rl", "torchtitan"])
@pytest.mark.parametrize("name", ["Qwen/Qwen3-0.6B", "Qwen/Qwen3-8B", "Qwen/Qwen3-30B-A3B"])
def test_sharding_a_real_model_saves_memory(program: str, name: str) -> None:
    model = shape_from_registry(name)
    assert model is not None
    spread: dict[int, RunSpec] = {}
    for gpus in (1, 2, 4, 8):
        spread[gpus] = {
            "bundled": native(processes=gpus, shards=gpus),
            "prime-rl": prime_rl(Trainer(ctx_tokens=4096, activation_checkpointing=True), gpus),
            "torchtitan": recipe(Recipe(program="torchtitan", gpus=gpus, sharding="fsdp", weight_dtype="fp32")),
        }[program]
    taken = [bytes_of(setup_of(run, EIGHT_GPUS._replace(gpus=gpus), model)) for gpus, run in spread.items()]
    assert taken == sorted(taken, reverse=True)


@settings(max_examples=30)
@given(runs(), st.integers(1, 10**15), st.integers(1, 10**9))
def test_absurd_sizes_give_a_figure(run: RunSpec, parameters: int, tokens: int) -> None:
    absurd = shape(layers=1000, hidden=64)._replace(parameters=parameters)
    memory = training_memory(setup_of(run, EIGHT_GPUS, absurd)._replace(tokens=tokens), EIGHT_GPUS)
    assert 0 < memory.reserved.typical < math.inf


def model() -> ModelShape:
    return shape()


def terms_of(run: RunSpec) -> dict[str, float]:
    memory = training_memory(setup_of(run, EIGHT_GPUS, model()), EIGHT_GPUS)
    return {term.name: term.bytes for term in memory.terms}


def test_adam_in_fp32_takes_sixteen_bytes_a_parameter() -> None:
    terms = terms_of(native(micro_batch=64, ctx_tokens=8192, processes=8, compute="fp32"))
    states = terms["parameters"] + terms["gradients"] + terms["optimizer states"]
    assert states == pytest.approx(16 * model().parameters)


def test_full_checkpointing_keeps_one_stream_per_layer() -> None:
    terms = terms_of(prime_rl(Trainer(ctx_tokens=65536, activation_checkpointing=True)))
    assert terms["saved residuals"] == pytest.approx(28 * 65536 * 1024 * 2)


def test_supervised_tuning_makes_all_logits_and_rl_a_chunk() -> None:
    trainer = Trainer(ctx_tokens=65536, activation_checkpointing=True)
    assert terms_of(prime_rl(trainer, sft=True))["logits and loss"] > 10 * 65536 * 151936
    chunked = training_memory(setup_of(prime_rl(trainer), EIGHT_GPUS, model()), EIGHT_GPUS)
    assert chunked.reserved.typical < 0.2 * bytes_of(setup_of(prime_rl(trainer, sft=True), EIGHT_GPUS, model()))


def test_each_saving_saves() -> None:
    plain = Recipe(program="hf", ctx_tokens=8192, micro_batch=2)
    taken = bytes_of(setup_of(recipe(plain), EIGHT_GPUS._replace(gpus=1), model()))
    for saving in (
        plain._replace(activation_checkpointing="full"),
        plain._replace(adapter="lora"),
        plain._replace(head="token-chunked"),
        plain._replace(micro_batch=1),
    ):
        assert bytes_of(setup_of(recipe(saving), EIGHT_GPUS._replace(gpus=1), model())) < taken


def test_a_program_without_measured_rows_has_the_wider_interval() -> None:
    def spread(program: str) -> float:
        memory = training_memory(setup_of(recipe(Recipe(program=program)), EIGHT_GPUS, model()), EIGHT_GPUS)
        return memory.reserved.high / memory.reserved.typical

    assert spread("nobody-knows") > spread("hf") > 1


def test_a_nearly_full_gpu_gets_its_reserve_cut_but_not_its_bound() -> None:
    setup = setup_of(native(micro_batch=8), EIGHT_GPUS, model())
    free = training_memory(setup, EIGHT_GPUS)
    full = training_memory(setup, EIGHT_GPUS._replace(usable_bytes=free.reserved.typical))
    assert full.reserved.typical < free.reserved.typical
    assert full.reserved.high == free.reserved.high
