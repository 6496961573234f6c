"""Decides which progress bar counts the steps of a training, and counts bars of epochs. Pure.

The bars of a training and of an evaluation look alike. Only the total tells them apart, and a log may not say it. So a
bar counts where its total is known, or once the log shows that it is the bar of the training: another bar runs inside
it, or it goes on after a loss.
"""

from __future__ import annotations

from collections import deque

from prime_train.programs.command.progress.marks import parse_count

_MOST_HELD = 4096


class BarChooser:
    """Takes the bars of one log in order. `total`: the last step, where it is known from outside."""

    def __init__(self, total: int | None = None) -> None:
        self._is_given = total is not None
        self.total = total
        self._last = 0
        self._doubted = False  # the count went back: a restart, or another bar with the same total
        self._candidate: int | None = None
        self._held: deque[int] = deque(maxlen=_MOST_HELD)
        self._loss_at: int | None = None  # the step of the candidate when a loss came
        self._is_over = False  # the summary of a training was seen
        self._others = False  # more than one total was seen

    def know(self, total: int) -> None:
        """The log itself says the last step."""
        if not self._is_given:
            self.total, self._last, self._candidate, self._doubted = total, 0, None, False

    def see(self, step: int, total: int) -> tuple[int, ...]:
        """The steps that this bar makes certain."""
        if step > total or not step:
            return ()
        if total == self.total:
            return self._count(step)
        if self._is_given or (self.total is not None and not self._is_over):
            return ()
        return self._weigh(step, total)

    def confirm(self) -> tuple[int, ...]:
        """The steps that become certain by a loss: only a training prints it."""
        self._doubted = False
        if self._candidate is None or not self._held:
            return ()
        if not self._others and not self._is_over:
            return self._choose()
        self._loss_at = self._held[-1]
        return ()

    def close(self) -> tuple[int, ...]:
        """The summary of a training was printed."""
        steps = () if self.total is not None or self._others or not self._held else self._choose()
        if not self._is_given:
            self._is_over, self._candidate = True, None
        return steps

    def _count(self, step: int) -> tuple[int, ...]:
        if step < self._last:
            self._doubted = True
        if self._doubted or step == self._last:
            return ()
        self._last = step
        return (step,)

    def _weigh(self, step: int, total: int) -> tuple[int, ...]:
        """Hold the steps of a candidate until it is certain that it is the training's bar."""
        if self._candidate is None:
            self._start(total)
        elif total != self._candidate:
            self._others = True
            if self._held and self._held[-1] < self._candidate and not self._is_over:
                return self._choose()  # this bar runs inside the one that is not full
            self._start(total)
        self._held.append(step)
        if self._loss_at is not None and self._loss_at < step < total:
            return self._choose()
        return ()

    def _start(self, total: int) -> None:
        self._candidate, self._loss_at = total, None
        self._held.clear()

    def _choose(self) -> tuple[int, ...]:
        self.total, self._is_over, self._doubted, self._last = self._candidate, False, False, 0
        steps = tuple(step for held in self._held for step in self._count(held))
        self._start(0)
        self._candidate = None
        return steps


class EpochCounter:
    """Counts over epochs what a bar counts in each one. The last epoch may be shorter than the others."""

    def __init__(self) -> None:
        self._epoch: int | None = None
        self._total = 0
        self._before = 0  # counted in the epochs before this one

    def count(self, epoch: float | None, step: int | None, total: int | None) -> int | None:
        """The count since the first epoch; None where it is not known. `epoch` counts from 0.

        A bar at 0 counts nothing, because it is drawn once more at the end of its epoch.
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
