"""Finds one root cause in the hits of several logs, the failures that followed from it, and notices. Pure.

The first failure in time is the cause. A failure after which the process continued to work is not a cause. A line that
only reports another failure is the cause only where nothing else is known, or where it reports the end of a process
and no cause is near it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from prime_train.diagnose.exception_class import classify_exception, classify_message
from prime_train.diagnose.hits import Hit, Scan
from prime_train.diagnose.incidents import CALM_LINES, Incident, read_incidents
from prime_train.diagnose.signatures import Match, Signature
from prime_train.diagnose.stops import keep_last_job, weaken_after_stop
from prime_train.diagnose.tracebacks import Raised, exception_alone, root, shorten

UNKNOWN = "UNKNOWN"
_EXPLAINS_S = 60.0  # the reason for an end, or the kernel's report of an error, may be written so much later
_GOES_ON_S = 300.0  # an unknown exception did not end a log that continues for so long
_MOST_FOLLOWING = 20
_REASON_LINES = 50  # between a refused request and the failure that it causes
_LOADS = re.compile(
    r"from_pretrained$|^_?load_(?:\w+_)?(?:model|weights?|state_dict|checkpoint|shard|tensors?)\b|set_module_tensor"
)
_CLOSE_LINES = 400  # after a traceback that ended a process: the reports of launchers and of other ranks


class Cause(NamedTuple):
    """The root cause, in the parts of a message, and its place."""

    id: str
    cause_class: str  # of signatures.CauseClass, or "unknown"
    retry: str  # "yes" where the line is only text: text alone never ends a run
    what: str
    why: str
    fix: str
    file: str
    line: int
    text: str  # the line itself
    raised: tuple[str, ...] = ()  # the exception and the frames that matter, where there is a traceback


class SignatureHit(NamedTuple):
    """A signature that matches `line` of a log, and its message."""

    id: str
    file: str
    line: int
    what: str


class LastLine(NamedTuple):
    """The last line of a log."""

    file: str
    line: int
    text: str


class Diagnosis(NamedTuple):
    """The result of reading the logs. `cause` is None where no failure was found."""

    cause: Cause | None
    cascade: tuple[SignatureHit, ...]  # failures that followed, in the order of time
    notices: tuple[SignatureHit, ...]  # explanations of a slow run
    unordered: tuple[SignatureHit, ...] = ()  # failures in other logs whose time is equal to that of the cause
    ends: tuple[LastLine, ...] = ()  # of the logs that neither hold a failure nor report that the work was completed

    @property
    def is_healthy(self) -> bool:
        """Whether no failure was found, and every log reports that its work was completed."""
        return self.cause is None and not self.ends


def judge(scans: Sequence[Scan]) -> Diagnosis:
    """The root cause in the logs of one run."""
    # A log without dates is placed near the end of the dated ones, because all were written by one run.
    dated = [seconds for scan in scans if (seconds := scan.clock.dated_s) is not None]
    if dated:
        scans = [scan._replace(clock=scan.clock.end_near(max(dated))) for scan in scans]
    incidents = [item for scan in scans for item in keep_last_job(read_incidents(scan))]
    incidents = weaken_after_stop(sorted(incidents, key=lambda item: item.when))
    incidents = _weaken_handled(_weaken_survived(incidents))
    found = _find_first(incidents)
    notices = tuple(_signature_hit(scan, hit) for scan in scans for hit in _notices(scan))
    if found is None:
        ends = (LastLine(scan.name, scan.end.line, scan.end.text) for scan in scans if not scan.end.is_good)
        return Diagnosis(None, (), notices, ends=tuple(ends))
    same = (
        item
        for item in incidents
        if item is found or (item.hit.signature and item.hit.signature == found.hit.signature)
    )
    cause = _make_cause(
        _with_traceback(found, incidents), decides=any(_ended_its_process(item, incidents) for item in same)
    )
    return Diagnosis(cause, tuple(_following(incidents, found)), notices, tuple(_unordered(incidents, found)))


def _with_traceback(found: Incident, incidents: Sequence[Incident]) -> Incident:
    """The incident itself; for a line alone, the traceback of the same failure in the same log, which has its place."""
    if found.has_frames or found.hit.signature is None:
        return found
    same = (item for item in incidents if item.scan is found.scan and item.hit.signature == found.hit.signature)
    return next((item for item in same if item.has_frames and item.hit.at > found.hit.at), found)


def _find_first(incidents: Sequence[Incident]) -> Incident | None:
    """The earliest cause; else the end of a process without a cause near it; else the strongest other sign."""
    causes = [item for item in incidents if item.rank == 0]
    following = [item for item in incidents if item.rank == 1]
    end = next((item for item in following if item.hit.signature and item.hit.signature.ends), None)
    if causes:
        first = causes[0]
        # A failure long after the end of a process is what the end has caused.
        if end is not None and first.time_s > end.time_s + _EXPLAINS_S:
            return end
        # The kernel names the broken device; the program that used it reports a consequence, often before that.
        by_kernel = (item for item in causes if item.is_the_kernels and item.time_s <= first.time_s + _EXPLAINS_S)
        return next(by_kernel, first)
    rest = [item for item in incidents if item.rank == 2]
    weak = next((item for item in rest if item.hit.match is not None), None)
    # A warning before an end explains more than the end itself.
    if end and weak and weak.when < end.when and not (weak.hit.signature and weak.hit.signature.cascade):
        return weak
    return next(iter([*following, *([weak] if weak else []), *rest]), None)


def _weaken_survived(incidents: list[Incident]) -> list[Incident]:
    """The incidents. Where a known cause exists, an unknown exception in a log that continues counts as a weak sign."""
    if not any(item.rank == 0 and item.hit.match is not None for item in incidents):
        return incidents
    return [item._replace(rank=2) if item.rank == 0 and _continues_long(item) else item for item in incidents]


def _weaken_handled(incidents: list[Incident]) -> list[Incident]:
    """The incidents.

    One after which its log went on at info level is a weak sign, if a later one of the same log is a cause as well: the
    first was handled.
    """
    last_at = {
        item.scan.name: max(other.hit.at for other in incidents if _closes(other) and other.scan is item.scan)
        for item in incidents
        if item.rank == 0
    }
    return [
        item._replace(rank=2)
        if item.rank == 0 and item.hit.at < last_at[item.scan.name] and _is_handled(item, incidents)
        else item
        for item in incidents
    ]


def _closes(incident: Incident) -> bool:
    """Whether an incident can be what ended a log."""
    return incident.rank == 0 or incident.is_stop


def _is_handled(incident: Incident, incidents: Sequence[Incident]) -> bool:
    """Whether lines at info level, or a step, stand between an incident and the next cause of the same log."""
    later = [
        item for item in incidents if item.scan is incident.scan and _closes(item) and item.hit.at > incident.hit.at
    ]
    following = min(later, key=lambda item: item.hit.at).hit
    if incident.hit.signature is not None and incident.hit.signature == following.signature:
        return False
    # A process that goes on with its work has handled the failure, and the later one ended it.
    went_on = following.calm_before - incident.hit.calm_before >= CALM_LINES
    return went_on or following.done_before > incident.hit.done_before


def _ended_its_process(incident: Incident, incidents: Sequence[Incident]) -> bool:
    """Whether an incident is the traceback with which its log ends, apart from reports of the same failure."""
    scan, hit = incident.scan, incident.hit
    if not incident.has_frames or hit.weak or scan.done > hit.done_before or scan.lines - hit.at > _CLOSE_LINES:
        return False
    # A launcher repeats the failure of its child, and the other ranks lose their connection to it. Neither hides what
    # ended the process, because no step follows.
    later = [item for item in incidents if item.scan is scan and item.hit.at > hit.at and item.has_frames]
    return all(item.is_summary or _is_of_another(item, hit) or _is_same_failure(item, incident) for item in later)


def _is_of_another(incident: Incident, ended: Hit) -> bool:
    """Whether another rank lost its connection. A process ends by one traceback: before its own stands only text."""
    stream, known = incident.hit.stream, incident.hit.signature
    # Only ranks have peers in a collective, while any process may be refused a connection.
    is_peer = known is not None and known.cascade and known.cause_class == "network" and known.family != "network"
    return is_peer or (incident.rank == 1 and bool(stream) and stream != ended.stream)


def _is_same_failure(one: Incident, other: Incident) -> bool:
    if one.hit.signature is not None and one.hit.signature == other.hit.signature:
        return True
    return bool(one.chain and other.chain) and root(one.chain).text == root(other.chain).text


def _unordered(incidents: Sequence[Incident], found: Incident) -> Iterable[SignatureHit]:
    """Failures of other logs that have the time of the cause, because both times are those of the files."""
    if found.hit.stamp is not None or found.scan.first_stamp is not None or found.rank:
        return
    for item in incidents:
        if item.rank == 0 and item.scan is not found.scan and item.time_s == found.time_s:
            what = item.hit.match.fill(item.hit.match.signature.what) if item.hit.match else item.hit.text
            identifier = item.hit.match.signature.id if item.hit.match else UNKNOWN
            yield SignatureHit(identifier, item.scan.name, item.hit.at, what)


def _continues_long(incident: Incident) -> bool:
    """Whether an unknown exception is followed by much more of its log."""
    last = incident.scan.last_stamp
    if incident.hit.match is not None or incident.hit.stamp is None or last is None:
        return False
    return incident.scan.clock.seconds(last) - incident.time_s >= _GOES_ON_S


def _make_cause(incident: Incident, *, decides: bool) -> Cause:
    """`decides`: it is the traceback that ended its process, so its signature's retry counts."""
    hit, match = incident.hit, incident.hit.match
    raised = shorten(root(incident.chain)) if incident.chain else ()
    if match is not None:
        match = _find_reason(incident, match.signature) or match
        known = match.signature
        fix = known.fix_while_loading if known.fix_while_loading and _is_loading(incident.chain) else known.fix
        return Cause(
            known.id, known.cause_class, known.retry if decides else "yes",
            match.fill(known.what), known.why, match.fill(fix),
            incident.scan.name, hit.at, hit.text, raised,
        )  # fmt: skip
    log = incident.scan.name
    if not incident.chain:
        why = "it is the first error of these logs, and it matches no known signature"
        cause_class = _class_of_line(hit.text, hit.at)
        return Cause(
            UNKNOWN, cause_class, "yes", hit.text, why, f"read {log} around line {hit.at}", log, hit.at, hit.text
        )
    first = root(incident.chain)
    place = raised[1] if len(raised) > 1 else f"{log}:{first.at}"
    why = "an exception that matches no known signature ended it"
    fix = f"read {place}; the whole traceback ends at {log}:{first.at}"
    cause_class = classify_exception(first)
    return Cause(UNKNOWN, cause_class, "yes", first.text, why, fix, log, first.at, first.text, raised)


