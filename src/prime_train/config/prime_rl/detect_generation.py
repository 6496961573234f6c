"""Chooses the generation and the root of a prime-rl file. Judges nothing.

The generation is the first of these: the one in [prime_train], the one in the command line, the one of the prime-rl
that is installed beside this program, the newest one in which the file has no error, the one in which it has fewest.
The root is the one whose table has most of the keys; among equals, the file's name decides.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import islice
from typing import Any, NamedTuple

from prime_train.config.parsed_config import Fault
from prime_train.config.prime_rl.schema import SchemaGeneration, generations, load
from prime_train.config.prime_rl.validate import PrimeRlWalk, is_error, is_overlay, walk
from prime_train.config.prime_rl.validate_value import fits
from prime_train.config.prime_rl.validators import judge as judge_validators
from prime_train.config.schema import Array, Field, Map, Table, shapes_of

_HINTS = (
    ("rl", ("rl",)),
    ("sft", ("sft",)),
    ("orchestrator", ("orch", "orchestrator")),
    ("inference", ("infer", "inference")),
    ("env-server", ("env", "server")),
    ("evals", ("eval", "evals")),
    ("eval", ("eval", "evals")),
    ("synthesize", ("synthesize",)),
    ("trainer", ("train", "trainer")),
)
_NAMES_OF_ROOTS = frozenset(name for _, names in _HINTS for name in names)
_SUCCESSORS = {"eval": "evals", "synthesize": "evals"}  # a removed root -> the root that replaces it
_PARTS_BY_NAME = frozenset({"orchestrator", "inference", "evals", "eval"})
_MAX_COUNTED = 1000  # keys; a file with more is not a config


class JudgedValues(NamedTuple):
    """The walk along a table, and the combinations that its validators refuse."""

    walked: PrimeRlWalk
    refused: tuple[Fault, ...]

    @property
    def errors(self) -> tuple[int, int]:
        """(errors of single keys, refused combinations)."""
        return sum(map(is_error, self.walked.faults)), sum(map(is_error, self.refused))


class GenerationChoice(NamedTuple):
    """`because` is the reason for the generation. `rivals`: older ones in which the file has as few errors."""

    generation: str
    root: str
    because: str
    rivals: tuple[str, ...]
    unknown: int  # keys that the chosen table does not have, or has with another type
    known: int
    is_named: bool  # whether the file is named after that root
    is_guess: bool = False  # whether nothing names the generation
    judged: JudgedValues | None = None  # if the choice needed it; for a file that can be read


def choose(values: Mapping[str, Any], path: str, named: str | None, requested: str | None) -> GenerationChoice:
    """The choice for a file's values without [prime_train], which names a generation or not."""
    known = generations()
    name, because = (named, "prime_train.prime_rl names it") if named in known else (requested, "--prime-rl names it")
    if name not in known and (installed := installed_generation()) is not None:
        name, because = installed[0], f"prime-rl {installed[1]} is installed"
    if name is not None and name in known:
        return _with_root_of_any_generation(_fit(load(name), values, path, because), values, path)
    return _guess(_fit_all(values, path), values)


def _guess(fits: list[GenerationChoice], values: Mapping[str, Any]) -> GenerationChoice:
    """The newest of the fits in which the values have no error, else the one with fewest. `fits`: newest first.

    In the newest generation of all, a refused combination of legal keys is no reason to try an older one.
    """
    counted: list[tuple[tuple[int, int], GenerationChoice]] = []
    for fit in fits:
        errors, judged = (fit.unknown, 0), None
        # A file of another program has unknown keys above all: to explain them would only take time.
        if fit.unknown <= fit.known:
            generation = load(fit.generation)
            is_whole = not is_overlay(generation, fit.root, values)
            judged = judge_values(generation, fit.root, values, whole=is_whole)
            errors = judged.errors
        counted.append((errors, fit._replace(judged=judged, is_guess=True)))
        # What the newest one refuses together is refused for most users: an older one would hide it.
        if errors == (0, 0) or (fit is fits[0] and not errors[0]):
            return _with_rivals(counted[-1][1], fits)
    fewest, best = min(counted, key=lambda pair: pair[0])
    rivals = tuple(fit.generation for count, fit in counted if count == fewest and fit is not best)
    equal = f", as in {', '.join(rivals)}" if rivals else ""
    return best._replace(because=f"it has fewest errors there: {sum(fewest)}{equal}", rivals=rivals)


def _with_rivals(best: GenerationChoice, fits: list[GenerationChoice]) -> GenerationChoice:
    """A choice whose keys are legal. Its rivals have all of them too, and perhaps refuse them together."""
    rivals = tuple(fit.generation for fit in fits if not fit.unknown and fit.generation != best.generation)
    newer = [name for name in rivals if name > best.generation]
    because = "all of its keys are legal there"
    if newer:
        because = f"the newest without an error; {', '.join(newer)} has the keys too, and refuses the file"
    elif rivals:
        because = f"the newest of those that its keys fit: {', '.join(rivals)} too"
    return best._replace(because=because, rivals=rivals)


def judge_values(generation: SchemaGeneration, root: str, values: Mapping[str, Any], *, whole: bool) -> JudgedValues:
    """The values by the table and the validators of a root. `whole`: whether required keys must be there."""
    walked = walk(generation, root, values, whole=whole)
    return JudgedValues(walked, tuple(judge_validators(walked)))


