"""Orders a stop of the work, by a person, a signal or a scheduler, and the failures that follow from it. Pure.

A process that gets a signal to end breaks its connections: readers get half a message, loaders lose their workers,
other ranks time out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from prime_train.diagnose.incidents import CALM_LINES, Incident
from prime_train.diagnose.tracebacks import root

_FOLLOWS_LINES = 200  # the failures that follow from a stop are written so soon after it
_JOB = re.compile(r"\b(?:JOB|STEP) (\d{1,12})\b")
_STOPPED = re.compile(r"(?:KeyboardInterrupt|SignalException|SystemExit)$")
# A stop does not cause these.
_OWN_CLASSES = frozenset({"oom", "hardware", "disk", "auth", "env"})


def weaken_after_stop(incidents: Sequence[Incident]) -> list[Incident]:
    """The incidents. A failure after a stop of the same log counts as a consequence of it."""
    stops = [item for item in incidents if item.is_stop]
    found: list[Incident] = []
    for item in incidents:
        follows = item.rank == 0 and any(_follows(item, stop) for stop in stops)
        # A stop that is only mentioned is a weak sign, but not where failures follow from it.
        explains = (
            item.rank == 2 and item.is_stop and any(other.rank == 0 and _follows(other, item) for other in incidents)
        )
        found.append(item._replace(rank=1) if follows or explains else item)
    return found


def _follows(incident: Incident, stop: Incident) -> bool:
    """Whether a failure stands so shortly after a stop, without work in between, that it follows from it."""
    hit, before = incident.hit, stop.hit
    if incident.scan is not stop.scan or not before.at < hit.at <= before.at + _FOLLOWS_LINES:
        return False
    known = hit.signature
    if known is not None and (known.cause_class in _OWN_CLASSES or known.stop):
        return False  # a later stop with its reason explains more than the signal
    if incident.chain and _STOPPED.search(root(incident.chain).name):
        return False
    return hit.done_before == before.done_before and hit.calm_before - before.calm_before < CALM_LINES


def keep_last_job(incidents: Sequence[Incident]) -> list[Incident]:
    """The incidents of the last job of a scheduler in one log, where the stops name several jobs."""
    jobs = [(item.hit, found[1]) for item in incidents if item.is_stop and (found := _JOB.search(item.hit.text))]
    earlier = [hit.at for hit, job in jobs if job != jobs[-1][1]]
    if not earlier:
        return list(incidents)
    stopped = jobs[-1][0]
    # The file holds several runs, so a line at info level after a failure is enough to show that another one began.
    return [
        item
        for item in incidents
        if item.hit.at > max(earlier) and (item.hit.at >= stopped.at or item.hit.calm_before == stopped.calm_before)
    ]
