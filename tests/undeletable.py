"""Makes a folder hold something that nobody can delete, for root and for other users."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def undeletable(folder: Path) -> Iterator[Path]:
    """A file in `folder` that cannot be deleted inside the block. For root it has the attribute +i (chattr(1))."""
    inner = folder / "kept"
    inner.mkdir()
    file = inner / "file"
    file.write_bytes(b"kept")
    if os.geteuid():
        inner.chmod(0o555)
    elif _chattr("+i", file):
        pytest.skip("this file system has no immutable files")
    try:
        yield file
    finally:
        found = next(file.parents[2].rglob("kept/file"), file)  # the folder may have another name by now
        if os.geteuid():
            found.parent.chmod(0o755)
        else:
            _chattr("-i", found)


def _chattr(change: str, file: Path) -> int:
    return subprocess.run(["chattr", change, file], capture_output=True, check=False).returncode
