"""Traces single steps of a run: torch.profiler's Chrome trace, and the history of CUDA memory. Decides nothing.

`[profile]` names the steps of a run; PRIME_TRAIN_TRACE names one step of a `prime-train profile`. Rank 0 traces.
"""

from __future__ import annotations

import gzip
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from prime_train.core.spans import TRACE_ENV
from prime_train.spec import RunSpec

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
            _write(snapshot, _dump_memory)
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
        with open(plain, "rb") as source, gzip.open(path, "wb", compresslevel=1) as target:
            shutil.copyfileobj(source, target)
        plain.unlink()


def _dump_memory(path: Path) -> None:
    torch.cuda.memory._dump_snapshot(str(path))  # type: ignore[no-untyped-call]


def _write(path: Path, write: Callable[[Path], None]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path)
    except OSError as error:
        sys.stderr.write(f"the trace {path} was not written: {error.strerror}\n")
