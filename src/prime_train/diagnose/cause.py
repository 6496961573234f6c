"""Judges what many logs hold: one cause, what only followed it, and what is worth knowing. Pure.

The first failure in time is the cause. What a process outlived is none: it went on working after it. What says only
that something else failed is the cause where nothing else is known, or where it tells of an end that nothing near it
explains.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import NamedTuple

from prime_train.diagnose.progress import ENOUGH
from prime_train.diagnose.scans import Hit, Scan
from prime_train.diagnose.tracebacks import Raised, root, shortened

UNKNOWN = "UNKNOWN"
_NEAR_LINES, _NEAR_S = 400, 120.0  # within these an end and an error before it belong together
_EXPLAINS_S = 60.0  # so much later may the reason for an end be written, or the kernel's word on an error
_GOES_ON_S = 300.0  # a log that goes on for so long was not ended by an exception that nobody knows
_ZONE_STEP_S = 900  # time zones differ by quarters of an hour
_MOST_FOLLOWING = 20
_KERNEL = frozenset({"gpu", "host"})


class Cause(NamedTuple):
    """The root cause, told in the parts of a message, and where it stands."""

    id: str
    cause_class: str  # of signatures.CauseClass, or "unknown"
    retry: str
    what: str
    why: str
    fix: str
    file: str
    line: int
    text: str  # the line itself
    raised: tuple[str, ...] = ()  # the exception and the frames that matter, where there is a traceback


class Seen(NamedTuple):
    """A signature that some log holds at `line`, and what it says."""

    id: str
    file: str
    line: int
    what: str


class Diagnosis(NamedTuple):
    """What the logs say. `cause` is None where nothing is wrong."""

    cause: Cause | None
    cascade: tuple[Seen, ...]  # what followed, in the order of time
    notices: tuple[Seen, ...]  # what explains a slow run


class _Incident(NamedTuple):
    """The hits of one traceback or line, as the one of them that says most. `rank`: 0 a cause, 1 what follows
    another, 2 a weak sign."""

    rank: int
    time_s: float
    order: int  # of the log
    scan: Scan
    hit: Hit
    chain: tuple[Raised, ...]

    @property
    def when(self) -> tuple[float, int, int]:
        return (self.time_s, self.order, self.hit.at)

    @property
    def ends(self) -> bool:
        return self.hit.match is not None and self.hit.match.signature.ends

    @property
    def is_the_kernels(self) -> bool:
        """Whether the kernel or a driver tells of the hardware: what programs say of it follows, whoever is quicker."""
        match = self.hit.match
        return match is not None and match.signature.cause_class == "hardware" and match.signature.family in _KERNEL


def judge(scans: Sequence[Scan]) -> Diagnosis:
    """The one cause of what these logs hold, which belong to one run."""
    dated = [seconds for scan in scans if (seconds := scan.clock.dated_s) is not None]
    if dated:
        scans = [scan._replace(clock=scan.clock.near(max(dated))) for scan in scans]
    incidents = sorted((item for order, scan in enumerate(scans) for item in _incidents(scan, order)), key=_when)
    incidents = _without_passed(incidents)
    found = _first(incidents)
    notices = tuple(_seen(scan, hit) for scan in scans for hit in _notices(scan))
    if found is None:
        return Diagnosis(None, (), notices)
    return Diagnosis(_cause(found), tuple(_following(incidents, found)), notices)


def _when(incident: _Incident) -> tuple[float, int, int]:
    return incident.when


def _first(incidents: Sequence[_Incident]) -> _Incident | None:
    """The earliest cause; or the end of a process that no cause near it explains; or the least bad rest."""
    causes = [item for item in incidents if item.rank == 0]
    following = [item for item in incidents if item.rank == 1]
    end = next((item for item in following if item.ends), None)
    if causes:
        first = causes[0]
        if end is not None and first.time_s > end.time_s + _EXPLAINS_S:
            return end
        by_kernel = (item for item in causes if item.is_the_kernels and item.time_s <= first.time_s + _EXPLAINS_S)
        return next(by_kernel, first)
    rest = [item for item in incidents if item.rank == 2]
    weak = next((item for item in rest if item.hit.match is not None), None)
    # A warning that stands before an end says more than the end does.
    if end is not None and weak is not None and weak.when < end.when and not _follows_another(weak):
        return weak
    return next(iter([*following, *([weak] if weak else []), *rest]), None)


def _follows_another(incident: _Incident) -> bool:
    return incident.hit.match is not None and incident.hit.match.signature.cascade


def _incidents(scan: Scan, order: int) -> Iterable[_Incident]:
    """The incidents of one log that nothing outlived."""
    return _in_order(list(_each(scan, order)))


def _in_order(incidents: list[_Incident]) -> list[_Incident]:
    """Of a log that was listened to, none later than what stands below it."""
    incidents.sort(key=lambda item: item.hit.at)
    for index in range(len(incidents) - 2, -1, -1):
        this, following = incidents[index], incidents[index + 1]
        if this.hit.heard is not None and this.time_s > following.time_s:
            incidents[index] = this._replace(time_s=following.time_s)
    return incidents


def _each(scan: Scan, order: int) -> Iterable[_Incident]:
    ends = [hit for hit in scan.hits if hit.match is not None and hit.match.signature.ends]
    for _, group in groupby(sorted(scan.hits, key=lambda hit: (hit.incident, hit.at)), key=lambda hit: hit.incident):
        hits = [hit for hit in group if not (hit.match and hit.match.signature.notice)]
        hits = [hit for hit in hits if _often_enough(scan, hit)]
        if not hits or _outlived(scan, hits[-1], ends):
            continue
        chain = max((hit.chain for hit in hits), key=len)
        best = min(hits, key=_says_less)
        if _says_only_that_it_follows(best, chain):
            best = best._replace(match=None)
        yield _Incident(_rank(best, chain), _time(scan, best), order, scan, best, chain)


def _says_less(hit: Hit) -> tuple[bool, bool, bool, bool, int]:
    match = hit.match
    if match is None:
        return (True, True, True, hit.weak, hit.at)
    return (False, match.signature.cascade, match.signature.generic, hit.weak, hit.at)


def _says_only_that_it_follows(hit: Hit, chain: tuple[Raised, ...]) -> bool:
    """Whether the traceback has a cause of its own, unknown, and the signature belongs to what came of it."""
    if hit.match is None or not hit.match.signature.cascade or len(chain) < 2:
        return False
    return root(chain).at < hit.at


def _rank(hit: Hit, chain: tuple[Raised, ...]) -> int:
    if hit.weak:
        return 2
    if hit.match is not None:
        return 1 if hit.match.signature.cascade else 0
    return 0 if chain else 2


def _often_enough(scan: Scan, hit: Hit) -> bool:
    if hit.match is None or hit.match.signature.repeats == 1:
        return True
    same = (other for other in scan.hits if other.match and other.match.signature.id == hit.match.signature.id)
    return sum(scan.done - other.done_before < ENOUGH for other in same) >= hit.match.signature.repeats


def _outlived(scan: Scan, hit: Hit, ends: Sequence[Hit]) -> bool:
    """Whether work went on after it. Requests that were under way may still be answered after the engine died, so
    an end close behind it counts more."""
    if scan.done - hit.done_before < ENOUGH:
        return False
    now_s = _time(scan, hit)
    near = (end for end in ends if hit.at <= end.at <= hit.at + _NEAR_LINES)
    return not any(abs(_time(scan, end) - now_s) <= _NEAR_S for end in near)


def _time(scan: Scan, hit: Hit) -> float:
    """Seconds since 1970 as well as the log tells; what has no time at all comes last.

    Where somebody listened while it was written, a line's time counts for as much as it falls between the moments at
    which the piece came in.
    """
    stamp = hit.stamp or scan.first_stamp
    if hit.heard is not None:
        told_s = hit.heard.until_s if stamp is None else scan.clock.seconds(stamp) + _zone_s(scan)
        return told_s if hit.heard.since_s <= told_s <= hit.heard.until_s else hit.heard.until_s
    if stamp is not None:
        return scan.clock.seconds(stamp)
    return math.inf if scan.changed_s is None else scan.changed_s


def _zone_s(scan: Scan) -> float:
    """Seconds by which the times of a log are behind those of its reader: its time zone."""
    if scan.heard is None:
        return 0.0
    stamp, heard_s = scan.heard
    return round((heard_s - scan.clock.seconds(stamp)) / _ZONE_STEP_S) * float(_ZONE_STEP_S)


def _without_passed(incidents: list[_Incident]) -> list[_Incident]:
    """An exception that nobody knows, in a log that goes on long after it, is a weak sign where there are others."""
    known = any(item.rank == 0 and item.hit.match is not None for item in incidents)
    if not known:
        return incidents
    return [item._replace(rank=2) if item.rank == 0 and _passed(item) else item for item in incidents]


def _passed(incident: _Incident) -> bool:
    last = incident.scan.last_stamp
    if incident.hit.match is not None or incident.hit.stamp is None or last is None:
        return False
    return incident.scan.clock.seconds(last) - incident.time_s >= _GOES_ON_S


def _cause(incident: _Incident) -> Cause:
    hit, match = incident.hit, incident.hit.match
    raised = shortened(root(incident.chain)) if incident.chain else ()
    if match is not None:
        told = match.signature
        return Cause(
            told.id, told.cause_class, told.retry, match.told(told.what), told.why, match.told(told.fix),
            incident.scan.name, hit.at, hit.text, raised,
        )  # fmt: skip
    if incident.chain:
        first = root(incident.chain)
        place = raised[1] if len(raised) > 1 else f"{incident.scan.name}:{first.at}"
        why = "an exception that no signature knows ended it"
        fix = f"read {place}; the whole traceback ends at {incident.scan.name}:{first.at}"
        return Cause(UNKNOWN, "unknown", "yes", first.text, why, fix, incident.scan.name, first.at, first.text, raised)
    why = "it is the first error of these logs, and no signature knows it"
    fix = f"read {incident.scan.name} around line {hit.at}"
    return Cause(UNKNOWN, "unknown", "yes", hit.text, why, fix, incident.scan.name, hit.at, hit.text)


def _following(incidents: Sequence[_Incident], found: _Incident) -> Iterable[Seen]:
    """What came with the cause and after it, each kind once per log."""
    told = {(found.hit.match.signature.id if found.hit.match else UNKNOWN, found.order)}
    for item in incidents:
        match = item.hit.match
        if match is None or item is found or (match.signature.id, item.order) in told:
            continue
        if item.rank == 1 or (item.rank == 0 and item.when > found.when):
            told.add((match.signature.id, item.order))
            yield _seen(item.scan, item.hit)
            if len(told) > _MOST_FOLLOWING:
                return


def _notices(scan: Scan) -> Iterable[Hit]:
    """The first hit of each notice."""
    told: set[str] = set()
    for hit in scan.hits:
        if hit.match is not None and hit.match.signature.notice and hit.match.signature.id not in told:
            told.add(hit.match.signature.id)
            yield hit


def _seen(scan: Scan, hit: Hit) -> Seen:
    assert hit.match is not None
    return Seen(hit.match.signature.id, scan.name, hit.at, hit.match.told(hit.match.signature.what))
