"""The hand-over of weights: complete and of the right version, or not loaded."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from prime_train.core.rundir import RunDir
from prime_train.programs.vllm.extension.prime_train_weights import WeightLoader
from prime_train.trainer.model import hf
from prime_train.trainer.model.hf import hf_name
from prime_train.trainer.rl.engines import weights as handovers
from prime_train.trainer.rl.engines.weights import MARKER, Handover
from tests.unit.trainer import tiny
from tests.unit.trainer.families import ARCHITECTURES, loud


def open_handover(tmp_path: Path, **options: Any) -> Handover:
    (tmp_path / "shm").mkdir(exist_ok=True)
    return Handover(RunDir(tmp_path / "run"), shared_memory=tmp_path / "shm", **options)


def worker() -> tuple[WeightLoader, dict[str, torch.Tensor]]:
    """A worker, and the tensors that it has loaded."""
    loaded: dict[str, torch.Tensor] = {}
    loader = WeightLoader()
    loader.model_runner = SimpleNamespace(
        reload_weights=lambda weights_iterator: loaded.update(weights_iterator), get_model=lambda: None
    )
    return loader, loaded


def test_a_worker_loads_what_was_written(tmp_path: Path) -> None:
    weights = tiny.decoder().state_dict()
    written = open_handover(tmp_path).write(weights, 3)
    loader, loaded = worker()
    assert loader.report_version() == {"version": 0}
    assert loader.load_handover(str(written.folder), 3) == {"version": 3, "sha256": written.sha256}
    assert loader.report_version() == {"version": 3}
    assert {hf_name(name) for name in weights} == loaded.keys()
    assert all(torch.equal(loaded[hf_name(name)], weight) for name, weight in weights.items())


@pytest.mark.parametrize("name", ["gpt2", "qwen3_moe"])
def test_the_tensors_have_the_names_of_the_family(name: str, tmp_path: Path) -> None:
    model = loud(ARCHITECTURES[name])
    written = open_handover(tmp_path, config=model.config).write(model.state_dict(), 1)
    tiny.save_hf(tmp_path / "folder", model.config, model.state_dict(), hf.Export(ctx_tokens=48))
    handed, exported = load_file(written.folder / written.file), load_file(tmp_path / "folder" / "model.safetensors")
    assert handed.keys() == exported.keys()
    assert all(torch.equal(tensor, handed[key]) for key, tensor in exported.items())


def test_only_one_version_lies_there_and_only_for_this_user(tmp_path: Path) -> None:
    handover = open_handover(tmp_path)
    for version in (1, 2):
        written = handover.write(tiny.decoder(version).state_dict(), version)
    assert sorted(path.name for path in written.folder.iterdir()) == [MARKER, "weights-2.safetensors"]
    assert written.folder.stat().st_mode & 0o777 == 0o700
    handover.clear()
    assert not written.folder.exists()


def test_another_version_or_a_changed_file_is_not_loaded(tmp_path: Path) -> None:
    written = open_handover(tmp_path).write(tiny.decoder().state_dict(), 3)
    loader, loaded = worker()
    assert loader.load_handover(str(written.folder), 4) == {"error": "the folder has version 3"}
    path = written.folder / written.file
    path.write_bytes(path.read_bytes()[:-1] + b"\x7f")
    assert "SHA-256" in loader.load_handover(str(written.folder), 3)["error"]
    path.write_bytes(b"")
    assert "SHA-256" in loader.load_handover(str(written.folder), 3)["error"]
    (written.folder / MARKER).unlink()  # killed before the marker
    assert "FileNotFoundError" in loader.load_handover(str(written.folder), 3)["error"]
    assert (loaded, loader.report_version()) == ({}, {"version": 0})


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version": 3}', '{"version": 3, "file": 4, "sha256": ""}'])
def test_a_marker_of_another_form_is_an_error_not_an_exception(tmp_path: Path, text: str) -> None:
    written = open_handover(tmp_path).write(tiny.decoder().state_dict(), 3)
    (written.folder / MARKER).write_text(text)
    loader, _ = worker()
    assert loader.load_handover(str(written.folder), 3).keys() == {"error"}


def test_a_load_that_fails_leaves_no_version(tmp_path: Path) -> None:
    written = open_handover(tmp_path).write(tiny.decoder().state_dict(), 3)
    loader, _ = worker()
    loader.load_handover(str(written.folder), 3)

    def fail(weights_iterator: object) -> None:
        raise RuntimeError(f"no room for {next(iter(weights_iterator))[0]}")  # type: ignore[call-overload]

    loader.model_runner.reload_weights = fail
    assert "RuntimeError: no room for" in loader.load_handover(str(written.folder), 3)["error"]
    assert loader.report_version() == {"version": 0}


def test_shared_memory_is_used_if_two_versions_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = tiny.decoder().state_dict()
    size_bytes = sum(weight.nbytes for weight in weights.values())
    handover = open_handover(tmp_path)
    for free_bytes, parent in ((2 * size_bytes, "shm"), (2 * size_bytes - 1, "run")):
        monkeypatch.setattr(handovers, "_free_bytes", lambda _folder, free_bytes=free_bytes: free_bytes)
        assert handover.write(weights, 1).folder.parent == tmp_path / parent
    assert open_handover(tmp_path, kind="disk").write(weights, 1).folder.parent == tmp_path / "run"
    assert open_handover(tmp_path, kind="shared-memory").write(weights, 1).folder.parent == tmp_path / "shm"


def test_a_machine_without_shared_memory_uses_the_disk(tmp_path: Path) -> None:
    handover = Handover(RunDir(tmp_path / "run"), shared_memory=tmp_path / "none")
    assert handover.write(tiny.decoder().state_dict(), 1).folder == tmp_path / "run" / "handover"


def test_a_name_in_shared_memory_that_another_user_has_taken_leaves_the_disk(tmp_path: Path) -> None:
    weights = tiny.decoder().state_dict()
    taken = open_handover(tmp_path, kind="shared-memory").write(weights, 1).folder
    handover = open_handover(tmp_path)
    taken.touch()  # as the folder of another user, it is not deleted by rmtree
    assert handover.write(weights, 2).folder.parent == tmp_path / "run"
    with pytest.raises(FileExistsError, match="another user"):
        open_handover(tmp_path, kind="shared-memory").write(weights, 3)


def test_what_a_killed_attempt_left_is_deleted(tmp_path: Path) -> None:
    left = [open_handover(tmp_path, kind=kind).write(tiny.decoder().state_dict(), 1) for kind in ("shared-memory",)]
    open_handover(tmp_path)
    assert not any(written.folder.exists() for written in left)


def test_matrices_are_converted_and_gains_are_not(tmp_path: Path) -> None:
    written = open_handover(tmp_path, dtype=torch.bfloat16).write(tiny.decoder().state_dict(), 1)
    tensors = load_file(written.folder / written.file)
    assert {tensor.dtype for tensor in tensors.values() if tensor.ndim > 1} == {torch.bfloat16}
    assert {tensor.dtype for tensor in tensors.values() if tensor.ndim == 1} == {torch.float32}


def test_the_marker_names_the_file(tmp_path: Path) -> None:
    written = open_handover(tmp_path).write(tiny.decoder().state_dict(), 5)
    marker = json.loads((written.folder / MARKER).read_text())
    assert (marker["version"], marker["file"], marker["size_bytes"]) == (
        5,
        "weights-5.safetensors",
        (written.folder / written.file).stat().st_size,
    )
