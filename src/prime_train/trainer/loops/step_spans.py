"""The spans and traces of one rank's training loop. Costs nothing without a profile.

A span is timed by the clock of the GPU where there is one. A trace is one step of torch.profiler, with the history of
CUDA memory if it is asked for: `[profile]` names steps, PRIME_TRAIN_TRACE one of a `prime-train profile`.
Source of the timing on a GPU: events in its stream. The loop never waits for the GPU because of a span, so the events
of a step are read when the loop has read its numbers, which the GPU copies after all of its work.
"""

from __future__ import annotations

import gzip
import os
import resource
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from prime_train.core.spans import TRACE_ENV, Span, Spans
from prime_train.spec import RunSpec
from prime_train.trainer.loops.rank_clock import RankClock

_MEMORY_EVENTS = 200_000  # of one step, several kB each: 24 blocks make about 3,000 in a micro-batch


@dataclass(frozen=True, slots=True)
class StepTraces:
    """The steps to trace, with the file of each trace. `memory`: the steps whose CUDA memory is recorded, likewise."""

    steps: dict[int, Path]
    memory: dict[int, Path]

    @contextmanager
    def step(self, step: int) -> Iterator[None]:
        """Trace the block if it is a step to trace. A disk that takes no trace ends no training."""
        if step not in self.steps:
            yield
            return
        if torch.cuda.is_available():
            torch.cuda.synchronize()  # the step before may still be in the queue
        snapshot = self.memory.get(step)
        if snapshot is not None:
            torch.cuda.memory._record_memory_history(max_entries=_MEMORY_EVENTS, clear_history=True)
        with torch.profiler.profile(profile_memory=True) as profiler:
            yield
        _write(self.steps[step], lambda path: _export(profiler, path))
        if snapshot is not None:
            dump: Any = torch.cuda.memory._dump_snapshot
            _write(snapshot, lambda path: dump(str(path)))
            torch.cuda.memory._record_memory_history(enabled=None)


NO_TRACES = StepTraces({}, {})


def plan_traces(run: RunSpec, folder: Path, rank: int, device: torch.device) -> StepTraces:
    """The traces of a run, in `folder`. A CPU has no history of CUDA memory."""
    if rank > 0:
        return NO_TRACES
    steps = {step: folder / f"step_{step}.trace.json.gz" for step in run.profile.steps}
    records = run.profile.memory_snapshot and device.type == "cuda"
    memory = {step: folder / f"step_{step}.memory.pickle" for step in run.profile.steps if records}
    number, _, named = os.environ.get(TRACE_ENV, "").partition(":")
    if named and number.isdecimal():
        steps[int(number)] = Path(named)
    return StepTraces(steps, memory)


def _export(profiler: torch.profiler.profile, path: Path) -> None:
    """Write the trace as JSON, packed if the name asks for it: a step of a deep model has 100 MB of it."""
    plain = path.with_name(path.name.removesuffix(".gz"))
    profiler.export_chrome_trace(str(plain))
    if plain != path:
        packed = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        with open(plain, "rb") as source, gzip.open(packed, "wb", compresslevel=1) as target:
            shutil.copyfileobj(source, target)
        packed.replace(path)  # the agent of the run sends what has the name, and never a part of it
        plain.unlink()


def _write(path: Path, write: Callable[[Path], None]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path)
    except OSError as error:
        sys.stderr.write(f"the trace {path} was not written: {error.strerror}\n")


Mark = float | torch.cuda.Event  # seconds of the monotonic clock, or an event of the GPU's stream


@dataclass(frozen=True, slots=True)
class _Marked:
    component: str
    start: Mark
    end: Mark
    count: int
    step: int
    cpu_s: float | None = None  # of this process; on a GPU it does not show the work


def lane_of(rank: int) -> str:
    return f"trainer-rank{rank}"


class StepSpans:
    """Writes the spans of the training loop. Only one thread may use it."""

    def __init__(
        self, rank: int, device: torch.device, traces: StepTraces = NO_TRACES, clock: RankClock | None = None
    ) -> None:
        self._traces = traces
        self._clock = clock
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
        with self._traces.step(step), nullcontext() if self._clock is None else self._clock.step(step):
            yield
        if not self.on:
            return
        self._spans.add(Span("step", "", start_s, time.monotonic(), step))
        self._write(before=step)

    def span(self, component: str, count: int = 0) -> AbstractContextManager[None]:
        """Work of the device: forward, backward, optimizer, communication."""
        timed = self._timed(component, self._mark, count, computes=True)
        if self._clock is None or component not in ("communication", "forward"):
            return timed
        self._clock.add_work(count)
        return self._clock.exchange(timed) if component == "communication" else timed

    def host_span(self, component: str) -> AbstractContextManager[None]:
        """Work or a wait of this process, for example for data."""
        timed = self._timed(component, time.monotonic, 0, computes=False)
        return self._clock.data(timed) if self._clock is not None and component == "data" else timed

    @contextmanager
    def _timed(self, component: str, clock: Callable[[], Mark], count: int, *, computes: bool) -> Iterator[None]:
        if not self.on:
            yield
            return
        start, began_s = clock(), time.process_time()
        try:
            yield
        finally:
            cpu_s = self._computed_s(began_s) if computes else None
            self._marked.append(_Marked(component, start, clock(), count, self._step, cpu_s))

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
        self._backward(loss)
        if self._clock is not None:
            self._clock.end_backward()

    def _backward(self, loss: Tensor) -> None:
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