def _with_root_of_any_generation(choice: GenerationChoice, values: Mapping[str, Any], path: str) -> GenerationChoice:
    """The choice with the root that the file has in the generation that fits best, which may be an older one."""
    own = path.replace("\\", "/").removesuffix(".toml").rpartition("/")[2]
    if not choice.unknown or choice.root == _root_of_name(load(choice.generation), own):
        return choice
    best = min(_fit_all(values, path), key=_misfit)
    root = _SUCCESSORS.get(best.root, best.root)
    return choice._replace(root=root) if root in load(choice.generation).roots else choice


def _misfit(choice: GenerationChoice) -> tuple[int, bool]:
    return choice.unknown - choice.known, not choice.is_named


def _fit_all(values: Mapping[str, Any], path: str) -> list[GenerationChoice]:
    """The best choice of each generation, newest first."""
    return [_fit(load(name), values, path, "") for name in reversed(generations())]


def _fit(generation: SchemaGeneration, values: Mapping[str, Any], path: str, because: str) -> GenerationChoice:
    """The root of the generation whose table has most of the keys."""
    counted = {root: _count(generation.roots[root], values) for root in generation.roots}
    fewest = min(unknown - known for known, unknown in counted.values())
    roots = [root for root, (known, unknown) in counted.items() if unknown - known == fewest]
    parts = path.replace("\\", "/").removesuffix(".toml").split("/")
    hints = [_root_in_name(roots, part) for part in reversed(parts)]
    named = _root_of_name(generation, parts[-1])
    if named is not None and counted[named][0] > 0:  # its name outweighs the number of its keys
        return GenerationChoice(generation.name, named, because, (), counted[named][1], counted[named][0], True)
    root = next((root for root in hints if root), None)
    if root is None:  # of equals the one that cannot do without a key of the file: evals has [eval], sft may have it
        needed = [root for root in roots if any(item.key in values for item in generation.roots[root].required())]
        root = min(needed or roots, key=_rank)
    known, unknown = counted[root]
    return GenerationChoice(generation.name, root, because, (), unknown, known, hints[0] is not None)


def _root_in_name(roots: list[str], name: str) -> str | None:
    """The root that a file or folder is named after."""
    words = _find_root_words(name)
    return next((root for root, names in _HINTS if root in roots and any(word in words for word in names)), None)


def _find_root_words(part: str) -> frozenset[str]:
    """The words in the name of a file or folder that may name a root."""
    return _NAMES_OF_ROOTS.intersection(re.split(r"[-_. 0-9]+", part.lower()))


def _root_of_name(generation: SchemaGeneration, name: str) -> str | None:
    """The root that a file itself is named after: infer.toml, eval.toml, orch.toml.

    Files of several roots are called train.toml.
    """
    words = _find_root_words(name)
    named = {root for root, hints in _HINTS if not words.isdisjoint(hints)}
    if named - {"eval", "evals"}:
        named -= {"eval", "evals"}
    found = named & _PARTS_BY_NAME & generation.roots.keys()
    return next(iter(found)) if len(named & generation.roots.keys()) == len(found) == 1 else None


def _rank(root: str) -> int:
    order = [known for known, _ in _HINTS]
    return order.index(root) if root in order else len(order)


def _count(table: Table, values: Mapping[str, Any]) -> tuple[int, int]:
    """(known, unknown) number of keys of a file, including the keys directly below an unknown table."""
    known = unknown = 0
    stack: list[tuple[Table, Any]] = [(table, values)]
    while stack and known + unknown < _MAX_COUNTED:
        around, value = stack.pop()
        if isinstance(value, list):
            stack.extend((around, each) for each in value)
            continue
        if not isinstance(value, dict):
            unknown += 1
            continue
        for key, below in islice(value.items(), _MAX_COUNTED):
            item = around.find(key)
            if item is None:
                is_open = around.may_be_open
                known, unknown = (known + 1, unknown) if is_open else (known, unknown + 1)
                unknown += len(below) if not is_open and isinstance(below, dict | list) else 0
                continue
            inside = list(_tables_inside(item, below))
            stack.extend(inside)
            is_known = bool(inside) or fits(item, below)
            known, unknown = (known + 1, unknown) if is_known else (known, unknown + 1)
    return known, unknown


def _tables_inside(item: Field, value: Any) -> Iterator[tuple[Table, Any]]:
    """Each table in the value of a key, with its schema. An array of tables counts as one."""
    for shape in shapes_of(item.shape):
        match shape, value:
            case (Table() as table, dict()) | (Array(item=Table() as table), list()):
                yield table, value
            case Map(item=Table() as table), dict():
                yield from ((table, each) for each in value.values())


@cache
def installed_generation() -> tuple[str, str] | None:
    """(generation, version) of the prime-rl that this interpreter would import; None if there is none.

    Reads the names of the .dist-info folders, because importing importlib.metadata is too slow for a lint.
    """
    for folder in sys.path:
        try:
            names = os.listdir(folder or ".")
        except OSError:
            continue
        for name in names:
            if not name.startswith("prime_rl-"):  # a folder of packages has hundreds
                continue
            match = re.fullmatch(r"prime_rl-([0-9][^-]*)\.dist-info", name)
            if match:
                version = match.group(1)
                released = (name for name in generations() if _numbers(load(name).first_release) <= _numbers(version))
                newest = max(released, default=None)
                return None if newest is None else (newest, version)
    return None


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])
