"""The fixtures of the same room in tests/unit."""

from tests.unit.config.prime_rl.conftest import *  # noqa: F403
