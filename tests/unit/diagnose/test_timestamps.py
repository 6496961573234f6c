"""Times without a year, a day or a start are reckoned back from when the file was last written."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_train.diagnose.timestamps import Stamp, StampClock, parse_clock, parse_iso, parse_month_and_day


def _at(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


@given(st.datetimes(datetime(2020, 1, 1), datetime(2030, 1, 1)), st.integers(0, 300))
def test_a_time_without_its_year_is_of_the_year_before_the_last_write(moment: datetime, days_later: int) -> None:
    moment = moment.replace(microsecond=0, tzinfo=UTC)
    stamp = parse_month_and_day(moment.month, moment.day, moment.strftime("%H:%M:%S"))
    assert stamp is not None
    clock = StampClock(moment.timestamp() + days_later * 86400)
    assert clock.seconds(clock.record(stamp)) == moment.timestamp()


def test_times_of_day_run_over_midnight() -> None:
    clock = StampClock(_at("2026-11-22 00:10:30"))
    texts = ("23:58:00", "23:59:59", "00:00:01", "00:10:00")
    stamps = [clock.record(stamp) for stamp in map(parse_clock, texts) if stamp is not None]
    assert [clock.seconds(stamp) for stamp in stamps] == [
        _at(f"2026-11-{day} {text}") for day, text in zip((21, 21, 22, 22), texts, strict=True)
    ]


def test_a_file_written_after_midnight_whose_last_line_is_from_before() -> None:
    clock = StampClock(_at("2026-11-22 00:00:05"))
    stamp = parse_clock("23:59:58")
    assert stamp is not None
    assert clock.seconds(clock.record(stamp)) == _at("2026-11-21 23:59:58")


def test_seconds_since_the_start_end_when_the_file_was_written() -> None:
    clock = StampClock(5000.0)
    first, last = clock.record(Stamp("boot", 100.0)), clock.record(Stamp("boot", 160.0))
    assert (clock.seconds(first), clock.seconds(last)) == (4940.0, 5000.0)


@pytest.mark.parametrize("text", ["2026-13-01 00:00:00", "2026-02-30 00:00:00", "2026-11-21 25:00:00", "x"])
def test_what_is_no_date_is_none(text: str) -> None:
    assert parse_iso(text) is None


def test_what_is_no_day_or_time_is_none() -> None:
    assert parse_month_and_day(13, 1, "00:00:00") is None
    assert parse_month_and_day("Foo", 1, "00:00:00") is None
    assert parse_month_and_day(2, 30, "00:00:00") is None
    assert parse_clock("24:00:00") is None
    assert parse_clock("10:61:00") is None
