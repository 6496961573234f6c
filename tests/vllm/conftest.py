"""A vLLM of its own environment, and a model for it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def python() -> str:
    """The interpreter that has vLLM. There is no test without: nothing is skipped in silence."""
    found = os.environ.get("PRIME_TRAIN_VLLM_PYTHON", "")
    if not Path(found).is_file():
        pytest.fail("PRIME_TRAIN_VLLM_PYTHON names no interpreter: make test-vllm builds the environment and names it")
    return found


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "tiny"
    subprocess.run([sys.executable, Path(__file__).with_name("tiny_model.py"), folder], check=True, capture_output=True)
    return folder
