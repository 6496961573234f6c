"""A vLLM of its own environment, forks of it, and a model for it."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.vllm import fork_server, tiny_model


@pytest.fixture(scope="session")
def python() -> str:
    """The interpreter that has vLLM. There is no test without: nothing is skipped in silence."""
    found = os.environ.get("PRIME_TRAIN_VLLM_PYTHON", "")
    if not Path(found).is_file():
        pytest.fail("PRIME_TRAIN_VLLM_PYTHON names no interpreter: make test-vllm builds the environment and names it")
    return found


@pytest.fixture(scope="session")
def forking_python(python: str) -> Iterator[str]:
    """A command in place of the interpreter: its servers are forks of one process that has imported vLLM."""
    with tempfile.TemporaryDirectory() as folder:  # the path of a socket is a short one
        command, listening = Path(folder, "python"), Path(folder, "socket")
        fork_server.write_interpreter(command, python, listening)
        argv = [python, "-u", fork_server.__file__, str(listening)]
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
            assert server.stdout is not None
            server.stdout.readline()
            yield str(command)
            server.communicate()


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "tiny"
    tiny_model.write(folder)
    return folder
