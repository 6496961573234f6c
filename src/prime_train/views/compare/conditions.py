"""The columns in a table of runs, and the conditions and orders that a person may ask for. Pure.

A condition is a column or a key in the config, a sign `= != < <= > >=`, and a value: `state=failed`, `optim.lr>1e-4`,
`best=none`. A value that is not known fulfils no condition but `=none`. Nothing is evaluated: a text is compared with
`=` and `!=`, a number with all six.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from prime_train.core.errors import UserError
from prime_train.core.units import counted
from prime_train.toml.did_you_mean import nearest
from prime_train.views.compare.rows import RunRow, keys_of

_CONDITION = re.compile(r"\s*([\w.-]+?)\s*(!=|<=|>=|=|<|>)\s*(.*?)\s*", re.DOTALL)
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_FORM = "'COLUMN=VALUE', with a sign = != < <= > >="
_LISTED = 40  # more names do not fit into a message

COLUMNS: dict[str, Callable[[RunRow], Any]] = {
    "name": lambda row: row.name,
    "kind": lambda row: row.kind,
    "model": lambda row: row.model,
    "state": lambda row: row.state,
    "started": lambda row: row.began_s,  # seconds since the epoch
    "step": lambda row: row.step,
    "max_steps": lambda row: row.max_steps,
    "metric": lambda row: row.metric,
    "best": lambda row: row.best and row.best.value,
    "last": lambda row: row.last,
    "held_out": lambda row: row.held_out,
    "tokens_per_s": lambda row: row.tokens_per_s,
    "usd": lambda row: row.usd and row.usd.typical,
    "wandb": lambda row: row.wandb,
}
_TEXTS = frozenset({"name", "kind", "model", "state", "metric", "wandb"})


class _RowCondition(NamedTuple):
    key: str
    sign: str
    word: str
    written: str


def keep(rows: Sequence[RunRow], conditions: Iterable[str]) -> list[RunRow]:
    """The rows that fulfil every condition. Raises UserError for one that fits no run here."""
    kept = list(rows)
    for written in conditions:
        condition = _parse(written)
        values = _values(rows, condition.key, written)
        kept = [row for row in kept if _fulfils(values[id(row)], condition)]
    return kept


def sort(rows: Sequence[RunRow], order: str) -> list[RunRow]:
    """The rows by a column or a key, downwards if it begins with "-"; rows without the value last."""
    values = _values(rows, order.removeprefix("-"), order)
    known = [row for row in rows if values[id(row)] is not None]
    known.sort(key=lambda row: _rank(values[id(row)]), reverse=order.startswith("-"))
    return [*known, *(row for row in rows if values[id(row)] is None)]


def _parse(written: str) -> _RowCondition:
    found = _CONDITION.fullmatch(written)
    if found is None:
        why = f"a condition is {_FORM}"
        raise UserError("it is no condition", f"--where {written!r}", why, "--where 'optim.lr>1e-4'")
    return _RowCondition(found[1], found[2], found[3], written)


def _values(rows: Sequence[RunRow], key: str, written: str) -> dict[int, Any]:
    """The value in a column or under a key for each row, by the identity of the row."""
    if key in COLUMNS:
        return {id(row): COLUMNS[key](row) for row in rows}
    configs = {id(row): keys_of(row.config) for row in rows}
    known = {name for config in configs.values() for name in config}
    if key not in known:
        raise _unknown_error(key, known, written)
    return {place: config.get(key) for place, config in configs.items()}


def _unknown_error(key: str, keys: set[str], written: str) -> UserError:
    beside = sorted(name for name in keys if name.partition(".")[0] == key.partition(".")[0])[:_LISTED]
    why = f"the columns are {', '.join(COLUMNS)}"
    why += f"; the keys of {key.partition('.')[0]} are {', '.join(beside)}" if beside else "; or a key as optim.lr"
    meant = nearest(key, (*COLUMNS, *sorted(keys)))
    fix = f"did you mean {meant}?" if meant else "use one of these names"
    return UserError(f"{key} is no column, and no key in the config of these runs", written, why, fix)


def _fulfils(value: Any, condition: _RowCondition) -> bool:
    word, sign = condition.word, condition.sign
    if word.lower() in ("none", "null") and sign in ("=", "!="):
        return (value is None) is (sign == "=")
    if value is None:
        return False
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _COMPARE[sign](value, _number(word, condition))
    if sign not in ("=", "!="):
        why = "only a number is less or more than another one"
        raise UserError(
            f"{condition.key} is no number: {_shown(value)}", condition.written, why, "compare with = or !="
        )
    return _COMPARE[sign](_shown(value).lower() if isinstance(value, bool) else _shown(value), _plain(word))


def _plain(word: str) -> str:
    lowered = word.lower()
    if lowered in ("true", "false"):
        return lowered
    is_quoted = len(word) > 1 and word[0] == word[-1] and word[0] in "\"'"
    return word[1:-1] if is_quoted else word


def _number(word: str, condition: _RowCondition) -> float:
    try:
        found = float(word.replace("_", ""))
    except ValueError:
        found = float("nan")
    if found != found:  # nan equals nothing, so a condition with it would have no meaning
        what = f"{word or 'nothing'} is no number, and {condition.key} is one"
        raise UserError(what, condition.written, "numbers are compared with numbers", f"{condition.key}=3, or =none")
    return found


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _rank(value: Any) -> tuple[bool, Any]:
    """Numbers before texts, so that any two values can be compared."""
    is_number = isinstance(value, int | float)
    return (not is_number, value if is_number else _shown(value))


def describe_filter(conditions: Sequence[str], runs: int) -> str:
    """The note where no run is left."""
    return f"none of {counted(runs, 'run')} fulfils {' and '.join(conditions)}"
