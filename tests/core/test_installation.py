from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from prime_train.core import installation


@pytest.mark.parametrize(
    ("origin", "wanted"),
    [
        (None, "prime-train[train]"),
        ("no json", "prime-train[train]"),
        ({"url": "file:///home/me/a%20clone", "dir_info": {"editable": True}}, "-e '/home/me/a clone[train]'"),
        ({"url": "file:///home/me/clone", "dir_info": {}}, "'/home/me/clone[train]'"),
        ({"url": "file:///tmp/prime_train-1-py3-none-any.whl"}, "'/tmp/prime_train-1-py3-none-any.whl[train]'"),
        ({"url": "https://example.org/it.git"}, "'prime-train[train] @ https://example.org/it.git'"),
    ],
)
def test_the_command_follows_the_way_of_the_installation(
    origin: object, wanted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "prime_train-9.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: prime-train\nVersion: 9\n")
    if origin is not None:
        (info / "direct_url.json").write_text(origin if isinstance(origin, str) else json.dumps(origin))
    monkeypatch.syspath_prepend(str(tmp_path))
    installation._source.cache_clear()
    try:
        command = installation.install_command("train")
    finally:
        installation._source.cache_clear()
    assert command.partition(" -m pip install ")[2].replace("'prime-train[train]'", "prime-train[train]") == wanted
    assert command.startswith(sys.executable)
