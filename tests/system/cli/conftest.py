"""The fixtures of the same room in tests/unit."""

from tests.unit.cli.conftest import *  # noqa: F403
