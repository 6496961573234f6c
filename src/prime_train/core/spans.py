"""What a process did when: spans of a run that is profiled, one JSON line each. Standard library only.

A component is one name of COMPONENTS. Spans of one lane do not overlap, unless the lane is a rollout's or a request's.
"""

from __future__ import annotations

import atexit
import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from prime_train.core import outside
from prime_train.core.outside import parse_json

COMPONENTS = (
    "data",  # the wait for a batch, or its preparation
    "tool",  # a tool call in an environment
    "environment",  # an environment's other answers, and its rewards
    "queue",  # a rollout or a request that waits for its turn
    "prefill",
    "decode",
    "weights",  # weights to the engine
    "forward",
    "backward",
    "optimizer",
    "communication",  # a collective, or the wait for other ranks in it
    "checkpoint",
    "evaluate",
    "rollouts",  # the trainer waits for rollouts
    "step",  # the whole step
    "memory",  # a moment: `count` = bytes of memory in use
    "probe",  # forward and backward beside the run, with `count` times its micro-batch
)
ENV = "PRIME_TRAIN_SPANS"  # the file; without it nothing is written
_MOST_PENDING = 4096  # so that few steps, if any, wait for the file
TRACE_ENV = "PRIME_TRAIN_TRACE"  # "STEP:FILE" of the step that torch.profiler traces into a file


@dataclass(frozen=True, slots=True)
class Span:
    """Times are of the monotonic clock of the machine, which its processes share."""

    component: str
    lane: str  # "trainer-rank0", "rollout-17", "request-123"
    start_s: float
    end_s: float
    step: int = 0  # 0 = not known
    count: int = 0  # tokens, bytes or calls, by the component
    cpu_s: float | None = None  # that all threads of the process computed in it; None = not measured


class Spans:
    """Writes spans to the file that `ENV` names, from any thread. Without it nothing is measured."""

    def __init__(self, lane: str, path: str | None = None) -> None:
        self._lane = lane
        self._path = path if path is not None else os.environ.get(ENV, "")
        self._lock = threading.Lock()
        self._pending: list[Span] = []
        if self._path:
            atexit.register(self.flush)

    @property
    def on(self) -> bool:
        return bool(self._path)

    @contextmanager
    def span(self, component: str, *, lane: str = "", step: int = 0, count: int = 0) -> Iterator[None]:
        if not self._path:
            yield
            return
        start_s, cpu_s = time.monotonic(), time.process_time()
        try:
            yield
        finally:
            end_s, cpu_s = time.monotonic(), time.process_time() - cpu_s
            self.add(Span(component, lane or self._lane, start_s, end_s, step, count, cpu_s))

    def add(self, span: Span) -> None:
        if not self._path:
            return
        with self._lock:
            self._pending.append(span)
            full = len(self._pending) >= _MOST_PENDING
        if full:
            self.flush()

    def flush(self) -> None:
        """Append the pending spans to the file, in one write."""
        if not self._path:
            return
        with self._lock:
            spans, self._pending = self._pending, []
        if spans:
            text = "".join(f"{self._line(span)}\n" for span in spans)
            with open(self._path, "a", encoding="utf-8") as file:
                file.write(text)

    def _line(self, span: Span) -> str:
        times = (round(span.start_s, 6), round(span.end_s, 6))
        cpu = [] if span.cpu_s is None else [round(span.cpu_s, 6)]
        return json.dumps([span.component, span.lane or self._lane, *times, span.step, span.count, *cpu])


def read_spans(path: Path) -> Iterator[Span]:
    """The spans of a file. A line that is not a span is left out."""
    for line in outside.read_lines(path):
        try:
            component, lane, start_s, end_s, step, count, *cpu = parse_json(line)
            cpu_s = float(cpu[0]) if cpu else None
            span = Span(str(component), str(lane), float(start_s), float(end_s), int(step), int(count), cpu_s)
        except (ValueError, TypeError):
            continue
        if span.component in COMPONENTS and span.end_s >= span.start_s:
            yield span
