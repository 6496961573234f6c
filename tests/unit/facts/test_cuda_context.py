"""A CUDA context, made in a child by a stand-in of torch that does as it is told."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from prime_train.facts.facts import NotKnown
from prime_train.facts.machine import CudaContext
from prime_train.facts.trials import create_cuda_context


def torch(folder: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    (folder / "torch.py").write_text(f"import time, types\nclass cuda:\n{body}\n")
    monkeypatch.setenv("PYTHONPATH", str(folder))


def test_a_driver_that_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch(
        tmp_path,
        monkeypatch,
        "  is_available = lambda: False\n"
        "  def init(): raise RuntimeError('The NVIDIA driver on your system is too old')",
    )
    assert create_cuda_context(sys.executable) == CudaContext(
        0, "RuntimeError: The NVIDIA driver on your system is too old"
    )


def test_a_machine_that_computes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch(tmp_path, monkeypatch, "  is_available = lambda: True\n  device_count = lambda: 0")
    assert create_cuda_context(sys.executable) == CudaContext(0, "")


def test_a_driver_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch(tmp_path, monkeypatch, "  is_available = lambda: time.sleep(1000)")
    assert create_cuda_context(sys.executable, deadline_s=1.0) == CudaContext(
        0, "torch created no CUDA context within 1 s"
    )


def test_an_interpreter_without_torch(tmp_path: Path) -> None:
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    bare.chmod(0o755)
    assert create_cuda_context(str(bare)) == NotKnown(f"{bare} has no torch")
