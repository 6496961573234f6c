"""The fixtures of the same room in tests/unit."""

from tests.unit.backups.conftest import *  # noqa: F403
