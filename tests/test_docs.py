from __future__ import annotations

import subprocess
import sys
from pathlib import Path

GENERATE = Path(__file__).parents[1] / "docs" / "generate.py"


def test_generated_pages_are_current() -> None:
    done = subprocess.run([sys.executable, GENERATE, "--check"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
