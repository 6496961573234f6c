"""Model repositories on a hub of ours, in its cache, in folders: read, and each fault told apart."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from prime_train.core.errors import UserError
from prime_train.models.read import read_files as module
from prime_train.models.read.hub import read_hub
from prime_train.models.read.model_files import ModelFiles, ReadFault, RefusedRead
from prime_train.models.read.read_files import read_model_files
from prime_train.models.read.read_folder import read_folder
from prime_train.spec.hf_config import read_architecture
from tests.fakes import hub_server
from tests.fakes.model_folder import QWEN3, tensors_of, write_model, write_weights

PARAMETERS = 30_912  # what read_architecture counts for QWEN3: checked below


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[hub_server.Hub]:
    write_model(tmp_path / "hub" / "lab" / "good")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "home" / "hub"))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    with hub_server.serving(tmp_path / "hub") as served:
        monkeypatch.setenv("HF_ENDPOINT", served.endpoint)
        yield served


def read(name: str, tmp_path: Path, *, offline: bool = False) -> ModelFiles | RefusedRead:
    """What the child says, asked in this process: it takes a second to start."""
    scratch = tmp_path / "scratch"
    scratch.mkdir(exist_ok=True)
    return read_hub(name, "", scratch, offline, 2.0)


def in_child(name: str, tmp_path: Path) -> ModelFiles | RefusedRead:
    scratch = tmp_path / "scratch"
    scratch.mkdir(exist_ok=True)
    return read_model_files(name, scratch, "verify-model")


def good(name: str, tmp_path: Path) -> ModelFiles:
    found = read(name, tmp_path)
    assert isinstance(found, ModelFiles), found
    return found


@pytest.mark.usefixtures("hub")
def test_a_model_on_the_hub(tmp_path: Path) -> None:
    found = good("lab/good", tmp_path)
    assert (found.origin, found.revision, found.unread) == ("hub", hub_server.COMMIT, ())
    assert found.card["license"] == "apache-2.0"
    assert (found.folder / "config.json").is_file()
    assert (found.folder / "tokenizer.json").is_file()
    assert found.weights is not None
    assert (found.weights.layers, found.weights.embedding, found.weights.faults) == (2, (384, 32), ())


def test_no_weight_is_downloaded(hub: hub_server.Hub, tmp_path: Path) -> None:
    """Ten gigabytes of zeros lie there: what is asked for of them is a range of a hundred kilobytes."""
    large = {"model.embed_tokens.weight": (1_000_000, 5_000)}
    write_weights(tmp_path / "hub" / "lab" / "good" / "model.safetensors", large)
    found = good("lab/good", tmp_path)
    assert found.weights is not None
    assert found.weights.stored_bytes == 10**10
    assert hub.sent_bytes < 2_000_000
    assert [span for _, path, span in hub.asked if path.endswith(".safetensors")] == ["bytes=0-99999"]


@pytest.mark.usefixtures("hub")
def test_a_header_that_is_longer_than_the_first_look(tmp_path: Path) -> None:
    many = {f"model.layers.{number}.{'weight' * 20}.weight": (1, 1) for number in range(1000)}
    write_weights(tmp_path / "hub" / "lab" / "good" / "model.safetensors", many)
    found = good("lab/good", tmp_path)
    assert found.weights is not None
    assert (found.weights.stored, found.weights.layers, found.weights.faults) == (1000, 1000, ())


def test_a_server_that_knows_no_ranges_is_not_read_to_the_end(hub: hub_server.Hub, tmp_path: Path) -> None:
    hub.faults["lab/good"] = hub_server.Fault(file="model.safetensors", ignores_ranges=True)
    found = good("lab/good", tmp_path)
    assert found.weights is not None
    assert found.weights.faults == ()


ANSWERS = [
    (hub_server.Fault(status=404, code="RepoNotFound", message="Repository not found"), ReadFault.MISSING),
    (hub_server.Fault(status=404, code="RevisionNotFound", message="no such revision"), ReadFault.MISSING),
    (hub_server.Fault(status=401, code="RepoNotFound", message="Repository not found"), ReadFault.LOGIN),
    (hub_server.Fault(status=401, message="Invalid credentials in Authorization header"), ReadFault.BAD_TOKEN),
    (hub_server.Fault(status=403, message="token lacks the right"), ReadFault.FORBIDDEN),
    (hub_server.Fault(status=429, message="slow down"), ReadFault.RATE_LIMITED),
    (hub_server.Fault(status=500), ReadFault.SERVER),
    (hub_server.Fault(status=503), ReadFault.SERVER),
    (hub_server.Fault(portal=True), ReadFault.NOT_HUB),
    (hub_server.Fault(silent=True), ReadFault.TIMEOUT),
    (hub_server.Fault(cut=10), ReadFault.TRUNCATED),
]


@pytest.mark.parametrize(("fault", "told"), ANSWERS, ids=lambda value: value if isinstance(value, str) else "")
def test_each_fault_of_the_hub_is_reported_apart(
    hub: hub_server.Hub, tmp_path: Path, fault: hub_server.Fault, told: ReadFault
) -> None:
    hub.faults["lab/good"] = fault
    found = read("lab/good", tmp_path)
    assert isinstance(found, RefusedRead), found
    assert found.fault is told
    assert found.detail


def test_a_gated_model_is_named_to_everyone_and_given_to_few(hub: hub_server.Hub, tmp_path: Path) -> None:
    gated = hub_server.Fault(status=403, code="GatedRepo", message="Access to model lab/good is restricted")
    hub.gated.add("lab/good")
    assert good("lab/good", tmp_path).gated == "manual"
    for name in ("config.json", "README.md", "tokenizer.json", "tokenizer_config.json", "model.safetensors"):
        path = tmp_path / "hub" / "lab" / "good" / name
        if name != "config.json":
            path.unlink()
    hub.faults["lab/good"] = gated
    gated.file = "config.json"
    found = read("lab/good", tmp_path)
    assert isinstance(found, RefusedRead), found
    assert found.fault is ReadFault.GATED


@pytest.mark.parametrize("file", ["tokenizer.json", "model.safetensors"])
def test_a_file_that_is_cut_short_is_named(hub: hub_server.Hub, tmp_path: Path, file: str) -> None:
    hub.faults["lab/good"] = hub_server.Fault(file=file, cut=100)
    found = good("lab/good", tmp_path)
    assert [(item.file, item.fault) for item in found.unread] == [(file, ReadFault.TRUNCATED)]


def test_a_server_that_trickles_meets_the_deadline(
    hub: hub_server.Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No request times out where a byte comes now and then: the deadline of the child ends it."""
    monkeypatch.setattr(module, "DEADLINE_S", 3.0)
    hub.faults["lab/good"] = hub_server.Fault(trickle=True)
    found = in_child("lab/good", tmp_path)
    assert isinstance(found, RefusedRead), found
    assert found.fault is ReadFault.TIMEOUT


