"""Folds the marks of one log into what is known of the run: steps, losses, saves, evaluations, the end. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from prime_train.programs.command.progress.end_line import EndLine
from prime_train.programs.command.progress.marks import ProgressMark

_LEAST_DROP = 2  # lines of several processes may change places
_REGULAR = 0.8  # of the differences are equal: the trainer prints every so many steps
_MOST_KEPT = 20
_PREFERRED = "optimizer step"


@dataclass(frozen=True, slots=True)
class StepSeries:
    """The steps of one writer. `stride`: the usual difference, None where there is none, as with progress bars.

    `gaps` and `resets` hold the step before and the step after; at most 20 of each, `gap_count` and `reset_count` all.
    """

    unit: str
    first: int
    last: int
    count: int
    total: int | None
    stride: int | None
    gap_count: int
    gaps: tuple[tuple[int, int], ...]
    reset_count: int
    resets: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class LossSeries:
    """Losses in the order of the log. `not_finite`: how many are nan or infinite."""

    count: int
    first: float
    last: float
    not_finite: int


@dataclass(frozen=True, slots=True)
class LogSummary:
    """What one log shows. An empty tuple or None: it does not show it."""

    steps: StepSeries | None = None
    losses: LossSeries | None = None
    evaluations: LossSeries | None = None
    evaluation_steps: tuple[int, ...] = ()
    saves_begun: int = 0
    saves_done: int = 0
    saved_steps: tuple[int, ...] = ()
    lines: tuple[ProgressMark, ...] = ()  # lines about resume, start, stop, end and warnings; the newest 20
    kinds: Counter[str] = field(default_factory=Counter)
    has_end_line: bool = False  # and no other training began after it


def summarise(marks: Iterable[ProgressMark]) -> LogSummary:
    """The summary of all marks of one log, in their order."""
    marks = tuple(marks)
    held_out = [mark for mark in marks if mark.kind == "eval"]
    saves = [mark for mark in marks if mark.kind in ("save_start", "save_done")]
    end_line = EndLine()
    for mark in marks:
        end_line.see(mark)
    summary = LogSummary(
        steps=_fold_steps(marks),
        losses=_fold_losses([mark for mark in marks if mark.kind in ("step", "loss")]),
        evaluations=_fold_losses(held_out),
        evaluation_steps=_steps_of(held_out),
        saves_begun=_count_saves(marks),
        saves_done=sum(mark.kind == "save_done" for mark in saves),
        saved_steps=_steps_of(saves),
        lines=tuple(mark for mark in marks if mark.text)[-_MOST_KEPT:],
    )
    return replace(summary, kinds=Counter(mark.kind for mark in marks), has_end_line=end_line.is_seen)


def _count_saves(marks: Sequence[ProgressMark]) -> int:
    """The saves that began. Several lines of one save, with no step or evaluation between them, count once."""
    begun, is_open, step = 0, False, None
    for mark in marks:
        if mark.kind == "save_start":
            is_another = None not in (step, mark.step) and mark.step != step
            begun += not is_open or is_another
            is_open, step = True, mark.step
        elif mark.kind in ("step", "eval", "save_done"):
            is_open = False
    return begun


def _steps_of(marks: Sequence[ProgressMark]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(mark.step for mark in marks if mark.step is not None))[-_MOST_KEPT:]


def _fold_losses(marks: Sequence[ProgressMark]) -> LossSeries | None:
    """The losses of all marks; without a step, those of the writer with most: each rank may print the same one."""
    streams = Counter(mark.stream for mark in marks if mark.step is None and mark.loss is not None).most_common(1)
    drawn: ProgressMark | None = None
    losses = []
    for mark in marks:
        if mark.step is None and streams and mark.stream != streams[0][0]:
            continue
        is_again = mark.from_bar and drawn is not None and (mark.step, mark.loss) == (drawn.step, drawn.loss)
        drawn = mark
        if mark.loss is not None and not is_again:
            losses.append(mark.loss)
    if not losses:
        return None
    return LossSeries(len(losses), losses[0], losses[-1], sum(not math.isfinite(loss) for loss in losses))


def _fold_steps(marks: Sequence[ProgressMark]) -> StepSeries | None:
    """The series of the writer and the unit with most marks: ranks that print the same step are not counted twice."""
    steps = [mark for mark in marks if mark.kind == "step" and mark.step is not None]
    if not steps:
        return None
    units = Counter(mark.unit for mark in steps)
    unit = _PREFERRED if _PREFERRED in units else units.most_common(1)[0][0]
    stream = Counter(mark.stream for mark in steps if mark.unit == unit).most_common(1)[0][0]
    chosen = [mark for mark in steps if mark.unit == unit and mark.stream == stream]
    printed = [mark for mark in chosen if not mark.from_bar]
    if 2 * len(printed) > len(chosen):  # a bar may be of another stream, which is ahead of the lines
        chosen = printed
    numbers = [mark.step for mark in chosen if mark.step is not None]
    totals = [mark.total for mark in marks if mark.total is not None and mark.unit in (unit, "")]
    resets, kept = [], [numbers[0]]
    for step in numbers[1:]:
        if kept[-1] - step >= _LEAST_DROP:
            resets.append((kept[-1], step))
        elif step <= kept[-1]:
            continue  # the same step once more
        kept.append(step)
    if resets and chosen[-1].total is None and any(mark.total is not None for mark in chosen):
        totals = []  # another training has begun, whose lines have no last step
    stride = None if chosen[-1].from_bar else _find_stride(kept)
    pairs = pairwise(kept)
    gaps = [(before, after) for before, after in pairs if stride is not None and after - before > stride]
    return StepSeries(
        unit,
        first=kept[0],
        last=kept[-1],
        count=len(kept),
        total=totals[-1] if totals else None,
        stride=stride,
        gap_count=len(gaps),
        gaps=tuple(gaps[:_MOST_KEPT]),
        reset_count=len(resets),
        resets=tuple(resets[:_MOST_KEPT]),
    )


def _find_stride(steps: Sequence[int]) -> int | None:
    """The difference of nearly all neighbours; None where the differences vary, or there are too few."""
    differences = Counter(after - before for before, after in pairwise(steps) if after > before)
    if differences.total() < 2:
        return None
    stride, count = differences.most_common(1)[0]
    return stride if count >= _REGULAR * differences.total() else None
