"""Each small file of a run is whole on a disk that takes parts of writes, and after one that found no room."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.drills.short_files import KINDS

HERE = Path(__file__).parent
pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler"),
]


def test_small_files_are_whole(tmp_path: Path) -> None:
    library = tmp_path / "short_writes.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, HERE / "short_writes.c", "-ldl"], check=True)
    below = tmp_path / "files"
    below.mkdir()
    given = os.environ | {"LD_PRELOAD": str(library), "SHORT_BELOW": str(below), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.drills.short_files", str(below)]
    done = subprocess.run(command, cwd=HERE.parents[1], env=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {}
    was_full = {path.name for path in tmp_path.iterdir()}
    expected = {f"{kind}-{number}" for kind, (_, parts) in KINDS.items() for number in range(1, len(parts) + 1)}
    assert expected <= was_full, "a part of a path names no file that is written"