def test_a_child_states_what_it_read(hub: hub_server.Hub, tmp_path: Path) -> None:
    assert in_child("lab/good", tmp_path) == good("lab/good", tmp_path)
    hub.faults["lab/good"] = hub_server.Fault(status=429)
    found = in_child("lab/good", tmp_path)
    assert isinstance(found, RefusedRead)
    assert found.fault is ReadFault.RATE_LIMITED


@pytest.mark.usefixtures("hub")
def test_a_hub_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    found = read("lab/good", tmp_path)
    assert isinstance(found, RefusedRead), found
    assert found.fault is ReadFault.UNREACHABLE


@pytest.mark.parametrize("name", ["no such name", "a--b", "-x", "é/è"])
def test_a_name_that_is_none(hub: hub_server.Hub, tmp_path: Path, name: str) -> None:
    found = read(name, tmp_path)
    assert isinstance(found, RefusedRead), found
    assert found.fault is ReadFault.BAD_NAME
    assert hub.asked == []


# --- the cache -----------------------------------------------------------------------------------


def cached(tmp_path: Path, name: str) -> Path:
    root = tmp_path / "home" / "hub" / f"models--{name.replace('/', '--')}"
    (root / "refs").mkdir(parents=True)
    (root / "refs" / "main").write_text(hub_server.COMMIT)
    return write_model(root / "snapshots" / hub_server.COMMIT)


def test_offline_the_cache_is_read_and_nothing_asked(hub: hub_server.Hub, tmp_path: Path) -> None:
    cached(tmp_path, "lab/kept")
    found = read("lab/kept", tmp_path, offline=True)
    assert isinstance(found, ModelFiles), found
    assert (found.origin, found.revision) == ("cache", hub_server.COMMIT)
    missing = read("lab/good", tmp_path, offline=True)
    assert isinstance(missing, RefusedRead)
    assert missing.fault is ReadFault.NOT_CACHED
    assert hub.asked == []


