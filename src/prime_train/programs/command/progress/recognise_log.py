"""Finds the profile that describes the trainer of a log. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from prime_train.programs.command.progress.lines import LineSplitter
from prime_train.programs.command.progress.log_progress import match_line, read_prefixes
from prime_train.registry.trainers import TrainerLine, TrainerProfile, trainer_profiles


@dataclass(frozen=True, slots=True)
class LogTrainer:
    """`name` is empty where no profile takes a line. `taken`: profile -> lines that it is the first to take."""

    name: str
    taken: Mapping[str, int]
    lines: int


def recognise_log(chunks: Iterable[bytes]) -> LogTrainer:
    """The profile that takes most lines, of those that take one as the first.

    A progress bar alone shows no trainer, because every program has the same bars; nor does the line of a launcher, or
    one that other programs have copied.
    """
    splitter, taken, decided, lines = LineSplitter(), Counter[str](), set[str](), 0
    for texts in (*map(splitter.feed, chunks), splitter.finish()):
        lines += len(texts)
        for text in texts:
            name, line = _find_taker(text)
            if line is not None and not line.total_is_last:
                taken[name] += 1
                decided |= {name} if line.decides else set()
    candidates = [profile for profile in trainer_profiles().values() if profile.name in decided]
    best = max(candidates, key=lambda profile: _score(profile, taken), default=None)
    name = best.name if best is not None and _score(best, taken)[1] else ""
    return LogTrainer(name, dict(taken), lines)


def _find_taker(text: str) -> tuple[str, TrainerLine | None]:
    """The first profile with a line of its own that takes the text, and that line."""
    prefixed = read_prefixes(text)
    for profile in trainer_profiles().values():
        found = match_line(prefixed, profile.own_lines)
        if found is not None:
            return profile.name, found[0]
    return "", None


def _score(profile: TrainerProfile, taken: Mapping[str, int]) -> tuple[bool, int, int]:
    """Whether it is no engine; the lines that it and the profiles that it is like take; those that it takes alone."""
    if profile.launcher:
        return False, 0, 0
    total, like = taken[profile.name], profile.like
    while like:
        total += taken.get(like, 0)
        like = trainer_profiles()[like].like
    return not profile.engine, total, taken[profile.name]