def _find_reason(incident: Incident, known: Signature) -> Match | None:
    """The match of a line shortly before a failure that is the reason for it, such as the answer 401 to a request."""
    before = (hit for hit in incident.scan.hits if incident.hit.at - _REASON_LINES <= hit.at < incident.hit.at)
    return next((hit.match for hit in before if hit.signature and hit.signature.explains == known.id), None)


def _is_loading(chain: tuple[Raised, ...]) -> bool:
    """Whether the traceback shows that a model was being loaded."""
    return any(_LOADS.search(frame.function) for raised in chain for frame in raised.frames)


def _class_of_line(text: str, at: int) -> str:
    """The class of an exception that stands on a line alone, or of the words of an error; else "unknown"."""
    name, _, message = text.partition(": ")
    return classify_exception(Raised(name, message, at, ())) if exception_alone(text) else classify_message(text)


def _following(incidents: Sequence[Incident], found: Incident) -> Iterable[SignatureHit]:
    """The known failures with the cause and after it, each signature once per log."""
    reported = {(found.hit.signature, found.scan.name)}
    for item in incidents:
        this = (item.hit.signature, item.scan.name)
        if item.hit.match is None or item is found or this in reported:
            continue
        if item.rank == 1 or (item.rank == 0 and item.when > found.when):
            reported.add(this)
            yield _signature_hit(item.scan, item.hit)
            if len(reported) > _MOST_FOLLOWING:
                return


def _notices(scan: Scan) -> Iterable[Hit]:
    """The first hit of each notice."""
    reported: set[Signature] = set()
    for hit in scan.hits:
        if hit.signature and hit.signature.notice and hit.signature not in reported:
            reported.add(hit.signature)
            yield hit


def _signature_hit(scan: Scan, hit: Hit) -> SignatureHit:
    assert hit.match is not None
    return SignatureHit(hit.match.signature.id, scan.name, hit.at, hit.match.fill(hit.match.signature.what))
