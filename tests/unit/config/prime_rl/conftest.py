from __future__ import annotations

import pytest

from prime_train.config.prime_rl import schema


@pytest.fixture
def three_generations(monkeypatch: pytest.MonkeyPatch) -> None:
    """The generations that the files here are written for: a newer table does not change what these tests expect."""
    tables = {name: schema.tables()[name] for name in ("2026-01", "2026-05", "2026-08")}
    monkeypatch.setattr(schema, "tables", lambda: tables)
