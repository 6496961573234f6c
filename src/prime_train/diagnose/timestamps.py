"""Converts the times in log lines, in their many formats, to seconds. Reads no clock."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Literal, NamedTuple

_DAY_S = 86400
_HALF_DAY_S = _DAY_S // 2
_SYSLOG = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")


class Stamp(NamedTuple):
    """A time in a line.

    "wall": seconds since 1970; "year": since the start of an unknown year; "day": since the midnight before the file's
    first line; "boot": since the machine started.
    """

    kind: Literal["wall", "year", "day", "boot"]
    seconds: float


# Hours before UTC. CST and IST are the North American and the Indian one.
ZONES_H: dict[str, float] = {
    "UTC": 0, "GMT": 0, "WET": 0, "BST": 1, "WEST": 1, "CET": 1, "CEST": 2, "EET": 2, "EEST": 3, "MSK": 3, "IST": 5.5,
    "SGT": 8, "HKT": 8, "JST": 9, "KST": 9, "AEST": 10, "AEDT": 11, "EDT": -4, "EST": -5, "CDT": -5, "CST": -6,
    "MDT": -6, "MST": -7, "PDT": -7, "PST": -8,
}  # fmt: skip


def parse_iso(text: str) -> Stamp | None:
    """The time in "2026-11-21 07:46:34,123", "20261121T074634Z", "2026-11-21 07:46:34 CET" etc.

    A time without a zone counts as UTC.
    """
    clock, zone_h = _split_zone(text)
    clock = clock.replace(",", ".").replace("/", "-").replace("_", "T").replace(" +", "+").replace(" -", "-")
    if clock[:8].isdigit() and clock[8:9] == "-":
        clock = f"{clock[:8]}T{clock[9:]}"
    if clock[:8].isdigit() and clock[11:12] == ":":  # 20261121 07:46:34
        clock = f"{clock[:4]}-{clock[4:6]}-{clock[6:]}"
    try:
        moment = datetime.fromisoformat(_shorten_fraction(clock))
    except ValueError:
        return None
    return _wall(moment, zone_h)


def parse_words(text: str) -> Stamp | None:
    """The time in "Nov 21 07:46:34 2026", "Nov 21 07:46:34 CET 2026" and "21/Nov/2026:07:46:34 +0100"."""
    parts = text.split()
    zone_h = next((ZONES_H[part] for part in parts if part in ZONES_H), 0.0)
    plain = " ".join(part for part in parts if part not in ZONES_H)
    for form in ("%b %d %H:%M:%S %Y", "%d/%b/%Y:%H:%M:%S %z", "%d/%b/%Y:%H:%M:%S"):
        try:
            return _wall(datetime.strptime(plain, form), zone_h)
        except ValueError:
            continue
    return None


def parse_epoch(text: str) -> Stamp:
    """The time in "1795247194.123" or, in milliseconds, "1795247194123"."""
    seconds = float(text)
    return Stamp("wall", seconds / 1000 if seconds > 1e11 else seconds)


def _split_zone(text: str) -> tuple[str, float]:
    clock, _, zone = text.rpartition(" ")
    return (clock, ZONES_H[zone]) if zone in ZONES_H else (text, 0.0)


def _shorten_fraction(clock: str) -> str:
    """The time with at most six digits of a second."""
    head, dot, rest = clock.partition(".")
    digits = rest[: len(rest) - len(rest.lstrip("0123456789"))]
    return f"{head}{dot}{digits[:6]}{rest[len(digits) :]}"


def _wall(moment: datetime, zone_h: float) -> Stamp:
    zoned = moment if moment.tzinfo else moment.replace(tzinfo=timezone(timedelta(hours=zone_h)))
    return Stamp("wall", zoned.timestamp())


def parse_month_and_day(month: int | str, day: int, clock: str) -> Stamp | None:
    """The time in "11-21 07:46:34" (vLLM), "1121 07:46:34.1" (glog) and "Nov 21 07:46:34" (syslog)."""
    seconds = _clock(clock)
    try:
        number = _SYSLOG.index(month.lower()[:3]) + 1 if isinstance(month, str) else month
        begun = datetime(2024, number, day) - datetime(2024, 1, 1)
    except ValueError:
        return None
    return None if seconds is None else Stamp("year", begun.days * _DAY_S + seconds)


def parse_clock(text: str) -> Stamp | None:
    """The time in "07:46:34"."""
    seconds = _clock(text)
    return None if seconds is None else Stamp("day", seconds)


def _clock(text: str) -> float | None:
    hours, minutes, seconds = text.replace(",", ".").split(":")
    if int(hours) > 23 or int(minutes) > 59 or float(seconds) >= 61:
        return None
    return int(hours) * 3600 + int(minutes) * 60 + float(seconds)


@dataclass(eq=False, slots=True)
class StampClock:
    """Converts the stamps of one file to seconds since 1970, once the file was read to its end.

    `changed_s` is when the file was last written. The year, the day or the machine's start, which the lines do not
    hold, are computed back from it. With None such stamps keep only their order.
    """

    changed_s: float | None
    _midnights: int = 0
    _last: dict[str, Stamp] = field(default_factory=dict)

    def record(self, stamp: Stamp) -> Stamp:
        """The stamp with midnights counted. Must be called in the order of the lines."""
        last = self._last.get(stamp.kind)
        if stamp.kind == "day":
            stamp = Stamp("day", stamp.seconds + self._midnights * _DAY_S)
            if last is not None and last.seconds - stamp.seconds > _HALF_DAY_S:
                self._midnights += 1
                stamp = Stamp("day", stamp.seconds + _DAY_S)
        self._last[stamp.kind] = stamp
        return stamp

    def seconds(self, stamp: Stamp) -> float:
        """Seconds since 1970, or since an unknown start where the date is unknown."""
        if stamp.kind == "wall":
            return stamp.seconds
        last, wall = self._last.get(stamp.kind, stamp), self._last.get("wall")
        anchor = wall.seconds if wall is not None and stamp.kind != "boot" else self.changed_s
        if anchor is None:
            return stamp.seconds
        if stamp.kind == "year":
            return _in_year_of(anchor, stamp.seconds)
        if stamp.kind == "boot":
            return anchor - (last.seconds - stamp.seconds)
        day_begun = anchor - anchor % _DAY_S
        if last.seconds % _DAY_S > anchor % _DAY_S + _HALF_DAY_S:
            day_begun -= _DAY_S  # the line is from before midnight, the file changed after it
        return day_begun + stamp.seconds - (last.seconds - last.seconds % _DAY_S)

    @property
    def dated_s(self) -> float | None:
        """The file's last time with a complete date; None where no line has one."""
        last = self._last.get("wall")
        return None if last is None else last.seconds

    def end_near(self, anchor_s: float) -> StampClock:
        """This clock; where year or day are unknown, shifted so that the file ends as near to `anchor_s` as possible.

        The change time of a copied file is the time of the copy; another log of the same run is then a better anchor.
        """
        last = self._last.get("year") or self._last.get("day")
        if last is None or self.dated_s is not None:
            return self
        end_s = self.seconds(last)
        if last.kind == "day":
            end_s += round((anchor_s - end_s) / _DAY_S) * _DAY_S
        else:
            year = datetime.fromtimestamp(anchor_s, UTC).year
            turns = [datetime(year + shift, 12, 31, tzinfo=UTC).timestamp() for shift in (-1, 0, 1)]
            ends = [_in_year_of(turn_s, last.seconds) for turn_s in turns]
            end_s = min(ends, key=lambda seconds: abs(seconds - anchor_s))
        return replace(self, changed_s=end_s)


def _in_year_of(anchor_s: float, into_year_s: float) -> float:
    """The latest time at this offset in any year that is at most a day after the anchor. Counts in leap years."""
    moment = datetime(2024, 1, 1) + timedelta(seconds=into_year_s)
    for year in (datetime.fromtimestamp(anchor_s, UTC).year + back for back in (1, 0, -1, -2, -3, -4)):
        try:
            seconds = moment.replace(year=year, tzinfo=UTC).timestamp()
        except ValueError:
            continue  # 29 February
        if seconds <= anchor_s + _DAY_S:
            return seconds
    return into_year_s
