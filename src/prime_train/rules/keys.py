"""Finds the rules on a key of a config, of a run.toml, a recipe or any generation of prime-rl. Judges no file.

A rule is on a key if its function names the key's RunSpec field or reads it. Where it makes the name of the field
itself, its examples show the key. Both are in the text of the rule, so a rule has no list of keys beside it. Rules that
read the file instead of the RunSpec hold for every key, and are on none.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from prime_train.config import recipe, run_toml
from prime_train.config.prime_rl.field_values import split_mark
from prime_train.config.prime_rl.schema import generations, load
from prime_train.config.schema import Table, table_below
from prime_train.rules.explain import BASES, SCRIPT, base_of, explain
from prime_train.rules.families import load_all
from prime_train.rules.rule import Rule
from prime_train.toml.did_you_mean import nearest
from prime_train.toml.document import dotted

_PACKAGE = Path(__file__).parent.parent
_FOLLOWED = ("prime_train.rules.", "prime_train.spec.")  # where a rule may leave the name of a field to
_FIELD = re.compile(r"[a-z_]\w*(?:\.(?:\*|\w+))+")
_WORD = re.compile(r"\w+")
_NEAR = 3  # legal keys that are suggested for an unknown one


def find_rules(key: str) -> tuple[Rule, ...]:
    """The rules on a key or on keys below it, by their codes. Numbers in the key are indices, and do not count."""
    wanted = _without_indices(key)
    legal = {each: fields for each, fields in _fields_by_key().items() if _is_at(each, wanted)}
    found = (rule for rule in load_all().values() if rule.reads_run and _is_on(rule, wanted, legal))
    return tuple(sorted(found, key=lambda rule: rule.code))


def _is_on(rule: Rule, wanted: str, legal: Mapping[str, frozenset[str]]) -> bool:
    text = _text_of(rule)
    shown = [key for key in _keys_of_examples(rule) if _is_at(key, wanted)]
    for field in (field for fields in legal.values() for field in fields):
        is_made = f"{field.rpartition('.')[0]}.*" in text.fields and (shown or _last(field) in text.words)
        if field in text.fields or is_made:
            return True
    # An example may also set keys that only keep other rules silent: the function has no word for them.
    return any(not text.words.isdisjoint(_last_words(key, legal.get(key))) for key in shown)


def _last_words(key: str, fields: frozenset[str] | None) -> set[str]:
    """The last names of a key and its fields; also the name before it if the key is a free one, as of an argument."""
    if fields is None:
        return set(key.split(".")[-2:])
    return {_last(name) for name in (key, *fields)}


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def is_key(key: str) -> bool:
    """Whether a run.toml or a prime-rl file of any generation may have the key, or an example of a rule has it."""
    return _without_indices(key) in _fields_by_key() or bool(find_rules(key))


def find_near_keys(key: str) -> tuple[str, ...]:
    """The legal keys that are most like an unknown one."""
    legal = sorted(_fields_by_key())
    near = [nearest(key, legal), *get_close_matches(key, legal, _NEAR)]
    return tuple(dict.fromkeys(each for each in near if each is not None))[:_NEAR]


def _without_indices(key: str) -> str:
    """Example: "data.sources.0.path" -> "data.sources.path". A "*" in the middle is an index that the code makes."""
    *around, last = key.split(".")
    return ".".join(
        (*(part for part in around if not part.isdigit() and part != "*"), *([] if last.isdigit() else [last]))
    )


def _is_at(key: str, around: str) -> bool:
    return key == around or key.startswith(f"{around}.")


# --- keys and their fields -----------------------------------------------------------------------


@cache
def _fields_by_key() -> Mapping[str, frozenset[str]]:
    """Legal key -> the RunSpec fields that it sets."""
    found: dict[str, set[str]] = {}
    for key, path in (
        each for table in (run_toml.schema(), run_toml.command_schema(), recipe.schema()) for each in _walk(table, ())
    ):
        found.setdefault(".".join(key), set()).add(".".join(path))
    for name, own_key in run_toml.read(_WITH_SERVER, "run.toml").keys.items():
        found.setdefault(own_key, set()).add(name)
    for generation in map(load, generations()):
        for root in generation.roots:
            for key, _ in _walk(generation.roots[root], ()):
                found.setdefault(".".join(key), set())
            for name, candidates in generation.feeds.get(root, {}).items():
                for candidate in candidates:
                    found.setdefault(dotted(split_mark(candidate)[1]), set()).add(name)
    return {key: frozenset(fields) for key, fields in found.items()}


_WITH_SERVER = BASES["rl"] + "[inference]\n"


def _walk(table: Table, at: tuple[tuple[str, str], ...]) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    """(key path, path in the RunSpec) of every field, also of the elements of arrays."""
    for item in table.fields.values():
        here = (*at, (item.key, item.name))
        yield tuple(key for key, _ in here), tuple(name for _, name in here)
        below, _ = table_below(item.shape)
        if below is not None:
            yield from _walk(below, here)


# --- what an example sets ------------------------------------------------------------------------


@cache
def _keys_of_examples(rule: Rule) -> frozenset[str]:
    """The keys that make the rule fire: those that its Bad and Good examples on one base do not share."""
    page = explain(rule)
    good = [(base_of(text), _set_keys(text)) for text in page.good]
    keys: set[str] = set()
    for text in page.bad:
        here = _set_keys(text)
        shared = [here & other for base, other in good if base == base_of(text)]
        keys |= {key for key, _ in here - set().union(*shared)}
    return frozenset(keys)


def _set_keys(example: str) -> set[tuple[str, str]]:
    """(key, value as text) of each key that an overlay sets; none of a script. [facts] are about the machine."""
    values = {} if base_of(example) == SCRIPT else _parse(example)
    return {(key, value) for key, value in _leaves(values, "") if not _is_at(key, "facts")}


def _parse(example: str) -> dict[str, Any]:
    try:
        return tomllib.loads(example)
    except tomllib.TOMLDecodeError:  # the example of a rule on syntax
        return {}


def _leaves(value: Any, at: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for name, below in value.items():
            yield from _leaves(below, f"{at}.{name}" if at else name)
    elif isinstance(value, list) and any(isinstance(each, dict) for each in value):
        for each in value:
            yield from _leaves(each, at)
    else:
        yield at, str(value)


# --- what a function names and reads -------------------------------------------------------------


class _Text(NamedTuple):
    """What is in the text of a function or a constant of a module.

    `fields` are names with a dot, as RunSpec fields have them; "rl.*" where the code makes the last name. `uses` are
    the functions and constants of ours that it names, each with its module.
    """

    fields: frozenset[str]
    words: frozenset[str]
    uses: frozenset[tuple[str, str]]


@cache
def _text_of(rule: Rule) -> _Text:
    """The text of a rule with that of the functions and constants of rules and spec that it uses."""
    found: dict[tuple[str, str], _Text] = {}
    left = {(f"rules.{rule.family}", rule.name)}
    while left:
        found |= {(module, name): _definitions(module)[name] for module, name in left}
        used = {use for each in left for use in found[each].uses} - found.keys()
        left = {(module, name) for module, name in used if name in _definitions(module)}
    fields, words, uses = (frozenset().union(*parts) for parts in zip(*found.values(), strict=True))
    return _Text(fields | _fields_of_facts(rule), words, uses)


def _fields_of_facts(rule: Rule) -> set[str]:
    """The fields that facts name in the examples of a rule: it reports at the field of the fact."""
    texts = [text for text in explain(rule).bad if base_of(text) != SCRIPT]
    facts = (_leaves(_parse(text).get("facts", {}), "") for text in texts)
    return {_without_indices(value) for pairs in facts for key, value in pairs if _last(key) == "field"}


@cache
def _definitions(module: str) -> dict[str, _Text]:
    """The functions and constants of a module of rules or spec, such as "rules.training.run_needs", by their names."""
    path = _PACKAGE.joinpath(*module.split(".")).with_suffix(".py")
    if not path.exists():  # a package, which only exports
        return {}
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    named = [(target, node) for node in tree.body if isinstance(node, ast.Assign) for target in node.targets]
    constants = {target.id: node for target, node in named if isinstance(target, ast.Name)}
    imported = {
        each.name: (node.module.removeprefix("prime_train."), each.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith(_FOLLOWED)
        for each in node.names
        if node.module is not None
    }
    where = imported | {name: (module, name) for name in (*found, *constants)}
    return {name: _read(node, where) for name, node in (found | constants).items()}


def _read(definition: ast.FunctionDef | ast.Assign, where: Mapping[str, tuple[str, str]]) -> _Text:
    fields: set[str] = set()
    words: set[str] = set()
    uses: set[tuple[str, str]] = set()
    for node in _without_docstring(definition):
        match node:
            case ast.JoinedStr(values=parts):
                text = "".join(str(part.value) if isinstance(part, ast.Constant) else "*" for part in parts)
                fields.update(_without_indices(name) for name in _FIELD.findall(text))
            case ast.Constant(value=str() as text):
                fields.update(_without_indices(name) for name in _FIELD.findall(text))
                words.update(_WORD.findall(text))
            case ast.Attribute():
                # `run.optim.lr` reads optim.lr, and so does `optim.lr` of a variable that is called as the part.
                names = ast.unparse(node).split(".")
                fields.update(map(".".join, pairwise(names)))
                words.update(names)
                if names[0] in where:  # a function of an imported module
                    uses.add((".".join(where[names[0]]), names[1]))
            case ast.Name(id=name) if name in where:
                uses.add(where[name])
    return _Text(frozenset(fields), frozenset(words), frozenset(uses))


def _without_docstring(definition: ast.FunctionDef | ast.Assign) -> Iterable[ast.AST]:
    if isinstance(definition, ast.Assign):
        return ast.walk(definition.value)
    body = definition.body[1:] if ast.get_docstring(definition) is not None else definition.body
    return (node for statement in body for node in ast.walk(statement))
