"""Follows the curves of a run while it writes them: metrics.jsonl by step, and evaluations from events. Writes nothing.

Each look reads a bounded piece, so a long file is complete after some looks and slows no other run down.
"""

from __future__ import annotations

import math
import os
from typing import Any

from prime_train.core.outside import LINE_BYTES, open_regular
from prime_train.core.rundir import RunDir
from prime_train.events import Evaluated, LaunchAsked, Progress, Record
from prime_train.events.step_line import METRICS, read_step_line, to_number
from prime_train.views.compare.curves import Curve, StepBins

_MOST_POINTS = 1024  # of a curve; a picture has about as many columns
_PIECE_BYTES = 4 << 20


class CurveFollower:
    """The curves of one run up to now."""

    def __init__(self, run_dir: RunDir) -> None:
        self._path = run_dir.metrics
        self._within = run_dir.path
        self._begin(inode=0)
        self._reported = _create_bins()  # from events, for a trainer that writes no metrics.jsonl
        self._held_out = StepBins(1, most_bins=_MOST_POINTS)

    def _begin(self, inode: int) -> None:
        self._inode, self._offset = inode, 0
        self._steps = _create_bins()
        self.last: dict[str, float] = {}  # the times of the latest step in metrics.jsonl

    def poll(self) -> bool:
        """Read the lines since the last call, at most _PIECE_BYTES. Returns whether more was read."""
        try:
            with open_regular(self._path, self._within) as file:
                status = os.fstat(file.fileno())
                if status.st_ino != self._inode or status.st_size < self._offset:
                    self._begin(status.st_ino)
                if status.st_size == self._offset:
                    return False
                file.seek(self._offset)
                piece = file.read(_PIECE_BYTES)
        except OSError:  # it is not there yet, or may not be read: the curves stay as they are
            return False
        end = piece.rfind(b"\n") + 1
        if not end and len(piece) > LINE_BYTES:  # no line is so long: skip it
            end = len(piece)
        self._offset += end
        for line in piece[:end].splitlines():
            self._add_line(line)
        return end > 0

    def _add_line(self, line: bytes) -> None:
        found = read_step_line(line)
        if found is not None:  # `compare` counts damaged lines
            self._steps.add(found.step, math.nan, 0.0, list(found.figures))
            self.last = found.times

    def add(self, record: Record) -> None:
        """Add what an event reports."""
        match record.event:
            case LaunchAsked(resume_step=step, knows_step=True):
                self._held_out.drop_after(step)
                self._reported.drop_after(step)
            case Evaluated(step=step, loss=loss):
                self._held_out.add(step, math.nan, 0.0, (to_number(loss),))
            case Progress() as event:
                values = (to_number(getattr(event, name, None)) for name in METRICS)
                self._reported.add(event.step, math.nan, 0.0, tuple(values))

    def document(self) -> dict[str, Any]:
        """Steps and values of each curve that has a point; `low` and `high` where a point joins several steps."""
        steps = self._steps if self._steps.bins else self._reported
        curves = {name: steps.curve(place) for place, name in enumerate(METRICS)}
        curves["held_out"] = self._held_out.curve(0)
        return {name: _as_columns(curve) for name, curve in curves.items() if curve}


def _create_bins() -> StepBins:
    return StepBins(len(METRICS), most_bins=_MOST_POINTS)


def _as_columns(curve: Curve) -> dict[str, list[float]]:
    columns: dict[str, list[float]] = {
        "step": [point.step for point in curve],
        "value": [_shorten(point.value) for point in curve],
    }
    if any(point.low != point.high for point in curve):
        columns |= {"low": [_shorten(point.low) for point in curve], "high": [_shorten(point.high) for point in curve]}
    return columns


def _shorten(value: float) -> float:
    """Six significant digits: more than a picture shows."""
    return float(f"{value:.6g}")
