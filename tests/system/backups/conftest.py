"""The fixtures of the same room in tests/unit."""

from tests.unit.backups.conftest import _own_settings, s3, s3_address

__all__ = ["_own_settings", "s3", "s3_address"]
