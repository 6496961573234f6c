"""The versions of torch that `make test-torch` installs: the promised ones, and the same bits from each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[3]
# Instructions that x86 machines have. A library would choose by the CPU, and each version by rules of its own.
SAME_INSTRUCTIONS = {"ATEN_CPU_CAPABILITY": "avx2", "MKL_CBWR": "COMPATIBLE", "ONEDNN_MAX_CPU_ISA": "AVX2"}


def take_steps(python: str) -> dict[str, Any]:
    """What tests/system/torch_versions/twelve_steps.py prints in this interpreter."""
    program = [python, "-m", "tests.system.torch_versions.twelve_steps"]
    environment = os.environ | SAME_INSTRUCTIONS
    done = subprocess.run(program, env=environment, cwd=ROOT, stdout=subprocess.PIPE, check=True)
    printed: dict[str, Any] = json.loads(done.stdout)
    return printed


def pinned(age: str) -> str:
    """The version of torch in constraints-torch-AGE.txt."""
    name, _, version = (ROOT / f"constraints-torch-{age}.txt").read_text().strip().partition("==")
    assert name == "torch"
    return version


def test_the_oldest_torch_is_the_one_that_pyproject_promises() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    required = [Requirement(text) for text in project["optional-dependencies"]["train"]]
    (torch,) = (one for one in required if one.name == "torch")
    promised = str(torch.specifier).removeprefix(">=")
    assert pinned("oldest") == f"{promised}.0"
    assert pinned("newest") in torch.specifier


@pytest.mark.torch
def test_twelve_steps_have_the_same_bits_on_every_torch() -> None:
    named = os.environ.get("PRIME_TRAIN_TORCH_PYTHONS")
    if not named:
        pytest.fail("PRIME_TRAIN_TORCH_PYTHONS names no interpreter: make test-torch builds and names them")
    ours = take_steps(sys.executable)
    for python in named.split(os.pathsep):
        other = take_steps(python)
        assert Version(other["torch"]).public in (pinned("oldest"), pinned("newest"))
        for name, steps in ours["steps"].items():
            assert other["steps"][name] == steps, f"{name}: torch {other['torch']} and {ours['torch']} differ"
