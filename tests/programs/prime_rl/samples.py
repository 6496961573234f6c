"""Samples of a run of prime-rl, and what follows from them."""

from __future__ import annotations

from prime_train.events import Event
from prime_train.programs.prime_rl.judge import Limits, Memory, Run, Sample, take
from prime_train.programs.prime_rl.lines import Message

RUN = Run(attempt=1, max_steps=20)
LIMITS = Limits()


def story(*samples: Sample, run: Run = RUN) -> tuple[Memory, list[Event]]:
    memory, told = Memory(), list[Event]()
    for sample in samples:
        memory, events = take(run, memory, sample, LIMITS)
        told += events
    return memory, told


def heard(now_s: float, *lines: tuple[str, Message]) -> Sample:
    return Sample(now_s, messages=lines, written_s=now_s)
