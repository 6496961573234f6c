"""The faults of the table that strike the bundled trainer and prime-rl, under `prime-train run`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.drills.drill import Row, carry_out, check
from tests.drills.table import ROWS

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.mark.parametrize(
    "row", [row for row in ROWS if row.stage != "victim"], ids=lambda row: f"{row.group}: {row.name}"
)
def test_a_fault(row: Row, tmp_path: Path, cache: Path) -> None:
    check(row, carry_out(row, tmp_path / "here", cache))
