"""Every fault of the table is found, named, and answered as the policy says, and costs no complete checkpoint.

Those of the bundled trainer and of prime-rl, which take longest, are in test_stages.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.drills.drill import Row, carry_out, check
from tests.drills.table import ROWS


@pytest.mark.spread
@pytest.mark.parametrize(
    "row", [row for row in ROWS if row.stage == "victim"], ids=lambda row: f"{row.group}: {row.name}"
)
def test_a_fault(row: Row, tmp_path: Path) -> None:
    lacks = row.needs() if row.needs is not None else ""
    if lacks:
        pytest.skip(lacks)
    check(row, carry_out(row, tmp_path / "here", tmp_path / "cache"))


def test_no_two_rows_are_called_the_same() -> None:
    names = [(row.group, row.name) for row in ROWS]
    assert len(set(names)) == len(names)
    assert len(names) >= 40
