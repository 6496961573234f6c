from __future__ import annotations

import json
import os
import resource
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_train.core.redaction import MASK, redact, secrets
from prime_train.core.rundir import RunDir
from prime_train.programs import bundled as of_bundled
from prime_train.programs.prime_rl import launcher as of_prime_rl
from prime_train.programs.vllm import program as of_vllm
from prime_train.spec import Data, Parallel, Run, RunSpec, Source
from prime_train.supervise.launch import environment
from prime_train.supervise.launch.environment import (
    describe_environment,
    plan,
    read_host,
    restrict_gpus,
)
from prime_train.supervise.launch.program import EnvNote, Host, Launch, Needs, Variable, to_json

RUN_DIR = RunDir(Path("/runs/a"))
ROLES = ("trainer", "inference", "prime_rl")
ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")


def run(processes: int = 1) -> RunSpec:
    spec = RunSpec(run=Run(name="a", max_steps=1), data=Data(sources=(Source(kind="python-stdlib"),)))
    return replace(spec, parallel=Parallel(processes=processes))


def needs(role: str, host: Host, processes: int = 1, vllm: str = "") -> Needs:
    """The needs of the three roles."""
    match role:
        case "inference":
            return of_vllm.needs(host, vllm or None)
        case "prime_rl":
            return of_prime_rl.needs(RUN_DIR, 3, host)
        case _:
            return of_bundled.needs(run(processes), RUN_DIR, 3, host)


def values(
    environ: dict[str, str] | None = None, role: str = "trainer", processes: int = 1, cores: int = 8, vllm: str = ""
) -> dict[str, str]:
    host = Host(environ or {}, cores, "17:99")
    found = plan(needs(role, host, processes, vllm), RUN_DIR, host)
    assert len({variable.name for variable in found}) == len(found)
    return {variable.name: variable.value for variable in found}


def notes(environ: dict[str, str] | None = None, role: str = "trainer", vllm: str = "") -> dict[str, EnvNote]:
    host = Host(environ or {}, 8, "17:99", (1024, 4096))
    return {note.name: note for note in describe_environment(needs(role, host, vllm=vllm), host)}


