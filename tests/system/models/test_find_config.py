"""The config.json of a model on a hub of ours, in a folder, in a file; and each way in which it cannot be had."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from prime_train.core.errors import ExitCode, UserError
from prime_train.models.read.find_config import find_config, no_config, read_config_file
from tests.fakes import hub_server
from tests.fakes.model_folder import QWEN3, write_model

_KNOWN = ("lab/good", "Qwen/Qwen3-8B")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[hub_server.Hub]:
    write_model(tmp_path / "hub" / "lab" / "good")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    with hub_server.serving(tmp_path / "hub") as served:
        monkeypatch.setenv("HF_ENDPOINT", served.endpoint)
        yield served


def _refusal(name: str, *, offline: bool = False) -> UserError:
    with pytest.raises(UserError) as refused:
        find_config(name, "model.name in rl.toml", _KNOWN, offline=offline)
    assert refused.value.where == "model.name in rl.toml"
    return refused.value


@pytest.mark.usefixtures("hub")
def test_a_model_on_the_hub_is_reported_by_its_config_and_the_headers_of_its_weights() -> None:
    found = find_config("lab/good", "x", _KNOWN)
    assert found.config["hidden_size"] == QWEN3["hidden_size"]
    assert found.loaded == 30_912


@pytest.mark.parametrize(
    ("fault", "code", "told"),
    [
        (hub_server.Fault(status=404, code="RepoNotFound"), ExitCode.OUT_OF_REACH, "missing"),
        (hub_server.Fault(status=403, code="GatedRepo"), ExitCode.OUT_OF_REACH, "gated"),
        (hub_server.Fault(status=503), ExitCode.OUT_OF_REACH, "server"),
    ],
)
def test_a_hub_that_refuses(hub: hub_server.Hub, fault: hub_server.Fault, code: ExitCode, told: str) -> None:
    hub.faults["lab/good"] = fault
    error = _refusal("lab/good")
    assert error.exit_code is code
    assert told in error.what


def test_offline_nothing_is_asked_and_the_nearest_model_is_named(hub: hub_server.Hub) -> None:
    error = _refusal("Qwen/Qwen3-8C", offline=True)
    assert hub.asked == []
    assert error.exit_code is ExitCode.OUT_OF_REACH
    assert "did you mean Qwen/Qwen3-8B?" in error.fix


def test_a_folder_that_is_not_there() -> None:
    for name in ("./nowhere", "/nowhere", "a/b/c"):
        assert _refusal(name).exit_code is ExitCode.USAGE


def test_a_folder_without_a_config(tmp_path: Path) -> None:
    error = _refusal(str(tmp_path))
    assert error.exit_code is ExitCode.FINDINGS
    assert "config.json" in error.what


def test_a_quantised_model_has_more_parameters_than_stored_numbers(tmp_path: Path) -> None:
    write_model(tmp_path / "model")
    assert read_config_file(str(tmp_path / "model")).loaded == 30_912
    (tmp_path / "model" / "config.json").write_text(
        json.dumps(QWEN3 | {"quantization_config": {"quant_method": "awq"}})
    )
    assert read_config_file(str(tmp_path / "model")).loaded is None


def test_a_file_is_named_after_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(QWEN3))
    found = read_config_file(str(folder / "config.json"))
    assert (found.name, found.loaded) == ("my-model", None)


@pytest.mark.parametrize(
    ("field", "fix"),
    [
        ("hidden_size", "correct hidden_size in the config.json"),
        ("architectures", "use --model-config with the config.json of such a model"),
        ("", "use --model-config with the config.json of such a model"),
    ],
)
def test_only_a_size_is_to_be_corrected_and_another_kind_of_model_to_be_replaced(field: str, fix: str) -> None:
    refusal = no_config("config.json", "is wrong", field)
    assert (refusal.fix, refusal.exit_code) == (fix, ExitCode.FINDINGS)


@pytest.mark.parametrize("kind", ["pipe", "device", "deep", "infinite"])
def test_a_config_that_would_hang_its_reader_or_break_it_is_refused(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "config.json"
    match kind:
        case "pipe":
            os.mkfifo(file)
        case "device":
            file.symlink_to("/dev/zero")
        case "deep":
            file.write_text('{"a":' * 100_000)
        case _:
            file.write_text('{"hidden_size": 1e999}')
    with pytest.raises(UserError) as refused:
        read_config_file(str(file))
    assert refused.value.why
    assert refused.value.fix


def test_a_config_may_hold_infinity(tmp_path: Path) -> None:
    """Nemotron-H has "time_step_limit": [0.0, Infinity], which the JSON of Python's json module may hold."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**QWEN3, "time_step_limit": [0.0, float("inf")]}))
    assert "Infinity" in path.read_text()
    assert read_config_file(str(path)).config["time_step_limit"] == [0.0, float("inf")]
