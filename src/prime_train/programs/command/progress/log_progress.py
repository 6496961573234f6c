"""Reads a trainer's output by the lines of a profile. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from prime_train.diagnose.log_prefix import LogLine, strip_prefixes, unwrap
from prime_train.programs.command.progress.bars import BarChooser, EpochCounter
from prime_train.programs.command.progress.lines import LineSplitter
from prime_train.programs.command.progress.marks import ProgressMark, parse_count, parse_number
from prime_train.registry.trainers import SlowPhase, TrainerLine

_LONGEST_TEXT = 300
_SHOWN = ("resume", "unreadable", "fresh", "start", "stop", "exit", "warn")


class LogProgress:
    """The marks of one log. `total`: the last step, where the config or another file has it."""

    def __init__(
        self, lines: Sequence[TrainerLine], phases: Sequence[SlowPhase] = (), total: int | None = None
    ) -> None:
        self._lines = tuple(lines)
        self._phases = tuple(phases)
        self._splitter = LineSplitter()
        self._bars = BarChooser(total)
        self._epochs = EpochCounter()
        self._bar_unit = next((line.unit for line in self._lines if line.total_is_last), "")

    @property
    def total(self) -> int | None:
        """The last step, where it is known."""
        return self._bars.total

    def feed(self, data: bytes) -> tuple[ProgressMark, ...]:
        return self._read(self._splitter.feed(data))

    def finish(self) -> tuple[ProgressMark, ...]:
        return self._read(self._splitter.finish())

    def _read(self, texts: list[str]) -> tuple[ProgressMark, ...]:
        return tuple(mark for text in texts for mark in self.read_line(text))

    def read_line(self, text: str) -> tuple[ProgressMark, ...]:
        """The marks of one line without colours."""
        found = find_line(text, self._lines)
        phase = next((phase for phase in self._phases if phase.pattern.search(text)), None)
        marks = [] if phase is None else [ProgressMark("phase", phase=phase.name)]
        if found is None:
            return tuple(marks)
        line, match, stream = found
        mark = make_mark(line, match, stream)
        if line.total_is_last:
            return (*marks, *self._take_bar(mark))
        if line.per_epoch:
            epoch = None if mark.epoch is None else mark.epoch - line.first_epoch
            mark = replace(mark, step=self._epochs.count(epoch, mark.step, mark.total), total=None)
        known = line.kind != "step" or mark.step is not None
        return (*marks, *self._confirm(line, mark), *([mark] if known else []))

    def _take_bar(self, mark: ProgressMark) -> tuple[ProgressMark, ...]:
        """The steps of a bar, once it is certain that it is the training's."""
        if mark.step is None or mark.total is None:
            return ()
        return self._steps(self._bars.see(mark.step, mark.total), mark)

    def _confirm(self, line: TrainerLine, mark: ProgressMark) -> tuple[ProgressMark, ...]:
        """The steps of bars before this line that it makes certain."""
        if line.kind == "start" and mark.total:
            self._bars.know(mark.total)
        elif line.kind == "loss" or (line.kind == "step" and mark.loss is not None):
            return self._steps(self._bars.confirm(), mark)
        elif line.kind == "exit":
            return self._steps(self._bars.close(), mark)
        elif line.kind == "eval":
            self._bars.note_evaluation()
        return ()

    def _steps(self, steps: Sequence[int], mark: ProgressMark) -> tuple[ProgressMark, ...]:
        seen = ProgressMark("step", total=self._bars.total, unit=self._bar_unit, stream=mark.stream, from_bar=True)
        return tuple(replace(seen, step=step) for step in steps)


def find_line(text: str, lines: Sequence[TrainerLine]) -> tuple[TrainerLine, re.Match[str], str] | None:
    """The first line of a profile that takes a text, also behind the prefixes of launchers and loggers.

    The last value is the writer that such a prefix names.
    """
    return match_line(read_prefixes(text), lines)


class PrefixedText(NamedTuple):
    """A line as it is, and without prefixes; `stream` is the writer that they name."""

    text: str
    bare: str
    stream: str


def read_prefixes(text: str) -> PrefixedText:
    """The two forms of a line in which a pattern is searched. A line of JSON is searched in the message."""
    line = next(iter(unwrap(text)), LogLine("")) if text.startswith('{"') else strip_prefixes(text)
    return PrefixedText(text, line.text, line.stream)


def match_line(text: PrefixedText, lines: Sequence[TrainerLine]) -> tuple[TrainerLine, re.Match[str], str] | None:
    """As `find_line`, for a line whose prefixes were read."""
    for form in (text.text, text.bare) if text.bare != text.text else (text.text,):
        for line in lines:
            match = line.pattern.search(form)
            if match is not None:
                return line, match, text.stream
    return None


def make_mark(line: TrainerLine, match: re.Match[str], stream: str = "") -> ProgressMark:
    """The mark of a line that a pattern took."""
    found = {name: value for name, value in match.groupdict().items() if value is not None}
    step, total = parse_count(found.get("step")), parse_count(found.get("total"))
    return ProgressMark(
        line.kind,
        None if step is None else step + line.offset,
        total,
        loss=parse_number(found.get("loss")),
        grad_norm=parse_number(found.get("grad_norm")),
        tokens=parse_number(found.get("tokens")),
        tokens_per_s=parse_number(found.get("tps")),
        epoch=parse_number(found.get("epoch")),
        took_s=parse_number(found.get("s")),
        path=found.get("path", ""),
        unit=line.unit if step is not None else "",
        stream=stream,
        text=match.string.strip()[:_LONGEST_TEXT] if line.kind in _SHOWN else "",
        from_bar="%|" in match.string,
    )