@pytest.mark.parametrize("role", ROLES)
def test_a_child_knows_its_run_and_its_supervisor_and_is_unbuffered(role: str) -> None:
    found = values(role=role)
    assert (found["PRIME_TRAIN_RUN"], found["PRIME_TRAIN_SUPERVISOR"]) == ("/runs/a", "17:99")
    assert found["PYTHONUNBUFFERED"] == found["PYTHONFAULTHANDLER"] == "1"
    assert found["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


def test_cores_are_divided_and_never_to_nothing() -> None:
    assert values(processes=1)["OMP_NUM_THREADS"] == "8"
    assert values(processes=3)["OMP_NUM_THREADS"] == "2"
    assert values(processes=16)["OMP_NUM_THREADS"] == "1"


def test_what_the_user_has_set_stays_but_for_the_marks_of_the_run() -> None:
    by_hand = {"OMP_NUM_THREADS": "3", "PRIME_TRAIN_SUPERVISOR": "1:1", "TOKENIZERS_PARALLELISM": ""}
    found = values(by_hand)
    assert "OMP_NUM_THREADS" not in found
    assert found["PRIME_TRAIN_SUPERVISOR"] == "17:99"
    assert found["TOKENIZERS_PARALLELISM"] == "false"
    kept = notes(by_hand)["OMP_NUM_THREADS"]
    assert (kept.how, kept.value) == ("kept", "3")
    assert "otherwise 8" in kept.reason


def test_segments_expand_for_the_trainer_alone() -> None:
    assert [values()[name] for name in ALLOCATOR] == ["expandable_segments:True"] * 2
    assert [values(role="inference")[name] for name in ALLOCATOR] == ["expandable_segments:False"] * 2
    assert not set(ALLOCATOR) & set(values(role="prime_rl"))


@pytest.mark.parametrize(
    ("by_hand", "inference"),
    [
        ("expandable_segments:True", "expandable_segments:False"),
        ("max_split_size_mb:64,expandable_segments:True", "max_split_size_mb:64,expandable_segments:False"),
        ("backend:cudaMallocAsync", "backend:cudaMallocAsync,expandable_segments:False"),
    ],
)
@pytest.mark.parametrize("name", ALLOCATOR)
def test_an_allocator_that_was_chosen_for_the_trainer_does_not_reach_vllm(
    name: str, by_hand: str, inference: str
) -> None:
    (other,) = set(ALLOCATOR) - {name}
    trainer = values({name: by_hand})
    assert name not in trainer
    assert trainer[other] == by_hand  # a torch that reads the other name first takes what was chosen
    assert [values({name: by_hand}, "inference")[each] for each in ALLOCATOR] == [inference] * 2


def test_collectives_are_recorded_under_both_names_where_there_are_any() -> None:
    assert not any(name.startswith(("TORCH_", "GLOO_", "NCCL_")) for name in values(processes=1))
    for found in (values(processes=2), values(role="prime_rl")):
        assert found["TORCH_FR_BUFFER_SIZE"] == found["TORCH_NCCL_TRACE_BUFFER_SIZE"] == "2000"
        assert found["TORCH_FR_DUMP_TEMP_FILE"] == found["TORCH_NCCL_DEBUG_INFO_TEMP_FILE"]
    by_hand = values({"TORCH_NCCL_TRACE_BUFFER_SIZE": "5"}, processes=2)
    assert by_hand["TORCH_FR_BUFFER_SIZE"] == "5"


def test_ranks_meet_on_loopback_unless_the_user_states_where() -> None:
    found = values(processes=2)
    assert found["GLOO_SOCKET_IFNAME"] == found["NCCL_SOCKET_IFNAME"] == "lo"
    assert "NCCL_SOCKET_IFNAME" not in values({"NCCL_SOCKET_IFNAME": "eth0"}, processes=2)
    assert values(role="inference")["VLLM_HOST_IP"] == "127.0.0.1"
    assert "NCCL_SOCKET_IFNAME" not in values(role="prime_rl")  # its file may spread over machines


@pytest.mark.parametrize(
    ("version", "value", "how"),
    [
        ("0.7.3", None, "left out"),
        ("0.8.0", "0", None),
        ("0.10.2", "0", None),
        ("0.11.0", None, "left out"),
        ("0.32.0", None, "left out"),
        ("0.33.0rc1.dev7+g12ab", None, "left out"),
        ("", None, "left out"),
        ("unknown", None, "left out"),
    ],
)
def test_the_older_engine_is_asked_for_where_there_is_one(version: str, value: str | None, how: str | None) -> None:
    assert values(role="inference", vllm=version).get("VLLM_USE_V1") == value
    note = notes(role="inference", vllm=version).get("VLLM_USE_V1")
    assert (note.how if note else None) == how


def test_a_choice_of_engine_by_hand_is_kept_where_it_counts_and_reported_where_it_does_not() -> None:
    by_hand = {"VLLM_USE_V1": "1"}
    assert "VLLM_USE_V1" not in values(by_hand, "inference", vllm="0.9.1")
    assert notes(by_hand, "inference", "0.9.1")["VLLM_USE_V1"].how == "kept"
    gone = notes(by_hand, "inference", "0.32.0")["VLLM_USE_V1"]
    assert (gone.how, gone.value) == ("ignored", "1")
    assert "0.32.0 has one engine" in gone.reason


def test_vllm_is_started_with_care() -> None:
    found = values(role="inference")
    assert found["VLLM_WORKER_MULTIPROC_METHOD"] == "spawn"
    assert int(found["VLLM_ENGINE_READY_TIMEOUT_S"]) > 600
    assert "OMP_NUM_THREADS" not in found
    assert notes(role="inference")["OMP_NUM_THREADS"].how == "left out"
    assert not any(name.startswith("VLLM_") for role in ("trainer", "prime_rl") for name in values(role=role))


def test_what_the_launcher_of_prime_rl_sets_itself_is_reported() -> None:
    found = notes({"OMP_NUM_THREADS": "4"}, "prime_rl")
    assert (found["OMP_NUM_THREADS"].how, found["OMP_NUM_THREADS"].value) == ("ignored", "4")
    assert found["PYTORCH_CUDA_ALLOC_CONF"].how == "left out"


def test_secrets_are_passed_on_and_only_named() -> None:
    environ = {"HF_TOKEN": "hf_secret", "https_proxy": "http://me:hunter22@proxy:3128", "HOME": "/root"}
    found = notes(environ)
    assert {name for name, note in found.items() if note.how == "passed on"} == {"HF_TOKEN", "https_proxy"}
    assert not any("secret" in note.value or "hunter22" in note.value for note in found.values())
    assert not set(values(environ)) & set(environ)  # inherited, never written into a plan


def test_the_limit_of_open_files_is_reported() -> None:
    assert notes()["open files"].value == "1,024 -> 4,096"


@pytest.mark.parametrize("role", ROLES)
def test_every_variable_has_a_reason(role: str) -> None:
    host = Host({}, 2, "1:1", (1, 2))
    wanted = needs(role, host, 2, "0.9.0")
    assert all(variable.reason for variable in plan(wanted, RUN_DIR, host))
    assert all(note.reason for note in describe_environment(wanted, host))


# --- GPUs -------------------------------------------------------------------------------------------


def test_a_gpu_that_failed_is_not_seen_where_enough_remain() -> None:
    found = restrict_gpus(("GPU-a", "GPU-b", "GPU-c"), {"GPU-b"}, 2)
    assert found is not None
    assert (found.name, found.value) == ("CUDA_VISIBLE_DEVICES", "GPU-a,GPU-c")
    assert "GPU-b" in found.reason
    assert restrict_gpus(("GPU-a", "GPU-b"), {"GPU-b"}, 2) is None
    assert restrict_gpus(("GPU-a", "GPU-b"), {"GPU-x"}, 1) is None


_uuids = st.lists(st.text("abcdef0123456789", min_size=1), unique=True)


@given(_uuids, _uuids, st.integers(0, 8))
def test_never_fewer_gpus_than_are_needed(gpus: list[str], left_out: list[str], needed: int) -> None:
    found = restrict_gpus(gpus, left_out, needed)
    if found is not None:
        kept = found.value.split(",") if found.value else []
        assert len(kept) >= needed
        assert kept == [gpu for gpu in gpus if gpu not in left_out]
    else:
        assert not set(gpus) & set(left_out) or len(set(gpus) - set(left_out)) < needed


# --- secrets ----------------------------------------------------------------------------------------

# A mask cannot be hidden by itself, so the secrets drawn here do not contain its character.
# Nor are they words that switch something: shorter than those they would be too likely to be one.
_secret = st.text(st.characters(exclude_characters=MASK[0], exclude_categories=["Cs"]), min_size=6)
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


def test_the_host_is_this_process() -> None:
    found = read_host("1:2")
    assert (found.environment, found.supervisor) == (os.environ, "1:2")
    assert found.open_files == resource.getrlimit(resource.RLIMIT_NOFILE)
    assert 1 <= found.cores <= (os.cpu_count() or 1)
