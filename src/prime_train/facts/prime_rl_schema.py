"""Reads the legal keys of an installed prime-rl, by running its interpreter. Imports none of it in this process."""

from __future__ import annotations

import json
from datetime import date
from typing import Any

from prime_train.dialects.prime_rl.schema import Generation, shipped_generations
from prime_train.dialects.prime_rl.table import Origin, compact
from prime_train.errors import ExitCode, UserError
from prime_train.facts.child import run_probe, script
from prime_train.facts.facts import NotKnown

DEADLINE_S = 300.0  # prime-rl's configs import torch and transformers


def table(python: str, generation: str, today: date) -> dict[str, Any]:
    """The compact table of the prime-rl that `python` has.

    What its classes do not show comes from the shipped generation with the most keys in common: the features, and
    which keys feed a RunSpec. "inherits" names that generation.
    Raises UserError where there is no such interpreter, no prime-rl in it, or none of its root classes.
    """
    said = _said(python)
    rows = said["rows"]
    paths = {(row["root"], row["path"].replace("[]", "")) for row in rows}
    nearest = max(reversed(shipped_generations()), key=lambda one: _keys_in_common(one, paths))
    kept = {
        root: {field: there for field, keys in of_root.items() if (there := _those_there(root, keys, paths))}
        for root, of_root in nearest.feeds.items()
    }
    version = said["version"]
    features = nearest.features._asdict()
    origin = Origin(generation, f"prime-rl {version}".strip(), today.isoformat(), version, features)
    return compact(rows, origin, kept) | {"inherits": nearest.name}


def _keys_in_common(generation: Generation, paths: set[tuple[str, str]]) -> int:
    known = ((root, ".".join(map(str, path))) for root in generation.roots for path, _ in generation.paths(root))
    return sum(key in paths for key in known)


def _those_there(root: str, keys: list[str], paths: set[tuple[str, str]]) -> list[str]:
    """The legal ones of the keys that feed a field. A sign in front says what of a key is read."""
    return [key for key in keys if (root, key.lstrip("#?").replace("[]", "")) in paths]


def _said(python: str) -> dict[str, Any]:
    answer = run_probe([python, script("prime_rl_program")], DEADLINE_S)
    if isinstance(answer, NotKnown):
        raise _refused(python, answer.reason, "it must be an interpreter that can be run", ExitCode.USAGE)
    lines = answer.out.splitlines()
    if answer.code != 0 or not lines:
        raise _refused(python, answer.last_line or f"exit code {answer.code}", "its configs cannot be walked")
    try:
        said = json.loads(lines[-1])
    except ValueError:
        raise _refused(
            python, "it does not answer like Python", "another program has that name", ExitCode.USAGE
        ) from None
    if not isinstance(said, dict) or "rows" not in said:
        fault = said.get("fault", "it gives no rows") if isinstance(said, dict) else "it gives no rows"
        raise _refused(python, fault, "the keys are read out of the classes that prime-rl reads its files with")
    return said


def _refused(python: str, what: str, why: str, exit_code: ExitCode = ExitCode.OUT_OF_REACH) -> UserError:
    fix = "prime-train schema import --python /path/to/prime-rl/.venv/bin/python"
    return UserError(what=what, where=f"--python {python}", why=why, fix=fix, exit_code=exit_code)
