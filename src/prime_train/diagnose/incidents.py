"""Groups the hits of one log into incidents, each with its time and its strength. Pure.

An incident is one traceback or one line. Incidents after which the work continued are left out.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import NamedTuple

from prime_train.diagnose.hits import Hit, Scan
from prime_train.diagnose.progress import ENOUGH_PROGRESS
from prime_train.diagnose.tracebacks import Raised, root

NEAR_LINES, _NEAR_S = 400, 120.0  # within these, an end and an error before it belong together
_ZONE_STEP_S = 900  # time zones differ by quarters of an hour
CALM_LINES = 3  # at info level after a warning, or after a failure that another one followed: the work went on
_WEAK_TAIL_LINES = 100  # a line of text without a speaker, or a warning, counts only so near to the end of its log
_ANSWER_LINES = 20  # between the traceback of a request and the answer to it
_OFTEN_OUTLIVED = 2
_NUMBER = re.compile(r"\d+")
_KERNEL = frozenset({"gpu", "host"})


class Incident(NamedTuple):
    """The most specific hit of one traceback or line. `rank`: 0 a cause, 1 follows another failure, 2 a weak sign."""

    rank: int
    time_s: float
    scan: Scan
    hit: Hit
    chain: tuple[Raised, ...]

    @property
    def when(self) -> tuple[float, str, int]:
        return (self.time_s, self.scan.name, self.chain[0].at if self.chain else self.hit.at)

    @property
    def has_frames(self) -> bool:
        return any(raised.frames for raised in self.chain)

    @property
    def is_stop(self) -> bool:
        """Whether it reports that a person, a signal or a scheduler ended the work."""
        return self.hit.signature is not None and self.hit.signature.stop

    @property
    def is_summary(self) -> bool:
        return self.hit.signature is not None and self.hit.signature.is_summary

    @property
    def is_the_kernels(self) -> bool:
        """Whether the kernel or a driver reports the hardware. Errors of programs follow from it in any order."""
        known = self.hit.signature
        return known is not None and known.cause_class == "hardware" and known.family in _KERNEL


def read_incidents(scan: Scan) -> list[Incident]:
    """The incidents of the last attempt in a log."""
    return _order_times(_last_attempt(list(_incidents(scan)), scan))


def _incidents(scan: Scan) -> Iterable[Incident]:
    """The incidents of the last attempt in one log after which the work did not continue."""
    ends = [hit for hit in scan.hits if hit.signature and hit.signature.ends]
    outlived: Counter[str] = Counter()
    for _, group in groupby(sorted(scan.hits, key=lambda hit: (hit.incident, hit.at)), key=lambda hit: hit.incident):
        hits = [hit for hit in group if _counts(scan, hit, has_end=bool(ends))]
        if not hits or _is_overcome(scan, hits[-1], ends):
            continue
        chain = max((hit.chain for hit in hits), key=len)
        if _is_survived(scan, hits[-1], ends):
            outlived[_kind(hits[-1], chain)] += 1
            continue
        if _is_handled(scan, hits[-1], outlived[_kind(hits[-1], chain)]):
            continue
        best = min(hits, key=_by_specificity)
        if _follows_unknown_cause(best, chain):
            best = best._replace(match=None)
        yield Incident(_rank(best, chain), _time(scan, best), scan, best, chain)


def _last_attempt(incidents: list[Incident], scan: Scan) -> list[Incident]:
    """The incidents of the last attempt in a log; those of all, if the last one only suffered from an earlier one."""
    last = [item for item in incidents if item.hit.attempt == scan.attempt]
    return incidents if last and all(item.rank for item in last) else last


def _order_times(incidents: list[Incident]) -> list[Incident]:
    """The incidents of one log.

    None gets a later time than the next one, if the log was followed while it grew, or if its times are of several
    kinds, which may come from several clocks.
    """
    incidents.sort(key=lambda item: item.hit.at)
    kinds = {item.hit.stamp.kind for item in incidents if item.hit.stamp is not None}
    latest_s = math.inf
    for index, item in reversed(list(enumerate(incidents))):
        if item.hit.written is not None or len(kinds) > 1:
            incidents[index] = item._replace(time_s=min(item.time_s, latest_s))
        latest_s = incidents[index].time_s
    return incidents


def _counts(scan: Scan, hit: Hit, *, has_end: bool) -> bool:
    """Whether a hit may be a cause at all. `has_end`: a line of the log reports that a process ended badly."""
    if (hit.signature and (hit.signature.notice or hit.signature.explains)) or (
        hit.by_level and scan.level_means_nothing
    ):
        return False
    if hit.is_text and ((scan.end.is_good and not has_end) or scan.lines - hit.at > _WEAK_TAIL_LINES):
        return False
    return _often_enough(scan, hit)


def _often_enough(scan: Scan, hit: Hit) -> bool:
    if hit.signature is None or hit.signature.repeats == 1:
        return True
    same = (other for other in scan.hits if other.signature == hit.signature)
    return sum(scan.done - other.done_before < ENOUGH_PROGRESS for other in same) >= hit.signature.repeats


def _is_survived(scan: Scan, hit: Hit, ends: Sequence[Hit]) -> bool:
    """Whether the work continued after a hit.

    False where an end follows shortly after it, because requests in progress may still be answered after the engine
    died.
    """
    if scan.done - hit.done_before < ENOUGH_PROGRESS:
        return False
    now_s = _time(scan, hit)
    near = (end for end in ends if hit.at <= end.at <= hit.at + NEAR_LINES)
    return not any(abs(_time(scan, end) - now_s) <= _NEAR_S for end in near)


def _kind(hit: Hit, chain: tuple[Raised, ...]) -> str:
    """The text of an error without its numbers."""
    return _NUMBER.sub("#", root(chain).text if chain else hit.text)


def _is_handled(scan: Scan, hit: Hit, outlived: int) -> bool:
    """Whether a logger wrote the traceback, and the process is known to go on after it.

    It answered the request with the fault of the client, or it has outlived the same failure. `outlived`: how often.
    """
    if not hit.is_logged or scan.level_means_nothing:
        return False
    if any(hit.at < at <= hit.at + _ANSWER_LINES for at in scan.refusals):
        return True
    return outlived + min(1, scan.done - hit.done_before) >= _OFTEN_OUTLIVED


def _is_overcome(scan: Scan, hit: Hit, ends: Sequence[Hit]) -> bool:
    """Whether lines at info level follow the last warning of its kind, and no process ends after it."""
    known = hit.signature
    if known is None or not hit.weak or known.hears_all or scan.calm - hit.calm_before < CALM_LINES:
        return False
    return not any(other.at > hit.at for other in scan.hits if other.signature is known or other in ends)


def _time(scan: Scan, hit: Hit) -> float:
    """Seconds since 1970, as exact as the log allows; infinity for a hit without any time.

    In a log that was followed while it grew, a line's own time is used only if it lies in the line's write window.
    """
    stamp = hit.stamp or scan.first_stamp
    if hit.written is not None:
        stamp_s = hit.written.until_s if stamp is None else scan.clock.seconds(stamp) + _zone_s(scan)
        return stamp_s if hit.written.since_s <= stamp_s <= hit.written.until_s else hit.written.until_s
    if stamp is not None:
        return scan.clock.seconds(stamp)
    return math.inf if scan.changed_s is None else scan.changed_s


def _zone_s(scan: Scan) -> float:
    """Seconds by which the times of a log are behind those of its reader: its time zone."""
    if scan.received is None:
        return 0.0
    stamp, received_s = scan.received
    return round((received_s - scan.clock.seconds(stamp)) / _ZONE_STEP_S) * float(_ZONE_STEP_S)


def _rank(hit: Hit, chain: tuple[Raised, ...]) -> int:
    if hit.weak:
        return 2
    if hit.signature is not None:
        return int(hit.signature.cascade)
    return 0 if chain else 2


def _by_specificity(hit: Hit) -> tuple[bool, bool, bool, bool, int, int]:
    known = hit.signature
    generic = (known is None, known is None or known.cascade, known is None or known.generic)
    return (*generic, hit.weak, hit.at, -len(hit.text))


def _follows_unknown_cause(hit: Hit, chain: tuple[Raised, ...]) -> bool:
    """Whether the root of the chain is an unknown exception, and the signature only matches what follows from it."""
    return hit.signature is not None and hit.signature.cascade and len(chain) > 1 and root(chain).at != hit.at
