"""A vLLM of its own environment, forks of it, and a model for it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests import fork_server
from tests.system.vllm import tiny_model

_FORKED = (
    "vllm.entrypoints.launchers.api_server.entry",
    "vllm.entrypoints.launchers.render.entry",
    "vllm.v1.engine.async_llm",
    "vllm.v1.engine.core",
    "vllm.v1.worker.cpu_worker",
    "tests.system.vllm.forked_children",
)


@pytest.fixture(scope="session")
def python() -> str:
    """The interpreter that has vLLM. There is no test without: nothing is skipped in silence."""
    found = os.environ.get("PRIME_TRAIN_VLLM_PYTHON", "")
    if not Path(found).is_file():
        pytest.fail("PRIME_TRAIN_VLLM_PYTHON names no interpreter: make test-vllm builds the environment and names it")
    return found


@pytest.fixture(scope="session")
def forking_python(python: str) -> str:
    """A command in place of the interpreter: its servers are forks of one process that has imported vLLM.

    What a server does is real: arguments, configuration, engine core, worker. How its processes come about is not. So a
    test of the processes starts the interpreter.
    """
    return fork_server.interpreter(python, _FORKED)


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "tiny"
    tiny_model.write(folder)
    return folder
