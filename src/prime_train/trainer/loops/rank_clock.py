"""Measures how long this rank gets its rows, computes and waits for the others in each step. Waits for nothing itself.

A CPU is timed by its clock. A GPU is timed by events in its stream, which are read when a later step ends: by then the
loop has read the numbers of their step. Forward and backward end where the first weight has its gradient, because
backward comes to it last; what follows in the backward is the wait for the exchange of gradients.
"""

from __future__ import annotations

import socket
import time
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import nn

from prime_train.core.rank_times import RankStep, RankTimesFile

Moment = float | torch.cuda.Event  # seconds of the performance counter, or an event of the GPU's stream


@dataclass(slots=True)
class _Marks:
    """The moments of one step."""

    waits: list[tuple[Moment, Moment]] = field(default_factory=list)
    begun: Moment | None = None  # the first exchange is over
    computed: Moment | None = None  # the first weight has its gradient of the last micro-batch
    data_s: float = 0.0
    work: int = 0


class RankClock:
    """The times of one rank. `model`: the one whose backward is timed. Only the thread of the loop may use it."""

    def __init__(self, folder: Path, rank: int, device: torch.device, model: nn.Module) -> None:
        self._on_gpu = device.type == "cuda"
        self._file = RankTimesFile(folder, rank, socket.gethostname(), _read_uuid(device))
        self._marks = _Marks()
        self._unread: deque[tuple[int, float, _Marks]] = deque()  # steps that the GPU may still compute
        first = next((weight for weight in model.parameters() if weight.requires_grad), None)
        if first is not None:
            first.register_post_accumulate_grad_hook(self._mark_computed)  # type: ignore[no-untyped-call]

    @contextmanager
    def step(self, number: int) -> Iterator[None]:
        """One whole step."""
        self._marks, began_s = _Marks(), time.perf_counter()
        yield
        self._unread.append((number, time.perf_counter() - began_s, self._marks))
        self._write()

    @contextmanager
    def exchange(self, inner: AbstractContextManager[None]) -> Iterator[None]:
        """An exchange with the other ranks, which is a wait for the slowest one."""
        start = self._mark()
        with inner:
            yield
        self._end_wait(start)
        if self._marks.begun is None:
            self._marks.begun = self._marks.waits[-1][1]

    @contextmanager
    def data(self, inner: AbstractContextManager[None]) -> Iterator[None]:
        """A wait for rows."""
        began_s = time.perf_counter()
        with inner:
            yield
        self._marks.data_s += time.perf_counter() - began_s

    def add_work(self, positions: int) -> None:
        self._marks.work += positions

    def end_backward(self) -> None:
        """A backward has returned. On a CPU its exchange is complete; a GPU's stream waits for it here."""
        if self._marks.computed is not None:
            self._end_wait(self._marks.computed)

    def _end_wait(self, start: Moment) -> None:
        self._marks.waits.append((start, self._mark()))

    def _mark_computed(self, _weight: torch.Tensor) -> None:
        self._marks.computed = self._mark()

    def _mark(self) -> Moment:
        if not self._on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def _write(self) -> None:
        """Write the steps that are computed; on a GPU that is not the newest one."""
        while self._unread and _is_reached(self._unread[0][2]):
            step, step_s, marks = self._unread.popleft()
            if marks.begun is None or marks.computed is None:  # nothing to learn from in this step
                continue
            compute_s = _seconds(marks.begun, marks.computed)
            wait_s = sum(_seconds(*wait) for wait in marks.waits)
            self._file.add(RankStep(step, step_s, marks.data_s, compute_s, wait_s, float(marks.work)))


def _is_reached(marks: _Marks) -> bool:
    last = marks.waits[-1][1] if marks.waits else 0.0
    return isinstance(last, float) or bool(last.query())  # type: ignore[no-untyped-call]


def _seconds(start: Moment, end: Moment) -> float:
    if isinstance(start, float) or isinstance(end, float):
        return max(0.0, end - start) if isinstance(start, float) and isinstance(end, float) else 0.0
    return max(0.0, float(start.elapsed_time(end)) / 1000)


def _read_uuid(device: torch.device) -> str:
    """As the driver writes it: GPU-1f6a4c2e-...; "" where torch does not know it, and on a CPU."""
    if device.type != "cuda":
        return ""
    found = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    return f"GPU-{found}" if found is not None else ""
