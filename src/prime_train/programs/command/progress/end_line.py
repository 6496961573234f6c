"""Whether a trainer printed its last line, and no other training began after it. Pure."""

from __future__ import annotations

from prime_train.programs.command.progress.marks import ProgressMark


class EndLine:
    """Takes the marks of one log in order.

    A search for the learning rate is a training of its own, and its last line is not that of the run. So the line no
    longer counts when a start follows, or a step beyond the last one, or one before half of it. What lies between is
    drawn or printed once more: a bar at its end, the last steps of another rank.
    """

    def __init__(self) -> None:
        self.is_seen = False
        self._step = 0  # the last one before the line

    def see(self, mark: ProgressMark) -> None:
        step = mark.step if mark.kind == "step" else None
        if mark.kind == "exit":
            self.is_seen = True
        elif mark.kind == "start":
            self.is_seen, self._step = False, 0
        elif self.is_seen and step is not None:
            self.is_seen = self._step // 2 <= step <= self._step
        if not self.is_seen and step is not None:
            self._step = step
