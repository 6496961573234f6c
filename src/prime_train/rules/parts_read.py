"""Records which parts of a RunSpec each rule reads, so that a rule is not run again on equal parts. Judges nothing."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

from prime_train.config.parsed_config import Earlier
from prime_train.rules.rule import RULES
from prime_train.spec import RunSpec

_PARTS = frozenset(RunSpec.__dataclass_fields__)


class _Recorder(RunSpec):
    """A RunSpec that notes the names of the parts that are read, also by its own properties."""

    __slots__ = ("read",)

    def __getattribute__(self, name: str) -> Any:
        if name == "__class__":  # its copies are plain, and it may equal a plain one
            return RunSpec
        if name in _PARTS:
            object.__getattribute__(self, "read").add(name)
        return object.__getattribute__(self, name)


class _Silence(NamedTuple):
    """What is known of the rules that found nothing in one file."""

    read: dict[str, frozenset[str]]  # code -> the parts of the RunSpec that it read
    silent: dict[frozenset[str], frozenset[str]]  # parts that differ in another file -> rules that read none of them


def silent_rules(earlier: Earlier, run: RunSpec) -> frozenset[str]:
    """The codes of the rules that found nothing in the earlier file, and read only parts that are the same in `run`.

    A rule on the file itself, or with facts, is none of them.
    """
    known, before = _silence(earlier), earlier.reading.run
    different = frozenset(name for name in _PARTS if getattr(run, name) is not getattr(before, name))
    if different not in known.silent:
        known.silent[different] = frozenset(code for code, read in known.read.items() if read.isdisjoint(different))
    return known.silent[different]


@lru_cache(maxsize=100)
def _silence(earlier: Earlier) -> _Silence:
    found: dict[str, frozenset[str]] = {}
    for rule in RULES.values():
        if rule.reads_run and not rule.needs:
            recorder = _recorder(earlier.reading.run)
            if next(rule.check(earlier.reading._replace(run=recorder), None), None) is None:
                found[rule.code] = frozenset(object.__getattribute__(recorder, "read"))
    return _Silence(found, {})


def _recorder(run: RunSpec | None) -> _Recorder:
    made = object.__new__(_Recorder)
    object.__setattr__(made, "read", set())
    for name in _PARTS:
        object.__setattr__(made, name, getattr(run, name))
    return made
