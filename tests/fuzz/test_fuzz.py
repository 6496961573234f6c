"""Cases of fixed seeds: damaged run directories end in a bit-equal finish or in a clear error."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.__main__ import run
from tests.fuzz.stage import Stage

pytestmark = pytest.mark.slow  # real processes


def test_a_damaged_run_ends_bit_equal_or_in_a_clear_error(tmp_path: Path) -> None:
    assert run(Stage(tmp_path, torch=False), range(30)) == []
