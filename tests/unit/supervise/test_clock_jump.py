"""A clock that is set is reported once; a clock that drifts is not."""

from __future__ import annotations

import time

import pytest

from prime_train.supervise.core.loop import Clock


@pytest.mark.parametrize(("set_by_s", "told"), [(7200.0, 7200.0), (-7200.0, -7200.0), (4.0, None)])
def test_a_clock_that_is_set_is_reported_once(
    set_by_s: float, told: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    assert clock.jump_s() is None
    now_s = time.time
    monkeypatch.setattr(time, "time", lambda: now_s() + set_by_s)
    found = clock.jump_s()
    assert found == (None if told is None else pytest.approx(told, abs=1.0))
    assert clock.jump_s() is None
