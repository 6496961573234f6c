"""Tests of a file that share fixtures are not parted."""

from __future__ import annotations

import pytest


def test_one_worker_takes_all_tests_of_a_file(request: pytest.FixtureRequest) -> None:
    """pytest-xdist says so by a suffix; with pytest 9.2 its version 3.8 silently does not."""
    if request.config.getoption("loadgroup", False):
        assert request.node.nodeid.endswith("@tests/house/test_groups.py")
