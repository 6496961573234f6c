"""Chooses the dialect of a config and reads it: our own run.toml, a prime-rl file, a recipe, a script. Judges nothing.

What belongs to prime-rl, to recipes or to scripts is loaded only for a file that may be theirs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prime_train.dialects import native
from prime_train.dialects.reading import Reading
from prime_train.document import Document
from prime_train.errors import UserError

_SCRIPT_SUFFIX = ".py"
_ROOT_TABLES = ("orchestrator", "trainer_gpu_ids", "deployment")  # no run.toml has one of them


def read(text: str, path: str, prime_rl: str | None = None) -> Reading:
    """The reading of one text. `prime_rl` is the generation to judge a prime-rl file by that names none itself.

    Raises UserError for a Python script that no rule can judge.
    """
    if path.endswith(_SCRIPT_SUFFIX):
        from prime_train.dialects import script

        return script.read(text, path)
    document = Document.parse(text, path)
    if isinstance(document.values.get("recipe"), dict):
        from prime_train.dialects import recipe

        return recipe.read_document(document)
    if _is_run_toml(document.values):
        return native.read_document(document)
    from prime_train.dialects.prime_rl import read as prime_rl_files

    if prime_rl is not None:
        return prime_rl_files.read((document,), prime_rl)
    choice = prime_rl_files.recognised(document.values, path, native.known_keys(document.values))
    return native.read_document(document) if choice is None else prime_rl_files.read((document,), None, choice)


def read_merged(parts: tuple[tuple[str, str], ...], prime_rl: str | None = None) -> Reading:
    """The reading of several (text, path), merged left to right as prime-rl merges its files.

    Raises UserError where one of them is a script.
    """
    for _, path in parts:
        if path.endswith(_SCRIPT_SUFFIX):
            raise UserError(
                what="a script is merged with nothing",
                where=path,
                why="a + merges config files of prime-rl",
                fix=f"prime-train lint {path}",
            )
    from prime_train.dialects.prime_rl import read as prime_rl_files

    return prime_rl_files.read(tuple(Document.parse(text, path) for text, path in parts), prime_rl)


def recognises(text: str, path: str) -> bool:
    """Whether a text is a config of one of the dialects, also where it is not all TOML."""
    if path.endswith(_SCRIPT_SUFFIX):
        from prime_train.dialects import script

        return script.recognises(text)
    document = Document.parse(text, path)
    values = document.values
    if native.recognises(values) or (document.fault is not None and native.has_header(text)):
        return True
    if isinstance(values.get("recipe"), dict):
        return True
    from prime_train.dialects.prime_rl import read as prime_rl_files

    choice = prime_rl_files.recognised(values, path)
    return choice is not None and choice.known > choice.unknown


def _is_run_toml(values: Mapping[str, Any]) -> bool:
    """Whether a file is surely a run.toml. prime-rl has a table [run] too, but with a name and a dir alone."""
    if not values:
        return True
    run, data = values.get("run"), values.get("data")
    if any(table in values for table in _ROOT_TABLES) or not isinstance(run, dict):
        return False
    is_ours = bool(run.keys() & {"max_steps", "kind", "seed"})
    if "inference" in values and not is_ours:
        return False
    return is_ours or (isinstance(data, dict) and bool(data.keys() & {"sources", "ctx_tokens"}))
