"""Watches the machine under a run: memory that runs out or grows, processes killed for it, shared memory, files, clock.

It tells and ends nothing: where memory really runs out, the kernel ends the attempt and its signature names it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import sqrt
from pathlib import Path

from prime_train.core.process_id import Identity
from prime_train.core.rundir import RunDir
from prime_train.supervise.state import State
from prime_train.supervise.watches.host import messages as told_of
from prime_train.supervise.watches.host.samples import LIMITS, Limits, Run, Sample, label_all, read_sample, run_of
from prime_train.supervise.watches.sampler import Sampler
from prime_train.supervise.watches.watch import Alarm

_PROGRAM = Path(__file__).with_name("host_program.py")


@dataclass(frozen=True, slots=True)
class Memory:
    """What is kept from sample to sample."""

    last: Sample | None = None
    labels: Mapping[int, str] = field(default_factory=dict)  # of the processes in `last`
    in_a_row: Mapping[tuple[str, str], int] = field(default_factory=dict)  # level and subject to samples beyond it
    levels: tuple[Alarm, ...] = ()  # as of `last`
    moments: tuple[tuple[float, Alarm], ...] = ()  # with the stamp until which each stands
    attempt: int = 0
    newest_complete: int = 0
    least_bytes: int | None = None  # held by the run since its newest save
    points: tuple[Point, ...] = ()


def judge(
    memory: Memory, samples: Iterable[Sample], run: Run, limits: Limits = LIMITS
) -> tuple[Memory, tuple[Alarm, ...]]:
    """Everything that is wrong after some more samples, which may be none."""
    for sample in samples:
        memory = _next(memory, sample, run, limits)
    return memory, (*memory.levels, *(alarm for _, alarm in memory.moments))


def _next(memory: Memory, sample: Sample, run: Run, limits: Limits) -> Memory:
    moments = [(until_s, alarm) for until_s, alarm in memory.moments if sample.stamp_s < until_s]
    if memory.last is not None:
        told = (*told_of.killed(memory.last, sample, memory.labels), *told_of.clock(memory.last, sample, limits))
        moments += [(sample.stamp_s + limits.stands_s, alarm) for alarm in told]
    memory = _at_saves(memory, sample, run)
    labels = label_all(sample.processes, run)
    standing = frozenset((alarm.name, alarm.subject) for alarm in memory.levels)
    found = [*told_of.low(sample, standing, limits), *told_of.open_files(sample, labels, standing, limits)]
    counts = {(alarm.name, alarm.subject): memory.in_a_row.get((alarm.name, alarm.subject), 0) + 1 for alarm in found}
    levels = [alarm for alarm in found if counts[alarm.name, alarm.subject] >= limits.in_a_row]
    levels += told_of.grows(memory.points, sample, run, limits)
    return replace(
        memory,
        last=sample,
        labels=labels,
        in_a_row=counts,
        levels=tuple(levels),
        moments=tuple({alarm.key: (until_s, alarm) for until_s, alarm in moments}.values()),
    )


def _at_saves(memory: Memory, sample: Sample, run: Run) -> Memory:
    """The memory with one more point where a save was completed. Another attempt begins anew."""
    if run.attempt != memory.attempt:
        return replace(memory, attempt=run.attempt, newest_complete=run.newest_complete, least_bytes=None, points=())
    held_bytes = sum(process.own_bytes for process in sample.processes)
    least_bytes = held_bytes if memory.least_bytes is None else min(memory.least_bytes, held_bytes)
    if run.newest_complete <= memory.newest_complete or not sample.processes:
        return replace(memory, least_bytes=least_bytes if sample.processes else memory.least_bytes)
    points = (*memory.points, Point(run.newest_complete, least_bytes))[-MOST_POINTS:]
    return replace(memory, newest_complete=run.newest_complete, least_bytes=None, points=points)


class HostWatch:
    """Has the host sampled in a child every `interval_s`, and judges what came in."""

    name = "host"

    def __init__(self, run_dir: RunDir, *, interval_s: float = 10.0, limits: Limits = LIMITS) -> None:
        self._interval_s = interval_s
        self._limits = limits
        self._log = run_dir.watches / "host.log"
        self._sampler = Sampler(_PROGRAM, [str(interval_s), str(run_dir.path)], self._log)
        self._memory = Memory()

    def begin(self) -> None:
        self._sampler.begin()

    def look(self, state: State, now_s: float) -> tuple[Alarm, ...]:
        del now_s  # the samples carry their own times
        samples = [read_sample(raw) for raw in self._sampler.take()]
        self._memory, alarms = judge(self._memory, samples, run_of(state), self._limits)
        return (*alarms, *self._not_watched())

    def _not_watched(self) -> Iterator[Alarm]:
        ended, silent_s = self._sampler.ended, self._sampler.silent_s
        if ended is None and silent_s < max(60.0, 6 * self._interval_s):
            return
        what = f"the program that looks ended with {ended}" if ended is not None else f"no sample for {silent_s:.0f} s"
        yield Alarm(
            "host",
            "host_not_watched",
            "this machine",
            "note",
            "unknown",
            f"the host is not watched: {what}",
            "a process may wait in the kernel for a disk or a driver",
            f"see {self._log}",
            str(self._log),
        )

    def processes(self) -> tuple[Identity, ...]:
        return self._sampler.processes()

    def end(self) -> None:
        self._sampler.end()


WARM_SAVES = 2  # the first ones allocate what later ones keep: staging buffers, caches, pools
LEAST_POINTS = 5
MOST_POINTS = 64
NOISE_FACTOR = 4.0
LEAST_RATIO = 0.05  # of the mean, over all points: less is what allocators do
LEAST_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True)
class Point:
    """What the run's processes held at a save: anonymous memory and swap."""

    step: int
    held_bytes: int


@dataclass(frozen=True, slots=True)
class Growth:
    """A line through the points: what each save adds, and how many more there is room for."""

    bytes_per_save: float
    saves_left: float
    saves_to_come: float

    @property
    def too_much(self) -> bool:
        """The memory is used up before the run is over."""
        return self.saves_left < self.saves_to_come


def growth(points: Sequence[Point], free_bytes: int, steps_to_come: float) -> Growth | None:
    """The growth over the saves of one attempt, by least squares; None where there is none beyond the noise."""
    counted = points[WARM_SAVES:]
    count = len(counted)
    if count < LEAST_POINTS:
        return None
    held = [float(point.held_bytes) for point in counted]
    mean = sum(held) / count
    middle = (count - 1) / 2
    spread = sum((number - middle) ** 2 for number in range(count))
    slope = sum((number - middle) * (value - mean) for number, value in enumerate(held)) / spread
    left = [value - mean - slope * (number - middle) for number, value in enumerate(held)]
    noise = sqrt(sum(value**2 for value in left) / (count - 2))
    if slope * (count - 1) < max(NOISE_FACTOR * noise, LEAST_RATIO * mean, LEAST_BYTES):
        return None
    steps_per_save = max(1.0, (counted[-1].step - counted[0].step) / (count - 1))
    return Growth(slope, free_bytes / slope, steps_to_come / steps_per_save)
