"""The log of an attempt: the output of its roles and its events, each line with the name of its source. Writes nothing.

A program that reports its progress as events prints little, so its steps and checkpoints are shown from its events.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from prime_train.core.rundir import RunDir
from prime_train.core.units import format_count
from prime_train.events import AttemptEnded, Follower, Progress, Record, RunOpened
from prime_train.programs import recorded
from prime_train.spec import ENDLESS_STEPS
from prime_train.views.diagnosis import attempt_document
from prime_train.views.run.console import ProgressPace, notices
from prime_train.views.run.logs import Printable, Tail

_LAST_BYTES = 1 << 18  # of each file of events, where only the last lines are wanted
EVENTS = "run"  # the source of lines that are made from events


class EventTail:
    """The events of an attempt as lines, with the time of day."""

    def __init__(self, run_dir: RunDir, attempt: int, max_steps: int) -> None:
        self._run_dir, self._attempt, self._max_steps = run_dir, attempt, max_steps
        self._follower = Follower(run_dir.events)
        self._last_lines = 0
        self._pace = ProgressPace()

    def skip_to_last(self, lines: int) -> None:
        """Show only the last `lines` lines; all for 0."""
        self._last_lines = lines
        if lines:
            self._follower = Follower.near_end(self._run_dir.events, _LAST_BYTES)

    def more(self) -> Iterator[bytes]:
        """The new lines."""
        lines = [line for record in self._follower.poll() for line in self._describe(record)]
        yield from (f"{line}\n".encode(errors="replace") for line in lines[-self._last_lines :])
        self._last_lines = 0

    def _describe(self, record: Record) -> Iterator[str]:
        if getattr(record.event, "attempt", self._attempt) != self._attempt:
            return
        clock = time.strftime("%H:%M:%S", time.localtime(record.time_s))
        if isinstance(record.event, RunOpened):
            self._max_steps = record.event.max_steps
        if isinstance(record.event, Progress):
            self._max_steps = record.event.total or self._max_steps
            if self._pace.is_due(record.time_s, record.event.step, self._max_steps):
                yield f"{clock}  {_describe_step(record.event, self._max_steps)}"
            return
        yield from (f"{clock}  {line}" for line in notices(record))


def _describe_step(event: Progress, max_steps: int) -> str:
    reached = f"step {event.step:,}" + ("" if max_steps >= ENDLESS_STEPS else f" of {max_steps:,}")
    reward = "" if event.reward is None else f", reward {event.reward:.3f}"
    loss = "" if event.loss is None else f", loss {event.loss:.4f}"
    speed = "" if event.tokens_per_s is None else f", {format_count(round(event.tokens_per_s))} {event.unit}/s"
    return f"{reached}{reward}{loss}{speed}"


class AttemptLog:
    """All sources of one attempt."""

    def __init__(self, run_dir: RunDir, attempt: int, hidden: Iterable[str], *, roles: tuple[str, ...] = ()) -> None:
        """`roles`: only the output of these, without events."""
        program, run = recorded(run_dir, strict=False)
        shown = roles or tuple(role.name for role in program.roles(run)) or ("trainer",)
        self._sources: dict[str, Tail | EventTail] = {role: Tail(run_dir.log(attempt, role)) for role in shown}
        if not roles:
            self._sources[EVENTS] = EventTail(run_dir, attempt, run.run.max_steps)
        self._printables = {name: Printable(hidden) for name in self._sources}
        self._width = max(map(len, self._sources)) if len(self._sources) > 1 else 0

    def skip_to_last(self, lines: int) -> None:
        """Start at the last `lines` lines of each source; at the first for 0."""
        for source in self._sources.values():
            source.skip_to_last(lines)

    def more(self, *, is_all: bool) -> Iterator[str]:
        """The new text of each source. `is_all`: nothing follows, so an incomplete last line is included."""
        for name in self._sources:
            for text in self._read(name, is_all=is_all):
                yield from self._mark(name, text)

    def read_all(self) -> dict[str, str]:
        """The rest of each source, by the name of the source."""
        return {name: "".join(self._read(name, is_all=True)) for name in self._sources}

    def _read(self, name: str, *, is_all: bool) -> Iterator[str]:
        printable = self._printables[name]
        for chunk in self._sources[name].more():
            yield printable.feed(chunk)
        if is_all:
            yield printable.flush()

    def _mark(self, name: str, text: str) -> Iterator[str]:
        if not text or not self._width:
            yield text
            return
        lines = text.removesuffix("\n").split("\n")
        yield "".join(f"{name:<{self._width}} | {line}\n" for line in lines)


def log_document(
    run: str, texts: Mapping[str, str], attempt: int | None = None, before: AttemptEnded | None = None
) -> dict[str, Any]:
    """The document of `logs --json`.

    `texts`: the text of each source. `attempt`: None for the output of a job that has no attempt here. `before`: the
    end of the attempt before, if it failed.
    """
    return {
        "version": 1,
        "run": run,
        "attempt": attempt,
        "failed_before": None if before is None else attempt_document(before),
        "sources": [
            {"source": name, "lines": text.removesuffix("\n").split("\n") if text else []}
            for name, text in texts.items()
        ],
    }
