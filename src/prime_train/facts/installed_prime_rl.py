"""Asks an installed prime-rl for its legal keys, and what it refuses. Its classes never run in this process."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import date
from typing import Any, NamedTuple

from prime_train.config.parsed_config import REFUSED, Fault, Reading
from prime_train.config.prime_rl.schema import SchemaGeneration, shipped_generations
from prime_train.config.prime_rl.table import TableOrigin, compact
from prime_train.core.errors import ExitCode, UserError
from prime_train.facts.facts import NotKnown
from prime_train.facts.probe_process import read_answer, run_probe, script
from prime_train.toml.document import KeyPath, dotted

ASK_DEADLINE_S = 120.0  # prime-rl's configs import transformers
_MAX_CHARS = 500  # of a message
_MAX_REFUSALS = 100
DEADLINE_S = 300.0  # prime-rl's configs import torch and transformers


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
    output = read_answer(python, [python, script("prime_rl_program"), "ask"], ASK_DEADLINE_S, request)
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


def table(python: str, generation: str, today: date) -> dict[str, Any]:
    """The compact table of the prime-rl that `python` has.

    What its classes do not show comes from the shipped generation with the most keys in common: the features, and
    which keys feed a RunSpec. "inherits" names that generation.
    Raises UserError if the interpreter, prime-rl or its root classes are missing.
    """
    output = _run_program(python)
    rows = output["rows"]
    paths = {(row["root"], row["path"].replace("[]", "")) for row in rows}
    nearest = max(reversed(shipped_generations()), key=lambda one: _keys_in_common(one, paths))
    kept = {
        root: {field: legal for field, keys in of_root.items() if (legal := _legal_keys(root, keys, paths))}
        for root, of_root in nearest.feeds.items()
    }
    version = output["version"]
    features = nearest.features._asdict()
    origin = TableOrigin(generation, f"prime-rl {version}".strip(), today.isoformat(), version, features)
    return compact(rows, origin, kept) | {"inherits": nearest.name}


def _keys_in_common(generation: SchemaGeneration, paths: set[tuple[str, str]]) -> int:
    known = ((root, ".".join(map(str, path))) for root in generation.roots for path, _ in generation.paths(root))
    return sum(key in paths for key in known)


def _legal_keys(root: str, keys: list[str], paths: set[tuple[str, str]]) -> list[str]:
    """The legal keys of a field. The prefix "#" or "?" of a key is not part of its path."""
    return [key for key in keys if (root, key.lstrip("#?").replace("[]", "")) in paths]


def _run_program(python: str) -> dict[str, Any]:
    answer = run_probe([python, script("prime_rl_program")], DEADLINE_S)
    if isinstance(answer, NotKnown):
        raise _error(python, answer.reason, "it must be an executable Python interpreter", ExitCode.USAGE)
    lines = answer.out.splitlines()
    if answer.code != 0 or not lines:
        raise _error(python, answer.last_line or f"exit code {answer.code}", "its configs cannot be read")
    try:
        output = json.loads(lines[-1])
    except ValueError:
        raise _error(python, "its output is not JSON", "it is not a Python interpreter", ExitCode.USAGE) from None
    if not isinstance(output, dict) or "rows" not in output:
        fault = output.get("fault", "it prints no rows") if isinstance(output, dict) else "it prints no rows"
        raise _error(python, fault, "the keys are read from the config classes of prime-rl")
    if faults := output.get("faults"):
        what = "; ".join(f"the keys of the root {root} cannot be read: {text}" for root, text in faults.items())
        raise _error(python, what, "a table without a root would report each key of its files as unknown")
    return output


def _error(python: str, what: str, why: str, exit_code: ExitCode = ExitCode.OUT_OF_REACH) -> UserError:
    fix = "prime-train schema import --python /path/to/prime-rl/.venv/bin/python"
    return UserError(what=what, where=f"--python {python}", why=why, fix=fix, exit_code=exit_code)
