"""Reads a config: its text, its format (run.toml, prime-rl, recipe or script) and its values. Judges nothing.

The code for prime-rl, recipes and scripts is imported only for a file that may be one of these.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from prime_train.config import run_toml
from prime_train.config.parsed_config import Reading
from prime_train.core.errors import UserError
from prime_train.toml.document import Document

if TYPE_CHECKING:
    from prime_train.config.prime_rl.detect_generation import Choice

_SCRIPT_SUFFIX = ".py"
_RECIPE = "recipe"
_PRIME_RL_KEYS = ("orchestrator", "trainer_gpu_ids", "deployment")  # no run.toml has one of them


def read(text: str, path: str, prime_rl: str | None = None) -> Reading:
    """The reading of one text. `prime_rl` is the generation for a prime-rl file that names none.

    Raises UserError for a Python script that no rule can judge.
    """
    if path.endswith(_SCRIPT_SUFFIX):
        from prime_train.config.jax import script

        return script.read(text, path)
    document = Document.parse(text, path)
    found, choice = _detect(document, prime_rl)
    if found == _RECIPE:
        from prime_train.config import recipe

        return recipe.read_document(document)
    if found == run_toml.DIALECT:
        return run_toml.read_document(document)
    from prime_train.config.prime_rl import read as prime_rl_files

    return prime_rl_files.read((document,), prime_rl, choice)


def is_run_toml(document: Document) -> bool:
    """Whether `read` treats the document as a run.toml. Builds no RunSpec."""
    return not document.path.endswith(_SCRIPT_SUFFIX) and _detect(document, None)[0] == run_toml.DIALECT


def _detect(document: Document, prime_rl: str | None) -> tuple[str, Choice | None]:
    """(format, choice) of a TOML document. The choice is None, except for a prime-rl file if `prime_rl` is None."""
    values = document.values
    if isinstance(values.get(_RECIPE), dict):
        return _RECIPE, None
    if _is_certainly_run_toml(values):
        return run_toml.DIALECT, None
    from prime_train.config.prime_rl import read as prime_rl_files

    if prime_rl is not None:
        return prime_rl_files.DIALECT, None
    choice = prime_rl_files.choose_if_prime_rl(values, document.path, run_toml.count_known_keys(values))
    return (run_toml.DIALECT, None) if choice is None else (prime_rl_files.DIALECT, choice)


def read_merged(parts: tuple[tuple[str, str], ...], prime_rl: str | None = None) -> Reading:
    """The reading of several (text, path), merged left to right as prime-rl merges its files.

    Raises UserError if one of them is a script.
    """
    for _, path in parts:
        if path.endswith(_SCRIPT_SUFFIX):
            raise UserError(
                what="a script cannot be merged with another file",
                where=path,
                why="+ merges config files of prime-rl",
                fix=f"prime-train lint {path}",
            )
    from prime_train.config.prime_rl import read as prime_rl_files

    return prime_rl_files.read(tuple(Document.parse(text, path) for text, path in parts), prime_rl)


def is_config(text: str, path: str) -> bool:
    """Whether a text is a config in one of the formats, even if some of its lines are not valid TOML."""
    if path.endswith(_SCRIPT_SUFFIX):
        from prime_train.config.jax import script

        return script.may_start_jax(text)
    document = Document.parse(text, path)
    values = document.values
    has_header = document.fault is not None and any(line.strip() == "[run]" for line in text.splitlines())
    if has_header or run_toml.may_be_run_toml(values) or isinstance(values.get(_RECIPE), dict):
        return True
    from prime_train.config.prime_rl import read as prime_rl_files

    choice = prime_rl_files.choose_if_prime_rl(values, path)
    return choice is not None and choice.known > choice.unknown


def _is_certainly_run_toml(values: Mapping[str, Any]) -> bool:
    """Whether the values are certainly a run.toml. prime-rl also has a table [run], with the keys name and dir."""
    if not values:
        return True
    run, data = values.get("run"), values.get("data")
    if any(table in values for table in _PRIME_RL_KEYS) or not isinstance(run, dict):
        return False
    has_own_keys = bool(run.keys() & {"max_steps", "kind", "seed"})
    if "inference" in values and not has_own_keys:
        return False
    return has_own_keys or (isinstance(data, dict) and bool(data.keys() & {"sources", "ctx_tokens"}))
