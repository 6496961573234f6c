"""Event files stay readable: those in tests/golden/events were written before fields were added to their kinds."""

from __future__ import annotations

from pathlib import Path

from prime_train.events import AlarmRaised, Follower
from prime_train.supervise.core.fold import fold_all

_GOLDEN = Path(__file__).parents[2] / "golden" / "events"


def test_recorded_events_are_read_without_damage() -> None:
    follower = Follower(_GOLDEN)
    records = follower.poll()
    assert (len(records), follower.damage) == (16, ())
    state = fold_all(records)
    assert (state.state, state.exit_code, state.step, state.newest_complete) == ("stopped", 75, 85, 85)
    assert (state.stop_by, state.attempt_number, state.loss) == ("SIGTERM", 1, 4.95)
    assert state.last_validation is not None
    assert state.last_validation.loss == 5.2421


def test_an_alarm_that_states_nothing_about_saves_permits_them() -> None:
    (alarm,) = (record.event for record in Follower(_GOLDEN).poll() if isinstance(record.event, AlarmRaised))
    assert alarm.savable
