"""The fixtures of the same room in tests/unit."""

from tests.unit.trainer.conftest import *  # noqa: F403
