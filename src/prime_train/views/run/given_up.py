"""Measures the training that a return to an earlier checkpoint gives up. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from prime_train.events import LaunchAsked, Progress, Record

_Stretch = tuple[int, int, float]  # the steps at its ends, and the seconds between them


def measure_given_up(records: Iterable[Record], step: int) -> tuple[int, float]:
    """Steps after `step`, and the seconds between the first and the last of them; pauses and restarts do not count."""
    stretches: list[_Stretch] = []
    reached, last_s = 0, None
    for record in records:
        match record.event:
            case LaunchAsked(resume_step=resume_step):
                # What came after that step is given up already, by a failure or another return.
                stretches = [_cut(one, resume_step) for one in stretches if one[0] < resume_step]
                reached, last_s = resume_step, None
            case Progress(step=made) if made > reached:
                if last_s is not None:
                    stretches.append((reached, made, max(0.0, record.time_s - last_s)))
                reached, last_s = made, record.time_s
    seconds = sum(took_s - _cut((begin, end, took_s), step)[2] for begin, end, took_s in stretches if end > step)
    return max(0, reached - step), seconds


def _cut(stretch: _Stretch, step: int) -> _Stretch:
    """The part of a stretch up to `step`, which may lie before it."""
    begin, end, took_s = stretch
    kept = min(end, max(begin, step))
    return begin, kept, took_s * (kept - begin) / (end - begin)
