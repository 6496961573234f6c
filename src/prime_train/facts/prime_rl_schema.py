"""Reads the legal keys of an installed prime-rl, with its interpreter. Imports none of it in this process."""

from __future__ import annotations

import json
from datetime import date
from typing import Any

from prime_train.config.prime_rl.schema import SchemaGeneration, shipped_generations
from prime_train.config.prime_rl.table import TableOrigin, compact
from prime_train.core.errors import ExitCode, UserError
from prime_train.facts.facts import NotKnown
from prime_train.facts.probe_process import run_probe, script

DEADLINE_S = 300.0  # prime-rl's configs import torch and transformers


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
        what = "; ".join(f"{place}: {text}" for place, text in faults.items())
        raise _error(python, what, "a table without the keys of this file would report all of them as unknown")
    return output


def _error(python: str, what: str, why: str, exit_code: ExitCode = ExitCode.OUT_OF_REACH) -> UserError:
    fix = "prime-train schema import --python /path/to/prime-rl/.venv/bin/python"
    return UserError(what=what, where=f"--python {python}", why=why, fix=fix, exit_code=exit_code)
