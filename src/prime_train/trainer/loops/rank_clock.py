"""Measures how long this rank gets its rows, computes and waits for the others in each step. Waits for nothing itself.

A CPU is timed by its clock. A GPU is timed by events in its stream, which are read when a later step ends: by then the
loop has read the numbers of their step. Forward and backward end where the first weight has its gradient, because
backward comes to it last; what follows in the backward is the wait for the exchange of gradients. A model in
shards exchanges weights before each block, so there the blocks are timed one by one: from the moment that the weights
of a block are there to the result of it, and in the backward from the gradient of that result to the gradient of what
went in.
"""

from __future__ import annotations

import socket
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from prime_train.core.rank_times import RankStep, RankTimesFile
from prime_train.trainer.attempt import Attempt
from prime_train.trainer.parallel import World, is_sharded, list_blocks

Moment = float | torch.cuda.Event  # seconds of the performance counter, or an event of the GPU's stream


@dataclass(slots=True)
class _Marks:
    """The moments of one step."""

    waits: list[tuple[Moment, Moment]] = field(default_factory=list)
    blocks: list[tuple[Moment, Moment]] = field(default_factory=list)  # of a model in shards
    begun: Moment | None = None  # the first exchange is over
    computed: Moment | None = None  # the first weight has its gradient of the last micro-batch
    data_s: float = 0.0
    work: int = 0


class RankClock:
    """The times of one rank, whose file also names its GPU. Only the thread of the loop may use it."""

    def __init__(self, folder: Path, rank: int, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self._file = RankTimesFile(folder, rank, socket.gethostname(), _read_uuid(device))
        self._marks = _Marks()
        self._unread: deque[tuple[int, float, _Marks]] = deque()  # steps that the GPU may still compute
        self._entered: Moment | None = None  # the block that computes

    def watch_backward(self, model: nn.Module) -> None:
        """Time forward and backward of a model that is whole."""
        first = next((weight for weight in model.parameters() if weight.requires_grad), None)
        if first is not None:
            first.register_post_accumulate_grad_hook(self._mark_computed)  # type: ignore[no-untyped-call]

    def watch_blocks(self, blocks: Iterable[nn.Module]) -> None:
        """Time the blocks of a model in shards, one after the other. Called after they were sharded."""
        for block in blocks:
            # Behind the hooks of FSDP2, which wait for the weights.
            block.register_forward_pre_hook(self._enter_forward)
            block.register_forward_hook(self._leave_forward)

    @contextmanager
    def step(self, number: int) -> Iterator[None]:
        """One whole step."""
        self._marks, began_s = _Marks(), time.perf_counter()
        yield
        self._unread.append((number, time.perf_counter() - began_s, self._marks))
        self._marks = _Marks()  # of what follows, which is no step
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

    def _enter_forward(self, _block: nn.Module, given: tuple[Any, ...]) -> None:
        if torch.is_grad_enabled():  # an evaluation is not timed
            for tensor in _list_differentiable(given):
                tensor.register_hook(self._leave)  # type: ignore[no-untyped-call]
            self._enter()

    def _leave_forward(self, _block: nn.Module, _given: tuple[Any, ...], result: Any) -> None:
        if torch.is_grad_enabled():
            self._leave()
            for tensor in _list_differentiable((result,)):
                tensor.register_hook(self._enter)  # type: ignore[no-untyped-call]

    def _enter(self, _gradient: Tensor | None = None) -> None:
        self._entered = self._mark()

    def _leave(self, _gradient: Tensor | None = None) -> None:
        if self._entered is not None:
            self._marks.blocks.append((self._entered, self._mark()))
            self._entered = None

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
            compute_s = sum(_seconds(*block) for block in marks.blocks)
            if marks.begun is not None and marks.computed is not None:
                compute_s = _seconds(marks.begun, marks.computed)
            if not compute_s:  # nothing to learn from in this step
                continue
            wait_s = sum(_seconds(*wait) for wait in marks.waits)
            self._file.add(RankStep(step, step_s, marks.data_s, compute_s, wait_s, float(marks.work)))


def start_clock(attempt: Attempt, model: nn.Module, device: torch.device, world: World) -> RankClock | None:
    """The clock of this rank; None where there is no other rank."""
    replicas = 1 if attempt.replica is None else attempt.replica.count
    if world.size * replicas == 1:
        return None
    clock = RankClock(attempt.run_dir.rank_times(attempt.number), attempt.number_rank(world.size), device)
    if not is_sharded(model):
        clock.watch_backward(model)
    elif not attempt.run.model.compile:  # a hook would cut the graph of a compiled block
        clock.watch_blocks(list_blocks(model))
    return clock


def _list_differentiable(values: tuple[Any, ...]) -> list[Tensor]:
    """The first tensor with a gradient, as a list. A block has one stream, which is the first."""
    return [value for value in values if isinstance(value, Tensor) and value.requires_grad][:1]


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
