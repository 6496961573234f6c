"""`prime-train verify-model` as a person and as a program meet it: folders, hub, faults, exit codes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import hub_server
from tests.fakes.model_folder import FORGETFUL, QWEN3, write_model
from tests.unit.cli.commands import prime_train

CHECKS = [
    *("access", "config", "kind", "quantisation", "bundled-trainer", "transformers", "prime-rl", "vllm", "weights"),
    *(
        "tokenizer",
        "vocabulary",
        "chat-template",
        "tools",
        "tool-parser",
        "multi-turn",
        "turn-end",
        "context",
        "memory-to-serve",
        "memory-to-train",
    ),
    *("licence", "known-issues"),
]


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[hub_server.Hub]:
    write_model(tmp_path / "hub" / "lab" / "good")
    with hub_server.serving(tmp_path / "hub") as served:
        yield served


def on_hub(hub: hub_server.Hub, tmp_path: Path, name: str, *options: str) -> Any:
    environment = {"HF_ENDPOINT": hub.endpoint, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": ""}
    return prime_train("verify-model", name, *options, cwd=tmp_path, **environment)


def test_a_folder_is_reported_line_by_line(tmp_path: Path) -> None:
    write_model(tmp_path / "mine", template=FORGETFUL)
    done = prime_train("verify-model", "mine", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert [line.split()[1] for line in lines if line.startswith(("  ok", "  warning"))] == CHECKS[:-1]
    assert "it rewrites history (thoughts)" in done.stdout
    assert lines[-5].startswith("RL           can be used, with care (multi-turn)") or "RL  " in done.stdout
    assert "pretraining  can be used" in lines[-1]


def test_a_folder_as_json(tmp_path: Path) -> None:
    write_model(tmp_path / "mine")
    done = prime_train("verify-model", "mine", "--json", cwd=tmp_path)
    said = json.loads(done.stdout)
    assert (done.returncode, said["version"], said["origin"], said["usable"]) == (0, 1, "folder", True)
    assert [check["id"] for check in said["checks"]] == CHECKS
    assert {use: about["outcome"] for use, about in said["uses"].items()} == dict.fromkeys(
        ("rl", "sft", "pretraining"), "ok"
    )
    assert said["numbers"]["parameters"] == 30_912


def test_a_model_that_is_good_for_nothing_ends_with_1(tmp_path: Path) -> None:
    write_model(tmp_path / "mine", {"model_type": "bert", "architectures": ["BertModel"], "hidden_size": 4})
    done = prime_train("verify-model", "mine", cwd=tmp_path)
    assert done.returncode == 1
    assert "no language model that generates text" in done.stdout
    assert "Traceback" not in done.stderr


def test_a_model_on_the_hub(hub: hub_server.Hub, tmp_path: Path) -> None:
    done = on_hub(hub, tmp_path, "lab/good", "--json")
    said = json.loads(done.stdout)
    assert (done.returncode, said["origin"], said["revision"]) == (0, "hub", hub_server.COMMIT)
    assert said["uses"]["rl"]["outcome"] == "ok"


@pytest.mark.parametrize(
    ("fault", "code", "said"),
    [
        (hub_server.Fault(status=404, code="RepoNotFound"), 2, "no model with that name"),
        (hub_server.Fault(status=401, code="RepoNotFound"), 1, "it is private or does not exist"),
        (hub_server.Fault(status=401, message="Invalid credentials in Authorization header"), 1, "token"),
        (hub_server.Fault(status=403, code="GatedRepo", message="restricted"), 1, "accept them at"),
        (hub_server.Fault(status=429), 4, "too many requests"),
        (hub_server.Fault(status=502), 4, "the hub itself has an error"),
        (hub_server.Fault(cut=5), 4, "fewer bytes arrived"),
    ],
    ids=("404", "401", "bad token", "gated", "429", "502", "cut"),
)
def test_each_fault_has_its_message_and_its_exit_code(
    hub: hub_server.Hub, tmp_path: Path, fault: hub_server.Fault, code: int, said: str
) -> None:
    hub.faults["lab/good"] = fault
    done = on_hub(hub, tmp_path, "lab/good")
    assert (done.returncode, done.stdout) == (code, "")
    assert said in done.stderr
    assert [line.split()[0] for line in done.stderr.splitlines()] == ["error:", "what", "why", "fix"]


def test_a_hub_that_is_not_there_and_a_cache_that_is_empty(tmp_path: Path) -> None:
    environment = {"HF_ENDPOINT": "http://127.0.0.1:1", "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": ""}
    assert prime_train("verify-model", "lab/good", cwd=tmp_path, **environment).returncode == 4
    done = prime_train("verify-model", "lab/good", "--offline", cwd=tmp_path, **environment)
    assert done.returncode == 4
    assert "hf download lab/good" in done.stderr


def test_names_that_are_none(tmp_path: Path) -> None:
    for name in ("./not/there", "no such name", "a/b/c"):
        done = prime_train("verify-model", name, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (2, "")
        assert "Traceback" not in done.stderr


def test_a_vllm_that_is_no_version_and_a_gpu_that_is_none(tmp_path: Path) -> None:
    write_model(tmp_path / "mine")
    done = prime_train("verify-model", "mine", "--vllm", "newest", cwd=tmp_path)
    assert done.returncode == 2
    assert "is not a version" in done.stderr
    done = prime_train("verify-model", "mine", "--gpus", "h1000", cwd=tmp_path)
    assert done.returncode == 2
    assert "names no known GPU" in done.stderr


def test_an_escape_sequence_in_a_file_does_not_reach_the_terminal(tmp_path: Path) -> None:
    write_model(tmp_path / "mine", QWEN3 | {"model_type": "evil\x1b[31m"}, licence="mit\x1b[2J")
    done = prime_train("verify-model", "mine", cwd=tmp_path)
    assert "\x1b" not in done.stdout


def test_a_missing_shard_ends_with_1_and_what_is_known_off_the_hub_is_shown_with_4(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "mine")
    index = {"weight_map": {"model.norm.weight": "two.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    done = prime_train("verify-model", "mine", cwd=tmp_path)
    assert done.returncode == 1
    assert "two.safetensors is missing" in done.stdout
    environment = {"HF_HOME": str(tmp_path / "home")}
    done = prime_train("verify-model", "Qwen/Qwen2.5-7B-Instruct", "--offline", cwd=tmp_path, **environment)
    assert done.returncode == 4
    assert "7.6 B parameters" in done.stdout
    assert "hf download Qwen/Qwen2.5-7B-Instruct" in done.stderr


def test_json_is_one_document_also_where_the_registry_alone_is_known(tmp_path: Path) -> None:
    done = prime_train("verify-model", "Qwen/Qwen3-8B", "--offline", "--json", cwd=tmp_path, HF_HOME=str(tmp_path))
    told = json.loads(done.stdout)
    assert done.returncode == 4
    assert told["model"] == "Qwen/Qwen3-8B"
    assert told["checks"]
    assert told["error"]["exit_code"] == 4
    assert "hf download" in done.stderr