def test_what_is_cached_will_do_where_the_hub_gives_no_answer(hub: hub_server.Hub, tmp_path: Path) -> None:
    cached(tmp_path, "lab/good")
    hub.faults["lab/good"] = hub_server.Fault(status=503)
    found = good("lab/good", tmp_path)
    assert found.origin == "cache"
    assert [(item.file, item.fault) for item in found.unread] == [("", ReadFault.SERVER)]
    hub.faults["lab/good"] = hub_server.Fault(status=404, code="RepoNotFound")
    assert isinstance(read("lab/good", tmp_path), RefusedRead)  # an answer is an answer, whatever lies in the cache


def test_a_file_that_is_cached_is_not_fetched_again(hub: hub_server.Hub, tmp_path: Path) -> None:
    cached(tmp_path, "lab/good")
    good("lab/good", tmp_path)
    assert [path for _, path, _ in hub.asked if "/resolve/" in path and not path.endswith(".safetensors")] == []


# --- folders -------------------------------------------------------------------------------------


def folder_of(folder: Path) -> ModelFiles:
    return read_folder(str(folder), "folder", folder)


def test_a_folder(tmp_path: Path) -> None:
    found = folder_of(write_model(tmp_path / "mine"))
    assert (found.origin, found.unread) == ("folder", ())
    assert found.weights is not None
    assert found.weights.by_dtype == {"BF16": PARAMETERS}
    assert read_architecture(QWEN3, "config.json").parameters == PARAMETERS
    assert in_child(str(tmp_path / "mine"), tmp_path) == found


def test_a_file_or_a_folder_that_is_not_there(tmp_path: Path) -> None:
    config = write_model(tmp_path / "mine") / "config.json"
    with pytest.raises(UserError, match="is a file"):
        in_child(str(config), tmp_path)
    with pytest.raises(UserError, match="there is no folder"):
        in_child(str(tmp_path / "not" / "there"), tmp_path)


def test_weights_that_are_not_whole(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "mine")
    whole = (folder / "model.safetensors").read_bytes()
    for content, said in (
        (whole[:-1], "its header describes"),
        (whole[:100], "ends within its header"),
        (whole[:4], "it has 4 bytes"),
        (b"\x80\x04" + b"x" * 100, "not a safetensors file"),
        (len(b"not json!").to_bytes(8, "little") + b"not json!", "not JSON"),
    ):
        (folder / "model.safetensors").write_bytes(content)
        weights = folder_of(folder).weights
        assert weights is not None
        assert said in weights.faults[0]


def test_shards_that_the_index_names(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "mine")
    (folder / "model.safetensors").unlink()
    tensors = list(tensors_of(QWEN3).items())
    write_weights(folder / "one.safetensors", dict(tensors[:5]))
    write_weights(folder / "two.safetensors", dict(tensors[5:]))
    weight_map = {tensors[0][0]: "one.safetensors", tensors[5][0]: "two.safetensors", "c": "three.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    weights = folder_of(folder).weights
    assert weights is not None
    assert (weights.files, weights.stored) == (2, PARAMETERS)
    assert weights.faults == ("three.safetensors is missing: the index names it",)
    weight_map = {tensors[5][0]: "one.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    weights = folder_of(folder).weights
    assert weights is not None
    assert "in one.safetensors, which does not have it" in weights.faults[0]
    (folder / "model.safetensors.index.json").write_text("[]")
    weights = folder_of(folder).weights
    assert weights is not None
    assert "is not valid" in weights.faults[0]


def test_what_is_no_regular_file_is_named_and_not_read(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "mine")
    (folder / "config.json").unlink()
    (folder / "tokenizer.json").unlink()
    (folder / "config.json").symlink_to("/dev/zero")
    os.mkfifo(folder / "tokenizer.json")
    (folder / "generation_config.json").symlink_to("/nowhere/else")
    os.mkfifo(folder / "notes")  # a file that no program reads as part of a model
    unread = {item.file: item for item in folder_of(folder).unread}
    assert set(unread) == {"config.json", "tokenizer.json", "generation_config.json"}
    assert {item.fault for item in unread.values()} == {ReadFault.NOT_REGULAR}
    assert unread["config.json"].detail == "it is a device, not a regular file"
    assert unread["tokenizer.json"].detail == "it is a named pipe, not a regular file"
    assert "/nowhere/else" in unread["generation_config.json"].detail
