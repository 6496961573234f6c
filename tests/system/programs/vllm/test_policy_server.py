"""The server of a run that learns from rewards: what it starts with, and how it is watched."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from prime_train import spec
from prime_train.core.errors import UserError
from prime_train.core.rundir import RunDir
from prime_train.programs.bundled import PROGRAM as BUNDLED
from prime_train.programs.vllm import program as vllm
from prime_train.programs.vllm.engine_watch import EngineHistory, EngineLimits, EngineSample, EngineWatch
from prime_train.spec import Data, RunSpec
from prime_train.spec.rl import Rl, TaskSource
from prime_train.spec.server import Server
from prime_train.supervise.core.state import Live, State
from prime_train.supervise.launch.program import Host
from prime_train.trainer.model import hf
from prime_train.trainer.model.decoder import config_of

RUN_DIR = RunDir(Path("/runs/a"))
RUN = RunSpec(
    run=spec.Run(name="a", kind="rl", max_steps=9),
    model=spec.Model(layers=2, hidden_size=64, heads=4, kv_heads=2, rope_theta=5e5),
    data=Data(sources=(), ctx_tokens=256),
    tokenizer=spec.Tokenizer(vocab_size=300),
    server=Server(python="/venv/bin/python", dtype="float32"),
)
HOST = Host({"PYTHONPATH": "/mine"}, 2, "1:1")


def arguments(run: RunSpec) -> str:
    return " ".join(vllm.plan(run, RUN_DIR, 1).argv[5:])


def test_it_starts_without_weights_and_tokenizer_and_with_the_context_of_the_run() -> None:
    assert arguments(RUN) == (
        "-m vllm.entrypoints.openai.api_server --model /runs/a/policy --host 127.0.0.1 --port 8000 --dtype float32 "
        "--served-model-name policy --max-model-len 256 --load-format dummy --skip-tokenizer-init "
        "--logprobs-mode processed_logprobs --worker-extension-cls prime_train_weights.WeightLoader "
        "--middleware prime_train_key.KeyGuard"
    )


def test_its_config_is_that_of_the_trainers_model() -> None:
    ((path, text),) = vllm.plan(RUN, RUN_DIR, 1).files
    assert path == Path("/runs/a/policy/config.json")
    assert json.loads(text) == hf.to_hf_config(config_of(RUN.model, 300), hf.Export(ctx_tokens=256))


def test_its_config_is_readable_by_the_trainer(tmp_path: Path) -> None:
    ((_, text),) = vllm.plan(RUN, RUN_DIR, 1).files
    (tmp_path / "config.json").write_text(text)
    assert hf.read_config(tmp_path) == config_of(RUN.model, 300)


def test_a_model_folder_needs_no_config_of_its_own() -> None:
    run = replace(RUN, model=spec.Model(path="/models/m"))
    assert vllm.plan(run, RUN_DIR, 1).files == ()
    assert "--model /models/m " in arguments(run)
    named = replace(RUN, server=Server(model="/models/other", served_name="o", ctx_tokens=99))
    assert vllm.plan(named, RUN_DIR, 1).files == ()
    assert "--model /models/other " in arguments(named)
    assert "--served-model-name o --max-model-len 99 " in arguments(named)


def test_a_tokenizer_folder_decides_the_vocabulary(tmp_path: Path) -> None:
    run = replace(RUN, tokenizer=spec.Tokenizer(path=str(tmp_path)))
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": {"vocab": {"a": 0, "b": 1}}}))
    ((_, text),) = vllm.plan(run, RUN_DIR, 1).files
    assert json.loads(text)["vocab_size"] == 2
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(UserError, match="not known"):
        vllm.plan(run, RUN_DIR, 1)


def test_the_environment_has_the_extension_beside_the_users_own_path() -> None:
    forced = {variable.name: variable.value for variable in vllm.plan_environment(RUN, HOST).forced}
    extension, mine = forced["PYTHONPATH"].split(":")
    assert {"prime_train_weights.py", "prime_train_key.py"} <= {file.name for file in Path(extension).iterdir()}
    assert (mine, forced["VLLM_SERVER_DEV_MODE"]) == ("/mine", "1")
    serving = replace(RUN, run=replace(RUN.run, kind="serve"))
    assert not {"PYTHONPATH", "VLLM_SERVER_DEV_MODE"} & {v.name for v in vllm.plan_environment(serving, HOST).forced}


def test_a_local_engine_starts_no_server() -> None:
    run = replace(RUN, server=Server(engine="local"))
    assert [launch.role for launch in BUNDLED.plan(run, RUN_DIR, 1, 0)] == ["trainer"]
    assert [role.name for role in BUNDLED.roles(run)] == ["trainer"]
    assert vllm.create_watches(run, RUN_DIR) == ()
    assert [launch.role for launch in BUNDLED.plan(RUN, RUN_DIR, 1, 0)] == ["inference", "trainer"]


def look(watch: EngineWatch, version: int | None, step: int) -> list[str]:
    live = Live(0, last_sign_s=0.0, roles=("inference",), services=("inference",), ready=("inference",))
    watch.look(State(live=live, step=step), 0.0)  # the trainer is there before the sample is taken
    return judge_sample(watch, version, State(live=live, step=step))


def judge_sample(watch: EngineWatch, version: int | None, state: State) -> list[str]:
    at_s = time.monotonic()
    sample = EngineSample(at_s=at_s, health=200, metrics=200, weight_version=version)
    watch._memory = EngineHistory(last=sample, has_served=True, well_s=at_s, heard_s=at_s, counted_s=at_s)
    return [alarm.name for alarm in watch.look(state, 0.0)]


@pytest.mark.parametrize(
    ("version", "step", "found"),
    [
        (5, 6, []),  # the step in progress
        (5, 7, []),  # one behind
        (5, 8, ["engine_behind"]),
        (None, 8, []),  # no weights of the trainer yet
        (1, 4, []),  # the warm-up hands no weights over
        (1, 5, ["engine_behind"]),
    ],
)
def test_weights_that_are_too_old_are_an_alarm(version: int | None, step: int, found: list[str]) -> None:
    run = replace(RUN, rl=Rl(max_behind_steps=1, warmup_steps=4))
    (watch,) = vllm.create_watches(run, RUN_DIR)
    assert isinstance(watch, EngineWatch)
    assert look(watch, version, step) == found


def test_the_steps_since_a_sample_do_not_count() -> None:
    (watch,) = vllm.create_watches(replace(RUN, rl=Rl(max_behind_steps=1)), RUN_DIR)
    assert isinstance(watch, EngineWatch)
    assert look(watch, 5, 6) == []
    live = Live(0, last_sign_s=0.0, roles=("inference",), services=("inference",), ready=("inference",))
    assert judge_sample(watch, 5, State(live=live, step=60)) == []


def test_other_servers_are_watched_as_before() -> None:
    (watch,) = vllm.create_watches(replace(RUN, run=replace(RUN.run, kind="serve")), RUN_DIR)
    assert isinstance(watch, EngineWatch)
    assert watch._limits == EngineLimits()


@pytest.mark.parametrize("kind", ["pretrain", "sft"])
def test_the_server_of_evaluated_tasks_is_started_and_watched_as_that_of_rollouts(
    kind: Literal["pretrain", "sft"],
) -> None:
    tasks = (TaskSource(kind="reverse-text"),)
    text = replace(RUN, run=replace(RUN.run, kind=kind), tasks=tasks, eval=spec.Eval(interval_steps=4))
    assert vllm.plan(text, RUN_DIR, 1) == vllm.plan(RUN, RUN_DIR, 1)
    assert vllm.plan_environment(text, HOST) == vllm.plan_environment(RUN, HOST)
    assert [launch.role for launch in BUNDLED.plan(text, RUN_DIR, 1, 0)] == ["inference", "trainer"]
    (watch,) = vllm.create_watches(text, RUN_DIR)
    assert isinstance(watch, EngineWatch)
    seen = {step: look(watch, 4, step) for step in (4, 8, 9, 10)}  # the next evaluation is that of step 8
    assert seen == {4: [], 8: [], 9: [], 10: ["engine_behind"]}
    assert look(watch, None, 100) == []  # no weights of the trainer yet


def test_a_server_beside_a_training_without_tasks_serves_its_own_model() -> None:
    text = replace(RUN, run=replace(RUN.run, kind="pretrain"), server=Server(model="/models/other"))
    assert "--load-format" not in arguments(text)
    assert not {"PYTHONPATH", "VLLM_SERVER_DEV_MODE"} & {v.name for v in vllm.plan_environment(text, HOST).forced}
    (watch,) = vllm.create_watches(text, RUN_DIR)
    assert isinstance(watch, EngineWatch)
    assert watch._limits == EngineLimits()
