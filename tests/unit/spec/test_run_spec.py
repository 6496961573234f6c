"""What a RunSpec answers about itself, whichever kind of file it was read from."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from prime_train.spec import Batch, Data, Model, Parallel, Run, RunSpec, Tokenizer, run_spec
from prime_train.spec.answers import (
    machine_gpus,
    model_field,
    model_name,
    replace_parts,
    sequences_in_step,
    server_gpus,
    shares_gpus,
    silence_limit_s,
    tokenizer_name,
    train_gpus,
    trains,
    traits_of,
    write_folder,
    write_root,
)
from prime_train.spec.prime_rl_parts import (
    Deployment,
    Finetune,
    Inference,
    LaunchPart,
    PrimeRl,
    Recipe,
    RolloutPart,
    Trainer,
)
from prime_train.spec.server import Server

RUN = RunSpec(run=Run(name="a", max_steps=1, dir="here"), data=Data(sources=()), parallel=Parallel(processes=3))
SERVER = Server(model="served")
SERVES = replace(RUN, run=Run(name="a", kind="serve", max_steps=1), server=SERVER, inference=Inference("served"))
RL = replace_parts(
    RUN,
    launch=LaunchPart(),
    trainer=Trainer("trained"),
    rollout=RolloutPart("asked"),
    inference=Inference("served"),
    format="prime-rl",
)
SFT = replace_parts(RUN, launch=LaunchPart(), trainer=Trainer("trained"), finetune=Finetune(), format="prime-rl")
INFERENCE = replace_parts(RUN, launch=LaunchPart(), inference=Inference("served"), format="prime-rl")
RECIPE = replace(RUN, recipe=Recipe(model_name="described"), format="recipe")
SCRIPT = replace(RUN, jax=run_spec.Jax(), format="script")


@pytest.mark.parametrize(
    ("run", "file_format", "trained", "model", "field"),
    [
        (RUN, "run.toml", True, None, "model.path"),
        (replace(RUN, model=Model(path="mine")), "run.toml", True, "mine", "model.path"),
        (SERVES, "run.toml", False, "served", "inference.model_name"),
        (RL, "prime-rl", True, "trained", "trainer.model_name"),
        (SFT, "prime-rl", True, "trained", "trainer.model_name"),
        (INFERENCE, "prime-rl", False, "served", "inference.model_name"),
        (replace_parts(RUN, launch=LaunchPart(), format="prime-rl"), "prime-rl", False, None, "trainer.model_name"),
        (RECIPE, "recipe", True, "described", "recipe.model_name"),
        (SCRIPT, "script", False, None, "trainer.model_name"),
    ],
)
def test_what_is_trained(run: RunSpec, file_format: str, trained: bool, model: str | None, field: str) -> None:
    assert (run.format, trains(run), model_name(run), model_field(run)) == (file_format, trained, model, field)


def test_the_tokenizer_is_that_of_the_model_where_none_is_named() -> None:
    assert tokenizer_name(RUN) is None
    assert tokenizer_name(replace(RUN, tokenizer=Tokenizer(path="mine"))) == "mine"
    assert tokenizer_name(RL) == "trained"
    assert tokenizer_name(replace_parts(RL, trainer=Trainer("trained", tokenizer_name="other"))) == "other"
    assert tokenizer_name(replace_parts(RL, trainer=None)) == "asked"


def test_where_it_writes() -> None:
    assert (traits_of(RUN).write_root_field, write_root(RUN), write_folder(RUN)) == ("run.dir", "here", "a")
    assert (traits_of(RL).write_root_field, write_root(RL), write_folder(RL)) == ("launch.output_dir", "outputs", "")
    named = replace_parts(RL, launch=LaunchPart(output_dir="there", run_name="b"))
    assert (write_root(named), write_folder(named)) == ("there", "b")
    assert write_folder(replace_parts(RL, launch=LaunchPart(run_dir="c", run_name="b"))) == "c"


@pytest.mark.parametrize(
    ("run", "train", "serve", "shared"),
    [
        (RUN, 3, 0, False),
        (SERVES, 0, 1, False),
        (RL, None, 1, False),
        (replace_parts(RL, deployment=Deployment(train_gpus=2, infer_gpus=6)), 2, 6, False),
        (replace_parts(RL, deployment=Deployment(gpus_per_node=8, train_nodes=2, infer_nodes=1)), 16, 8, False),
        (replace_parts(RL, deployment=Deployment(train_gpus=1, infer_gpus=1, train_gpu_ids=(0,), infer_gpu_ids=(0,))),
         1, 1, True),
        (replace_parts(SFT, deployment=Deployment(train_gpus=2)), 2, 0, False),
        (replace(INFERENCE, inference=Inference(tensor_parallel=2, data_parallel=3)), 0, 6, False),
        (RECIPE, None, 0, False),
        (replace(RUN, recipe=Recipe(shards=4, tensor_parallel=2), format="recipe"), 8, 0, False),
        (replace(RUN, recipe=Recipe(gpus=5), format="recipe"), 5, 0, False),
        (SCRIPT, 0, 0, False),
    ],
)  # fmt: skip
def test_the_gpus_of_each_role(run: RunSpec, train: int | None, serve: int, shared: bool) -> None:
    assert (train_gpus(run), server_gpus(run), shares_gpus(run)) == (train, serve, shared)


@pytest.mark.parametrize(
    ("deployment", "infers", "asked"),
    [
        (None, True, None),
        (Deployment(train_gpus=2, infer_gpus=6), True, 8),
        (Deployment(train_gpus=8, infer_gpus=1), False, 8),
        (Deployment(train_gpus=8, infer_gpus=8, kind="multi_node"), True, None),
        (Deployment(train_gpu_ids=(0, 1), infer_gpu_ids=(1, 4)), True, 5),
        (Deployment(train_gpu_ids=(0, 1), infer_gpu_ids=(1, 4)), False, 2),
        (Deployment(), True, None),
    ],
)
def test_the_gpus_that_a_run_takes(deployment: Deployment | None, infers: bool, asked: int | None) -> None:
    run = replace_parts(
        RUN, launch=LaunchPart(), deployment=deployment, inference=Inference() if infers else None, format="prime-rl"
    )
    assert machine_gpus(run) == asked


def test_the_fields_that_it_names_are_fields() -> None:
    parts = {field.name for field in (*fields(RunSpec), *fields(PrimeRl))}
    for run in (RUN, SERVES, RL, SFT, INFERENCE, RECIPE, SCRIPT):
        named = {model_field(run), traits_of(run).write_root_field, traits_of(run).silence_field}
        assert {name.partition(".")[0] for name in named} <= parts


def test_how_long_a_save_may_take() -> None:
    assert silence_limit_s(RUN) == RUN.prime_train.heartbeat.slow_phase_limit_s
    assert silence_limit_s(RL) == 0
    assert silence_limit_s(replace_parts(RL, trainer=Trainer(dist_timeout_s=600))) == 600


@pytest.mark.parametrize(
    ("start", "steps", "expected"),
    [
        (None, None, [16] * 6),
        (4, 4, [4, 8, 12, 16, 16, 16]),
        (8, 4, [8, 8, 16, 16, 16, 16]),
        (4, 2, [4, 12, 16, 16, 16, 16]),
        (4, None, [16] * 6),
    ],
)
def test_a_batch_grows_in_equal_stages(start: int | None, steps: int | None, expected: list[int]) -> None:
    run = replace(RUN, batch=Batch(micro_batch=2, global_batch=16, start_batch=start, ramp_steps=steps))
    assert [sequences_in_step(run, step) for step in range(1, 7)] == expected
    other = replace(run, parallel=Parallel(processes=2))
    assert [sequences_in_step(other, step) for step in range(1, 7)] == expected
