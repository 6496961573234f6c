"""Every fault of the table is found, named, and answered as the policy says, and costs no complete checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.drills.drill import Row, carry_out, check
from tests.drills.table import ROWS

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.group}: {row.name}")
def test_a_fault(row: Row, tmp_path: Path, cache: Path) -> None:
    lacks = row.needs() if row.needs is not None else ""
    if lacks:
        pytest.skip(lacks)
    check(row, carry_out(row, tmp_path / "here", cache))


def test_no_two_rows_are_called_the_same() -> None:
    names = [(row.group, row.name) for row in ROWS]
    assert len(set(names)) == len(names)
    assert len(names) >= 40
