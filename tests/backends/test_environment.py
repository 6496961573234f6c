from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from prime_train.backends import environment
from prime_train.backends.environment import MASK, Host, plan, redact, secrets
from prime_train.backends.launch import Launch, Variable, to_json
from prime_train.rundir import RunDir
from prime_train.spec import Data, Parallel, Run, RunSpec, Source

RUN_DIR = RunDir(Path("/runs/a"))


def values(environ: dict[str, str] | None = None, processes: int = 1, cores: int = 8) -> dict[str, str]:
    run = RunSpec(run=Run(name="a", max_steps=1), data=Data(sources=(Source(kind="python-stdlib"),)))
    run = replace(run, parallel=Parallel(processes=processes))
    return {v.name: v.value for v in plan(run, RUN_DIR, 3, Host(environ or {}, cores, "17:99"))}


def test_a_trainer_knows_its_run_and_its_supervisor_and_is_unbuffered() -> None:
    found = values()
    assert (found["PRIME_TRAIN_RUN"], found["PRIME_TRAIN_SUPERVISOR"]) == ("/runs/a", "17:99")
    assert found["PYTHONUNBUFFERED"] == "1"


def test_cores_are_divided_and_never_to_nothing() -> None:
    assert values(processes=1)["OMP_NUM_THREADS"] == "8"
    assert values(processes=3)["OMP_NUM_THREADS"] == "2"
    assert values(processes=16)["OMP_NUM_THREADS"] == "1"


def test_what_the_user_has_set_stays_but_for_the_marks_of_the_run() -> None:
    found = values({"OMP_NUM_THREADS": "3", "PRIME_TRAIN_SUPERVISOR": "1:1", "TOKENIZERS_PARALLELISM": ""})
    assert "OMP_NUM_THREADS" not in found
    assert found["PRIME_TRAIN_SUPERVISOR"] == "17:99"
    assert found["TOKENIZERS_PARALLELISM"] == "false"
    assert "PYTORCH_ALLOC_CONF" not in values({"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"})


def test_collectives_are_recorded_under_both_names_where_there_are_any() -> None:
    assert not any(name.startswith(("TORCH_", "GLOO_", "NCCL_")) for name in values(processes=1))
    found = values(processes=2)
    assert found["TORCH_FR_BUFFER_SIZE"] == found["TORCH_NCCL_TRACE_BUFFER_SIZE"] == "2000"
    assert found["TORCH_FR_DUMP_TEMP_FILE"] == found["TORCH_NCCL_DEBUG_INFO_TEMP_FILE"]


def test_ranks_meet_on_loopback_unless_the_user_says_where() -> None:
    found = values(processes=2)
    assert found["GLOO_SOCKET_IFNAME"] == found["NCCL_SOCKET_IFNAME"] == "lo"
    assert "NCCL_SOCKET_IFNAME" not in values({"NCCL_SOCKET_IFNAME": "eth0"}, processes=2)


def test_every_variable_has_a_reason() -> None:
    run = RunSpec(run=Run(name="a", max_steps=1), data=Data(sources=(Source(kind="python-stdlib"),)))
    run = replace(run, parallel=Parallel(processes=2))
    assert all(variable.reason for variable in plan(run, RUN_DIR, 1, Host({}, 2, "1:1")))


# A mask cannot be hidden by itself, so the secrets drawn here do not contain its character.
_secret = st.text(st.characters(exclude_characters=MASK[0], exclude_categories=["Cs"]), min_size=4)
_secret_name = st.builds(
    lambda head, tail: head + tail,
    st.sampled_from(["", "WANDB_API_", "aws_access_", "HF_", "x"]),
    st.sampled_from(["KEY", "TOKEN", "SECRET", "PASSWORD", "key", "token"]),
)


@given(st.dictionaries(_secret_name, _secret, min_size=1), st.lists(st.text()), st.data())
def test_no_secret_is_left_in_a_text(environ: dict[str, str], around: list[str], data: st.DataObject) -> None:
    pieces = [piece for text in around for piece in (text, data.draw(st.sampled_from(sorted(environ.values()))))]
    hidden = redact("".join(pieces), secrets(environ))
    assert not any(value in hidden for value in environ.values())


@given(st.dictionaries(_secret_name, _secret, min_size=1))
def test_no_secret_is_left_in_a_launch_that_is_written_down(environ: dict[str, str]) -> None:
    value = next(iter(environ.values()))
    launch = Launch(
        "trainer", ("run", f"--login={value}"), Path("/"), Path("/log"), (Variable("URL", f"u:{value}@h", ""),)
    )
    written = json.loads(to_json(environment.hide(launch, secrets(environ))))
    assert value not in written["argv"][1]
    assert value not in written["variables"][0]["value"]


def test_ordinary_variables_are_not_secrets() -> None:
    environ = {"TOKENIZERS_PARALLELISM": "false", "PATH": "/usr/bin", "API_KEY": "on", "MONKEY": "banana", "HOME": "/"}
    assert secrets(environ) == ("banana",)
    assert redact("turn it on", secrets(environ)) == "turn it on"
