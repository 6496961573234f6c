"""Watches the machine under a run: memory that runs out or grows, processes killed for it, shared memory, files, clock.

It tells and ends nothing: where memory really runs out, the kernel ends the attempt and its signature names it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from prime_train.core.process_id import Identity
from prime_train.core.rundir import RunDir
from prime_train.supervise.state import State
from prime_train.supervise.watches.host.growth import MOST_POINTS
from prime_train.supervise.watches.host.growth import Point as told_of
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
