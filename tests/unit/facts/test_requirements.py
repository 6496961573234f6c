from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from prime_train.facts import requirements
from prime_train.spec import Precision, RunSpec
from prime_train.spec.answers import replace_parts
from prime_train.spec.prime_rl_parts import (
    Environments,
    EnvironmentSource,
    Inference,
    LaunchPart,
    Monitor,
    RolloutPart,
    Trainer,
    Transport,
    WeightBroadcast,
)
from tests.system.facts.test_gather import quickstart


def prime_rl() -> RunSpec:
    return replace_parts(
        quickstart(),
        launch=LaunchPart(output_dir="outputs", run_name="mine"),
        trainer=Trainer(model_name="lab/model", tokenizer_name="lab/words"),
        rollout=RolloutPart(model_name="lab/model", env_server_base_port=5000),
        inference=Inference(model_name="lab/model", port=8000, backend_port=8100, router="vllm"),
        environments=Environments(
            train=(EnvironmentSource(id="lab/my-env@0.1"), EnvironmentSource(id="served", address="tcp://other:1")),
            evaluate=(EnvironmentSource(id="my-env"), EnvironmentSource(id="not a module")),
        ),
        weight_broadcast=WeightBroadcast(kind="nccl", port=29501),
        transport=Transport(kind="filesystem", port=5555),
        format="prime-rl",
    )


def test_a_run_of_ours_asks_for_no_port_and_no_repository() -> None:
    run = quickstart()
    assert list(requirements.services(run)) == []
    assert requirements.repositories(run) == {}
    assert requirements.environment_modules(run) == {}
    assert requirements.engine_arguments(run) is None
    assert requirements.python(run) == sys.executable
    assert requirements.run_dir(run) == Path(run.run.dir) / run.run.name


def test_the_ports_that_a_run_listens_on() -> None:
    assert [(service.port, service.field) for service in requirements.services(prime_rl())] == [
        (8000, "inference.port"),
        (8100, "inference.backend_port"),
        (29000, "inference.port"),
        (5000, "rollout.env_server_base_port"),
        (5002, "rollout.env_server_base_port"),
        (5003, "rollout.env_server_base_port"),
        (29501, "weight_broadcast.port"),
    ]


def test_the_modules_of_environments() -> None:
    assert requirements.environment_modules(prime_rl()) == {
        "my_env": "environments.train.0.id",
        "served": "environments.train.1.id",
    }


def test_the_repositories_that_a_run_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = prime_rl()
    assert requirements.repositories(run) == {
        ("model", "lab/model"): "trainer.model_name",
        ("model", "lab/words"): "trainer.tokenizer_name",
    }
    monkeypatch.chdir(tmp_path)
    Path("lab/words").mkdir(parents=True)
    assert ("model", "lab/words") not in requirements.repositories(run)  # a folder of that name is meant


def test_the_interpreter_that_a_config_names() -> None:
    assert (
        requirements.python(
            replace_parts(quickstart(), launch=LaunchPart(python="/venv/bin/python"), format="prime-rl")
        )
        == "/venv/bin/python"
    )


def test_the_arguments_of_the_engine() -> None:
    run = replace(prime_rl(), inference=Inference(model_name="lab/model", ctx_tokens=4096, enable_lora=True))
    assert requirements.engine_arguments(run) == ["--model", "lab/model", "--max-model-len", "4096", "--enable-lora"]


def test_who_reports_to_wandb() -> None:
    assert not requirements.reports_to_wandb(quickstart())
    assert requirements.reports_to_wandb(
        replace_parts(quickstart(), monitor=Monitor(project="mine"), format="prime-rl")
    )
    assert not requirements.reports_to_wandb(
        replace_parts(quickstart(), monitor=Monitor(project="mine", offline=True), format="prime-rl")
    )


def test_the_interpreters_that_a_config_names_are_listed() -> None:
    assert requirements.named_interpreters(quickstart()) == ()
    run = replace_parts(
        prime_rl(), launch=LaunchPart(output_dir="outputs", run_name="mine", python="~/venv/bin/python")
    )
    assert requirements.named_interpreters(run) == (str(Path("~/venv/bin/python").expanduser()),)
    assert requirements.named_interpreters(run, "/usr/bin/python3") == ()


def test_fp8_needs_torchao_in_the_interpreter_of_the_trainer() -> None:
    run = replace(quickstart(), precision=Precision(fp8="rowwise"))
    (part,) = requirements.parts(run)
    assert (part.field, part.package, part.python) == ("precision.fp8", "torchao", sys.executable)
    assert [*requirements.parts(quickstart())] == []
