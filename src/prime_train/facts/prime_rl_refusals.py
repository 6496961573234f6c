"""Asks an installed prime-rl what it refuses in a config. Its classes run in its own interpreter, never here."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from prime_train.config.parsed_config import REFUSED, Fault, Reading
from prime_train.facts.facts import NotKnown
from prime_train.facts.probe_process import read_answer, script
from prime_train.toml.document import KeyPath, dotted

DEADLINE_S = 120.0  # prime-rl's configs import transformers
_MAX_CHARS = 500  # of a message
_MAX_REFUSALS = 100


class PrimeRlRefusal(NamedTuple):
    """What the installed prime-rl refuses: the key that it names, and its message."""

    place: tuple[str | int, ...]
    message: str


class Answered(NamedTuple):
    """The answer of an installed prime-rl. `version` is "" if it has none."""

    version: str
    refusals: tuple[PrimeRlRefusal, ...]


def ask(python: str, root: str, values: Mapping[str, Any]) -> Answered | NotKnown:
    """What the prime-rl of an interpreter refuses in the values of a config; NotKnown if it cannot be asked."""
    plain = json.loads(json.dumps(values, default=str))  # TOML has dates, JSON has none
    request = {"root": root, "values": plain}
    output = read_answer(python, [python, script("prime_rl_program"), "ask"], DEADLINE_S, request)
    if isinstance(output, NotKnown):
        return output
    listed = output.get("refusals")
    if not isinstance(listed, list):
        return NotKnown(str(output.get("fault", "it prints no refusals")))
    made = [_refused(entry) for entry in listed[:_MAX_REFUSALS] if isinstance(entry, dict)]
    return Answered(str(output.get("version", "")), tuple(made))


def _refused(entry: Mapping[str, Any]) -> PrimeRlRefusal:
    place = entry.get("place")
    parts = tuple(part for part in place if isinstance(part, str | int)) if isinstance(place, list) else ()
    return PrimeRlRefusal(parts, str(entry.get("message", ""))[:_MAX_CHARS])


def faults(answered: Answered, reading: Reading) -> Iterator[Fault]:
    """A fault for each refusal that the reading does not explain itself."""
    known = [fault for fault in reading.faults if fault.severity is None]
    for refused in answered.refusals:
        at = _written(refused.place, reading.document.values)
        if any(_explains(fault, at) for fault in known):
            continue
        where = dotted(at) if at else "the file"
        message = refused.message.removeprefix("Value error, ")
        installed = f"prime-rl {answered.version}".rstrip()
        why = f"the classes of the installed {installed} end the run before it starts"
        yield Fault(REFUSED, at, f"prime-rl refuses {where}: {message}", f"change {where} as prime-rl asks", why=why)


def _explains(fault: Fault, at: KeyPath) -> bool:
    """Whether a fault is about the key that prime-rl names, or a combination of keys below the table that it names."""
    if fault.code == REFUSED:
        return any(key[: len(at)] == at for key in (fault.key, *fault.keys))
    return fault.key == at


def _written(place: tuple[str | int, ...], values: Any) -> KeyPath:
    """The part of a place that is in the file. Pydantic adds the member of a union, which is no key."""
    path: list[str | int] = []
    for part in place:
        if isinstance(values, dict) and part in values:
            values = values[str(part)]
        elif isinstance(values, list) and isinstance(part, int) and part < len(values):
            values = values[part]
        else:
            continue
        path.append(part)
    return tuple(path)
