"""What lives as long as a run imports little: the supervisor, and the children of its watches."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import prime_train.supervise.watches

WATCHES = Path(prime_train.supervise.watches.__file__).parent
# Each takes one to thirteen megabytes and up to a tenth of a second.
HEAVY = (
    "pydantic",
    "pydantic_core",
    "concurrent.futures",
    "logging",
    "email",
    "_hashlib",
    "prime_train.cli",
)
NEEDED = {"prime_train.supervise.watches.preemption.preemption_program": {"email"}}  # it reads dates
SUPERVISOR = ("prime_train.supervise.core.loop", "prime_train.programs.bundled")


def children() -> list[str]:
    package = prime_train.supervise.watches.__name__
    return [f"{package}.{path.parent.name}.{path.stem}" for path in sorted(WATCHES.glob("*/*_program.py"))]


def imported_by(*modules: str) -> set[str]:
    code = f"import {', '.join(modules)}, sys; print(*[name for name in {HEAVY} if name in sys.modules])"
    return set(
        subprocess.run([sys.executable, "-P", "-c", code], check=True, capture_output=True, text=True).stdout.split()
    )


def test_there_are_children() -> None:
    assert len(children()) >= 5


@pytest.mark.parametrize("child", children())
def test_the_child_of_a_watch_imports_nothing_heavy(child: str) -> None:
    assert imported_by(child) <= NEEDED.get(child, set())


def test_a_supervisor_imports_nothing_heavy_before_it_needs_it() -> None:
    assert imported_by(*SUPERVISOR) <= {"pydantic_core", "_hashlib"}
