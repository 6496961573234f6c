"""Chooses the number of data workers from measured rates, for loader_workers = "auto". Starts no process."""

from __future__ import annotations

import contextlib
import math
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from prime_train.core.units import counted
from prime_train.spec import RunSpec
from prime_train.spec.answers import global_batch
from prime_train.trainer.data.tokenised import Made, Share

HEADROOM = 1.5  # times the trainer's rate, because documents and steps vary
PROBE_S = 2.0  # of training after the first step, which compiles
LAST_LOOK_STEP = 20
FIRST_WORKERS = 8  # at most, before the probe
CPU_MAX = Path("/sys/fs/cgroup/cpu.max")


@dataclass(frozen=True, slots=True)
class LoaderRates:
    """What was measured. Tokens/s of the trainer: of the rows that its machine prepares for each trainer."""

    trainer_tokens_per_s: float
    worker_tokens_per_s: float | None  # of one worker; None where everything was in the cache
    reading_ratio: float = 0.0  # of a worker's time, for reading texts; the rest is for the tokenizer


@dataclass(frozen=True, slots=True)
class WorkerChoice:
    """A number of workers, the number that the rates ask for, and the line that reports both."""

    workers: int
    wanted: int
    line: str


def count_cores(cpu_max: Path = CPU_MAX) -> int:
    """The cores that this process may use. Source: sched_getaffinity(2); cgroup v2, cpu.max."""
    cores = len(os.sched_getaffinity(0))
    with contextlib.suppress(OSError, ValueError):
        quota, period = cpu_max.read_text(encoding="ascii").split()
        cores = min(cores, max(1, int(quota) // int(period)))
    return cores


def most_workers(cores: int, trainers: int) -> int:
    """The workers that the cores of a machine leave room for beside its trainers, at least one for each."""
    return max(1, cores // trainers - 1)


def choose_workers(rates: LoaderRates, cores: int, trainers: int) -> WorkerChoice:
    """As many workers as make 1.5 times what the trainer uses, if there are cores for them."""
    uses = f"the trainer uses {rates.trainer_tokens_per_s:,.0f} tokens/s"
    if rates.worker_tokens_per_s is None:
        return WorkerChoice(1, 1, f"data.loader_workers = 1 (auto): {uses}, and all of them were in the cache")
    wanted = max(1, math.ceil(HEADROOM * rates.trainer_tokens_per_s / rates.worker_tokens_per_s))
    workers = min(wanted, most_workers(cores, trainers))
    line = f"data.loader_workers = {workers} (auto): {uses}, a worker makes {rates.worker_tokens_per_s:,.0f}"
    if wanted > workers:
        beside = f"{cores} cores for {trainers} trainers" if trainers > 1 else f"{cores} cores"
        line += f"; {wanted} workers are wanted, and {beside} leave room for {workers}. {_reshard(rates)}"
    return WorkerChoice(workers, wanted, line)


def _reshard(rates: LoaderRates) -> str:
    """Where a worker spends its time, and what to do with the data."""
    if rates.reading_ratio > 0.5:
        return (
            f"Reading the texts takes {rates.reading_ratio:.0%} of a worker's time: put the data on a local disk, or "
            "write it again as .parquet or .jsonl files of 100 to 500 MB with whole documents in a row"
        )
    return (
        f"The tokenizer takes {1 - rates.reading_ratio:.0%} of a worker's time: use one with a tokenizer.json, which "
        "is compiled, or tokenise ahead: what a run has tokenised stays in the cache, so a short run on a machine with "
        "more cores, with the same PRIME_TRAIN_CACHE, does this work for the next one"
    )


@dataclass(slots=True)
class Pace:
    """Measures the trainer between its calls for data. A step is `calls` calls, for `tokens` tokens in all."""

    calls: int
    tokens: int
    clock: Callable[[], float] = time.perf_counter
    waited_s: float = 0.0
    _count: int = 0
    _left_s: float | None = None  # when the last call ended
    _computed_s: float = 0.0  # of the step in progress
    _steps_s: list[float] = field(default_factory=list)  # without the waits for data

    def enter(self) -> None:
        """The trainer asks for data."""
        if self._left_s is not None:
            self._computed_s += self.clock() - self._left_s
        if self._count and self._count % self.calls == 0:
            self._steps_s.append(self._computed_s)
            self._computed_s = 0.0
        self._left_s = self.clock()

    def leave(self) -> None:
        """The trainer has its data."""
        assert self._left_s is not None
        now_s = self.clock()
        self.waited_s += now_s - self._left_s
        self._left_s = now_s
        self._count += 1

    @property
    def steps(self) -> int:
        """Steps that have ended."""
        return len(self._steps_s)

    @property
    def is_probed(self) -> bool:
        """Whether there were 2 s of training after the first step."""
        return self.steps > 1 and (sum(self._steps_s[1:]) >= PROBE_S or self.steps >= LAST_LOOK_STEP)

    def tokens_per_s(self) -> float:
        """The rate of the usual step, if it never waited for data."""
        return self.tokens / max(statistics.median(self._steps_s[1:] or self._steps_s), 1e-9)


class Workers(Protocol):
    """The workers of a loader."""

    @property
    def workers(self) -> int: ...

    def made(self) -> Made: ...


class AutoWorkers:
    """Looks at the rates after the probe and at step 20, and reports what it chooses."""

    def __init__(self, run: RunSpec, world_size: int, share: Share, cores: int | None = None) -> None:
        micro_batches = global_batch(run) // (run.batch.micro_batch * world_size)
        # Each machine prepares the rows of all ranks, and its trainers share that work.
        rows = global_batch(run) / share.of
        self.pace = Pace(micro_batches, round(rows * run.data.ctx_tokens))
        self._cores, self._trainers = cores or count_cores(), share.of
        self._reports = share.number == 0  # one trainer of the machine
        self._looks = 0

    def first_workers(self) -> int:
        """The number before anything is measured."""
        workers = min(FIRST_WORKERS, most_workers(self._cores, self._trainers))
        if self._cores // self._trainers < 2:
            beside = f"{counted(self._cores, 'core')} for {counted(self._trainers, 'trainer')}"
            self._report(f"data.loader_workers = 1 (auto): {beside}, so there is none for a second worker")
        return workers

    def enter(self, now: Workers) -> int | None:
        """The trainer asks for data. Another number of workers, where the rates call for one."""
        self.pace.enter()
        is_due = self.pace.is_probed if self._looks == 0 else self.pace.steps == LAST_LOOK_STEP and self._looks == 1
        if not is_due:
            return None
        self._looks = 2 if self.pace.steps >= LAST_LOOK_STEP else 1
        made = now.made()
        reading_ratio = made.reading_s / max(made.reading_s + made.tokenising_s, 1e-9)
        rates = LoaderRates(self.pace.tokens_per_s(), made.tokens_per_s, reading_ratio)
        choice = choose_workers(rates, self._cores, self._trainers)
        self._report(choice.line)
        return choice.workers if choice.workers != now.workers else None

    def _report(self, line: str) -> None:
        if self._reports:
            sys.stderr.write(f"{line}\n")
