"""A command line that only starts other programs is told from one that trains."""

from __future__ import annotations

import shlex

import pytest

from prime_train.supervise.processes.workers import is_launcher


@pytest.mark.parametrize(
    "command",
    [
        "/v/bin/python /v/bin/torchrun --nproc-per-node 2 t.py",
        "python -m torch.distributed.run t.py",
        "python3.11 -u /v/bin/accelerate launch t.py",
        "bash run.sh",
        "/bin/sh -c 'python t.py'",
        "uv run python t.py",
        "/usr/bin/python -I -S /wrapper.py python t.py",
    ],
)
def test_launchers(command: str) -> None:
    assert is_launcher(shlex.split(command), ["/wrapper.py"])


@pytest.mark.parametrize(
    "command", ["python t.py", "python -m pkg.train", "/v/bin/python -u t.py --config bash", "sleep 1", "", "python"]
)
def test_programs_that_train(command: str) -> None:
    assert not is_launcher(shlex.split(command), ["/wrapper.py"])
