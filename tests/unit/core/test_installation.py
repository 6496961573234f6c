from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from prime_train.core import installation

COMMIT = "0123456789abcdef0123456789abcdef01234567"
CLONE = {"url": "https://example.org/it.git", "vcs_info": {"vcs": "git", "commit_id": COMMIT}}
ADDRESS = f"git+https://example.org/it.git@{COMMIT}"


@pytest.mark.parametrize(
    ("origin", "wanted"),
    [
        (None, "prime-train[train]"),
        ("no json", "prime-train[train]"),
        ({"url": "file:///home/me/a%20clone", "dir_info": {"editable": True}}, "-e '/home/me/a clone[train]'"),
        ({"url": "file:///home/me/clone", "dir_info": {}}, "'/home/me/clone[train]'"),
        ({"url": "file:///tmp/prime_train-1-py3-none-any.whl"}, "'/tmp/prime_train-1-py3-none-any.whl[train]'"),
        ({"url": "https://example.org/it.whl"}, "'prime-train[train] @ https://example.org/it.whl'"),
        (CLONE, f"'prime-train[train] @ {ADDRESS}'"),
    ],
)
def test_the_command_follows_the_way_of_the_installation(
    origin: object, wanted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(origin, tmp_path, monkeypatch)
    try:
        command = installation.install_command("train")
    finally:
        installation._source.cache_clear()
    assert command.partition(" -m pip install ")[2].replace("'prime-train[train]'", "prime-train[train]") == wanted
    assert command.startswith(sys.executable)


@pytest.mark.parametrize(
    ("origin", "address", "local"),
    [
        (None, None, False),
        (CLONE, ADDRESS, False),
        ({"url": "https://example.org/it.whl"}, "https://example.org/it.whl", False),
        ({"url": "file:///home/me/clone", "dir_info": {"editable": True}}, None, True),
        ({**CLONE, "url": "ssh://git@example.org/it"}, None, True),
    ],
)
def test_the_address_is_one_that_another_machine_reaches(
    origin: object, address: str | None, local: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(origin, tmp_path, monkeypatch)
    try:
        assert (installation.package_url(), installation.is_local()) == (address, local)
    finally:
        installation._source.cache_clear()


def install(origin: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make prime-train an installed package with this direct_url.json."""
    info = tmp_path / "prime_train-9.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: prime-train\nVersion: 9\n")
    if origin is not None:
        (info / "direct_url.json").write_text(origin if isinstance(origin, str) else json.dumps(origin))
    monkeypatch.syspath_prepend(str(tmp_path))
    installation._source.cache_clear()
