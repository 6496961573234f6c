"""What was read of another program's file: its parts, and values that the file leaves open. Values only."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from prime_train.toml.document import Document, KeyPath, value_at

YAML_SUFFIXES = (".yaml", ".yml", ".json")
COMMAND_LINE = "<command>"  # the path that is shown for a command line, which is read as a script
SHELL_SUFFIXES = (".sh", ".bash", ".sbatch", ".slurm", COMMAND_LINE)
SUFFIXES = (*YAML_SUFFIXES, *SHELL_SUFFIXES)  # a file with one of them is never TOML
MOST_BYTES = 1_000_000  # the largest config that was seen has 40,000; one of this size is read in a second
AUTO = "auto"
_OPEN = re.compile(r"\$[\w{(]|\{\{|\{%")  # a variable of a shell or of OmegaConf, a template of jinja
_EXPONENT = re.compile(r"[-+]?\d[\d_]*(?:\.\d*)?[eE][-+]?\d+")
_REFERENCE = re.compile(r"\$\{([A-Za-z_][\w.]*)\}")
_MOST_REFERENCES = 8  # of a value to a value to a value


class Open(NamedTuple):
    """A value that only the run knows: a variable, a template, or "auto". `text` is what the file has."""

    text: str


class PartialValues(dict[str, Any]):
    """Values of a command. With `is_partial`, it may have keys that are not written here: "$@", a config elsewhere."""

    is_partial = False


class ForeignPart(NamedTuple):
    """What a file has for one program. `at` is the key of `document` that holds `values`: () for the whole file.

    `start` numbers the trainings that a script starts, from 1; 0 is a part that belongs to all of them. `moved`: the
    script changes its folder, so that a file that is not found may still exist.
    """

    format: str
    values: Mapping[str, Any]
    document: Document
    at: KeyPath = ()
    start: int = 0
    moved: bool = False


def open_values(values: Mapping[str, Any], *, exponents: bool, references: bool) -> dict[str, Any]:
    """A copy of YAML or JSON values as a program has them.

    `exponents`: the program reads 1e-5 as a number, which is a text in YAML 1.1. `references`: `${a.b}` is the value of
    the key a.b. What is not known is Open.
    """

    def convert(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: convert(below) for key, below in value.items()}
        if isinstance(value, list):
            return [convert(below) for below in value]
        if not isinstance(value, str):
            return value
        if references and "${" in value:
            value = _resolve(value, values)
        return _convert_text(value, exponents=exponents) if isinstance(value, str) else value

    return {key: convert(value) for key, value in values.items()}


def _convert_text(text: str, *, exponents: bool) -> Any:
    if text == AUTO or _OPEN.search(text):
        return Open(text)
    if exponents and _EXPONENT.fullmatch(text):
        return float(text.replace("_", ""))
    return text


def _resolve(text: str, values: Mapping[str, Any]) -> Any:
    """The value that a text refers to.

    A text with references inside has their values. The text itself if one of them is not in the file.
    """
    value: Any = text
    for _ in range(_MOST_REFERENCES):
        if not isinstance(value, str) or "${" not in value:
            return value
        whole = _REFERENCE.fullmatch(value)
        if whole is not None:
            value = value_at(values, tuple(whole.group(1).split(".")))
        else:
            value = _REFERENCE.sub(lambda found: _inside_text(found, values), value)
        if value is None:
            return text
    return text


def _inside_text(found: re.Match[str], values: Mapping[str, Any]) -> str:
    value = value_at(values, tuple(found.group(1).split(".")))
    is_plain = isinstance(value, str | int | float) and not isinstance(value, bool)
    return str(value) if is_plain else found.group()


_ROOT_OF = {"deepspeed": "DEEPSPEED", "accelerate": "ACCELERATE", "launch": "LAUNCH", "sbatch": "SLURM"}
_NO_TRAINERS = frozenset(
    {*_ROOT_OF, "torchrun", "accelerate-launch", "deepspeed-launch", "skypilot", "shell", "srun", "mpirun"}
)


def roots_of(parts: tuple[ForeignPart, ...], start: int = 0) -> dict[str, Mapping[str, Any]]:
    """The parts of a start, and those of all starts, by the names that conditions have for them.

    A name that two parts could have is left out. Values that may have more keys count only without others.
    """
    found: dict[str, list[Mapping[str, Any]]] = {}
    for part in parts:
        root = _ROOT_OF.get(part.format, "" if part.format in _NO_TRAINERS else "TRAINER")
        if root and (not start or part.start in (0, start)):
            found.setdefault(root, []).append(part.values)
    roots: dict[str, Mapping[str, Any]] = {}
    for root, values in found.items():
        whole = [each for each in values if not (isinstance(each, PartialValues) and each.is_partial)] or values
        if len(whole) == 1:
            roots[root] = whole[0]
    return roots
