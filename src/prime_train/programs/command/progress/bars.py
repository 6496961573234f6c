"""Decides which progress bar counts the steps of a training, and counts bars of epochs. Pure.

The bars of a training, of an evaluation and of any loop look alike. Only the total differs, and a log may not
state it. So a bar counts where the total is known, or once the log shows that it is the bar of the training: it goes on
after a loss, or after another bar once an evaluation was printed.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from prime_train.programs.command.progress.marks import parse_count

_MOST_HELD = 4096
_MOST_BARS = 64


@dataclass(slots=True)
class _Bar:
    """One total. `held`: the steps that count once it is certain. `loss_at`: the step when a loss came."""

    last: int = 0
    held: deque[int] = field(default_factory=lambda: deque(maxlen=_MOST_HELD))
    loss_at: int | None = None
    was_interrupted: bool = False  # another bar was drawn since


class BarChooser:
    """Takes the bars of one log in order. `total`: the last step, where it is known from outside."""

    def __init__(self, total: int | None = None) -> None:
        self._is_given = total is not None
        self.total = total
        self._last = self._drawn = 0  # the step that counted last; the one that was drawn last
        self._doubted = False  # the count went back: a restart, or another bar with the same total
        self._bars: dict[int, _Bar] = {}  # in the order in which they were drawn last
        self._has_evidence = False  # a loss or an evaluation was printed, so it trains
        self._is_over = False  # the summary of a training was seen

    def know(self, total: int) -> None:
        """The log itself states the last step."""
        if not self._is_given:
            self.total, self._last, self._doubted, self._is_over = total, 0, False, False
            self._bars.clear()

    def see(self, step: int, total: int) -> tuple[int, ...]:
        """The steps that this bar makes certain."""
        if step > total or not total:
            return ()
        if total == self.total:
            return self._count(step)
        if self._is_given or (self.total is not None and not self._is_over):
            return ()
        return self._weigh(step, total)

    def note_evaluation(self) -> None:
        """The result of an evaluation was printed."""
        self._has_evidence = True

    def confirm(self) -> tuple[int, ...]:
        """The steps that become certain by a loss: only a training prints it."""
        if self._doubted:
            self._last, self._doubted = self._drawn, False
        self._has_evidence = True
        if not self._bars:
            return ()
        total, bar = next(reversed(self._bars.items()))
        if len(self._bars) == 1 and not self._is_over and bar.held:
            return self._choose(total)
        bar.loss_at = bar.last
        return ()

    def close(self) -> tuple[int, ...]:
        """The summary of a training was printed."""
        steps: tuple[int, ...] = ()
        if self.total is None and len(self._bars) == 1:
            steps = self._choose(next(iter(self._bars)))
        self._bars.clear()
        self._is_over = not self._is_given
        return steps

    def _count(self, step: int) -> tuple[int, ...]:
        self._drawn = step
        if step < self._last:
            self._doubted = True
        if self._doubted or step == self._last:
            return ()
        self._last = step
        return (step,)

    def _weigh(self, step: int, total: int) -> tuple[int, ...]:
        """Hold the steps of each bar until it is certain that one is the training's."""
        bar = self._bars.pop(total, None) or _Bar()
        for other in self._bars.values():
            other.was_interrupted = True
        self._bars[total] = bar
        if len(self._bars) > _MOST_BARS:
            del self._bars[next(iter(self._bars))]
        goes_on = 0 < bar.last <= step < total
        is_outer = goes_on and bar.was_interrupted and self._has_evidence and not self._is_over
        learns = goes_on and bar.loss_at is not None and bar.loss_at < step
        if step < bar.last:
            bar.held.clear()
            bar.loss_at = None
        bar.last, bar.was_interrupted = step, False
        if step:
            bar.held.append(step)
        return self._choose(total) if is_outer or learns else ()

    def _choose(self, total: int) -> tuple[int, ...]:
        held = self._bars[total].held
        self.total, self._is_over, self._doubted, self._last = total, False, False, 0
        self._bars.clear()
        return tuple(step for one in held for step in self._count(one))


class EpochCounter:
    """Counts over epochs what a bar counts in each one. The last epoch may be shorter than the others."""

    def __init__(self) -> None:
        self._epoch: int | None = None
        self._total = 0
        self._before = 0  # counted in the epochs before this one

    def count(self, epoch: float | None, step: int | None, total: int | None) -> int | None:
        """The count since the first epoch; None where it is not known. `epoch` counts from 0.

        A bar at 0 counts nothing, because it is drawn once more at the end of an epoch.
        """
        number = parse_count(epoch)
        if number is None or not step or total is None or step > total:
            return None
        if self._epoch is None or number < self._epoch:
            self._before = number * total  # the epochs before were not seen, or it started again
        else:
            self._before += (number - self._epoch) * self._total
        self._epoch, self._total = number, total
        return parse_count(self._before + step)
