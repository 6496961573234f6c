"""What the tests of the command line share."""

from pathlib import Path

import pytest

from tests.unit.cli import small


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A directory with a config and a little text."""
    small.write(tmp_path)
    return tmp_path
