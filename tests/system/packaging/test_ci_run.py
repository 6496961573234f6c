""".ci/run: a failure of any step ends with an exit code, and nothing that it started beside the others stays."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[3] / ".ci" / "run"
MAKE = """#!/usr/bin/env bash
for target in "$@"; do
  echo "made $target with nice $(nice)"
  if [ "$target" = "$FAILS" ]; then [ "$target" != check ] || until [ -s "$PIDS" ]; do sleep 0.01; done; exit 2; fi
  if [ "$FAILS $target" = "check test-vllm" ]; then echo "$$" > "$PIDS"; exec sleep 600; fi
done
"""
BESIDE = ["test-sky", "test-torch", "test-trainers", "TORCH=oldest", "test-vllm"]
STEPS = [".venv/installed", "check", "wheel", "test", "test-drills", "test-fuzz"]


def run(folder: Path, fails: str = "") -> tuple[int, str]:
    """Exit code and output, with a `make` that does nothing. If `check` fails, `test-vllm` is still at work."""
    (folder / "make").write_text(MAKE, encoding="utf-8")
    (folder / "make").chmod(0o755)
    given = {"PATH": f"{folder}:{os.environ['PATH']}", "FAILS": fails, "PIDS": str(folder / "pid")}
    given |= {"PYTHON": sys.executable}
    done = subprocess.run(
        [SCRIPT], env=os.environ | given, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    return done.returncode, done.stdout


def test_vllm_skypilot_and_the_oldest_torch_are_tested_beside_the_other_steps(tmp_path: Path) -> None:
    code, output = run(tmp_path)
    own = os.nice(0)
    expected = [f"==> the tests run with {sys.executable}, Python {platform.python_version()}"]
    expected += [f"made {step} with nice {own}" for step in STEPS]
    expected += [f"made {step} with nice {min(own + 5, 19)}" for step in BESIDE]
    # An earlier run of the tests in this folder may have left the names of flaky ones.
    made = [line for line in output.splitlines() if not line.startswith("flaky: ")]
    assert (code, made) == (0, expected)


@pytest.mark.parametrize("step", [*STEPS, "test-vllm", "test-sky", "test-torch", "test-trainers"])
def test_a_step_that_fails_fails_the_whole(tmp_path: Path, step: str) -> None:
    code, output = run(tmp_path, step)
    assert code != 0
    made = [line.split()[1] for line in output.splitlines() if line.startswith("made ")]
    asked = STEPS[: STEPS.index(step) + 1] if step in STEPS else STEPS
    assert [name for name in made if name in STEPS] == asked


def test_a_failure_ends_what_is_at_work_beside(tmp_path: Path) -> None:
    run(tmp_path, "check")
    pid = int((tmp_path / "pid").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
