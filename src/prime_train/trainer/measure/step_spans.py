"""The spans of one rank's training loop, by the clock of its GPU where it has one. Costs nothing without a profile.

Source of the timing on a GPU: events in its stream. The loop never waits for the GPU because of a span, so the events
of a step are read when the loop has read its numbers, which the GPU copies after all of its work.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from prime_train.core.spans import Span, Spans
from prime_train.trainer.measure.step_traces import NO_TRACES, StepTraces

Mark = float | torch.cuda.Event  # seconds of the monotonic clock, or an event of the GPU's stream


@dataclass(frozen=True, slots=True)
class _Marked:
    component: str
    start: Mark
    end: Mark
    count: int
    step: int
    cpu_s: float | None = None  # of this process; on a GPU it says nothing about the work


def lane_of(rank: int) -> str:
    return f"trainer-rank{rank}"


class StepSpans:
    """Writes the spans of the training loop. Only one thread may use it."""

    def __init__(self, rank: int, device: torch.device, traces: StepTraces = NO_TRACES) -> None:
        self._traces = traces
        self._spans = Spans(lane_of(rank))
        self._on_gpu = device.type == "cuda"
        self._marked: list[_Marked] = []
        self._step = 0
        self._buckets: list[tuple[Mark, int]] = []  # when each was ready to be exchanged, and its bytes
        if self.on and self._on_gpu:
            torch.cuda.synchronize(device)
            self._origin = torch.cuda.current_stream(device).record_event(_event())
            self._origin_s = time.monotonic()
            self._gpu_until_s = 0.0

    @property
    def on(self) -> bool:
        return self._spans.on

    @contextmanager
    def step(self, step: int) -> Iterator[None]:
        """One whole step. Spans inside it get its number."""
        self._step = step
        start_s = time.monotonic()
        with self._traces.step(step):
            yield
        if not self.on:
            return
        self._spans.add(Span("step", "", start_s, time.monotonic(), step))
        self._write(before=step)

    @contextmanager
    def span(self, component: str, count: int = 0) -> Iterator[None]:
        """Work of the device: forward, backward, optimizer, communication."""
        if not self.on:
            yield
            return
        start, cpu_s = self._mark(), time.process_time()
        try:
            yield
        finally:
            self._marked.append(_Marked(component, start, self._mark(), count, self._step, self._computed_s(cpu_s)))

    @contextmanager
    def host_span(self, component: str) -> Iterator[None]:
        """Work or a wait of this process, for example for data."""
        if not self.on:
            yield
            return
        start_s = time.monotonic()
        try:
            yield
        finally:
            self._marked.append(_Marked(component, start_s, time.monotonic(), 0, self._step))

    def memory(self) -> None:
        """Write the memory in use: of the GPU's tensors, or of this process."""
        if self.on:
            size_bytes = torch.cuda.memory_allocated() if self._on_gpu else _resident_bytes()
            now_s = time.monotonic()
            self._spans.add(Span("memory", "", now_s, now_s, self._step, size_bytes))

    def watch_all_reduce(self, model: nn.Module) -> None:
        """Measure DDP's all-reduce of gradients. A model without DDP is left as it is."""
        if self.on and isinstance(model, DistributedDataParallel):
            # A lambda, because torch 2.13 refuses a hook whose annotations are strings.
            model.register_comm_hook(None, lambda _state, bucket: self._all_reduce(bucket))

    def backward(self, loss: Tensor) -> None:
        """`loss.backward()`. The part after the last bucket of gradients is ready is communication."""
        if not self.on:
            loss.backward()  # type: ignore[no-untyped-call]
            return
        self._buckets = []
        start, cpu_s = self._mark(), time.process_time()
        loss.backward()  # type: ignore[no-untyped-call]
        end, computed_s = self._mark(), self._computed_s(cpu_s)
        computed = self._buckets[-1][0] if self._buckets else end
        # With buckets the process also works for the exchange, so its CPU time is not that of the backward alone.
        own_s = None if self._buckets else computed_s
        self._marked.append(_Marked("backward", start, computed, 0, self._step, own_s))
        if self._buckets:
            reduced_bytes = sum(size_bytes for _, size_bytes in self._buckets)
            self._marked.append(_Marked("communication", computed, end, reduced_bytes, self._step))

    def close(self) -> None:
        if self.on:
            if self._on_gpu:
                torch.cuda.synchronize()
            self._write(before=self._step + 1)
            self._spans.flush()

    def probe(self, times: int, start_s: float, end_s: float) -> None:
        """Write the time of a forward and backward with `times` the micro-batch, outside of all steps."""
        self._spans.add(Span("probe", "", start_s, end_s, 0, times))

    def _all_reduce(self, bucket: Any) -> torch.futures.Future[Tensor]:
        """The mean over the ranks, as DDP computes it without a hook (torch 2.13, default_hooks.allreduce_hook)."""
        gradient = bucket.buffer()
        self._buckets.append((self._mark(), gradient.nbytes))
        gradient.div_(dist.get_world_size())
        work: Any = dist.all_reduce(gradient, async_op=True)
        future: torch.futures.Future[Tensor] = work.get_future().then(lambda done: done.value()[0])
        return future

    def _computed_s(self, since_s: float) -> float | None:
        """CPU seconds since then; None where the work is that of a GPU."""
        return None if self._on_gpu else time.process_time() - since_s

    def _mark(self) -> Mark:
        if not self._on_gpu:
            return time.monotonic()
        event = _event()
        event.record()
        return event

    def _write(self, before: int) -> None:
        """Write the spans of earlier steps, which the GPU has completed. On a CPU, all spans."""
        ready, self._marked = self._marked, []
        if self._on_gpu:
            self._marked = [one for one in ready if one.step >= before]
            ready = [one for one in ready if one.step < before]
        for one in ready:
            start_s, end_s = self._seconds(one.start), self._seconds(one.end)
            if self._on_gpu:
                # The loop is ahead of its GPU. A wait of the loop that ended while the GPU worked cost no time.
                is_wait = isinstance(one.start, float)
                start_s = max(start_s, self._gpu_until_s) if is_wait else start_s
                self._gpu_until_s = self._gpu_until_s if is_wait else max(self._gpu_until_s, end_s)
            if end_s > start_s:
                self._spans.add(Span(one.component, "", start_s, end_s, one.step, one.count, one.cpu_s))

    def _seconds(self, mark: Mark) -> float:
        if isinstance(mark, float):
            return mark
        return self._origin_s + float(self._origin.elapsed_time(mark)) / 1000


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def _resident_bytes() -> int:
    """Memory of this process, without swap. Source: proc(5), statm."""
    return int(os.pread(_open_statm(), 128, 0).split()[1]) * resource.getpagesize()


@cache
def _open_statm() -> int:
    return os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
