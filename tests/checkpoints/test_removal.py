"""A checkpoint that is being deleted is at no moment a complete one."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from prime_train.checkpoints import layout, removal


def test_the_manifest_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "step_5"
    folder.mkdir()
    (folder / "0.distcp").write_bytes(b"0123")
    layout.write_manifest(folder, 5)

    def killed(_folder: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            removal.remove(folder)
    (left,) = removal.list_set_aside(tmp_path)
    assert (left / "0.distcp").exists()
    assert removal.is_decided(left)
    assert layout.scan(tmp_path) == []


def test_nothing_to_remove_is_fine(tmp_path: Path) -> None:
    removal.remove(tmp_path / "step_5")
