"""Samples of a run of prime-rl, and what follows from them."""

from __future__ import annotations

from prime_train.events import Event
from prime_train.programs.prime_rl.judge import KnownPrimeRlRun, PrimeRlHistory, PrimeRlLimits, PrimeRlSample, take
from prime_train.programs.prime_rl.lines import Message

RUN = KnownPrimeRlRun(attempt=1, max_steps=20)
LIMITS = PrimeRlLimits()


def story(*samples: PrimeRlSample, run: KnownPrimeRlRun = RUN) -> tuple[PrimeRlHistory, list[Event]]:
    memory, told = PrimeRlHistory(), list[Event]()
    for sample in samples:
        memory, events = take(run, memory, sample, LIMITS)
        told += events
    return memory, told


def heard(now_s: float, *lines: tuple[str, Message]) -> PrimeRlSample:
    return PrimeRlSample(now_s, messages=lines, written_s=now_s)
