"""Which `arguments` the built-in environments have, and whether those of a config fit. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from prime_train.core.errors import UserError
from prime_train.spec.rl import TaskSource


@dataclass(frozen=True, slots=True)
class Argument:
    """A number that an environment can be opened with. An int default allows only whole numbers."""

    default: int | float
    low: int | float
    high: int | float
    meaning: str


@dataclass(frozen=True, slots=True)
class ArgumentFault:
    """An argument that does not fit, and what to change."""

    name: str
    what: str
    why: str
    fix: str


ARGUMENTS: Mapping[str, Mapping[str, Argument]] = {
    "reverse-text": {
        "min_letters": Argument(2, 2, 256, "Letters of the shortest text."),
        "max_letters": Argument(6, 2, 256, "Letters of the longest text."),
        "alphabet": Argument(26, 5, 26, "Different letters that the texts use, from a on."),  # fewer: none is held out
    },
    "sort-digits": {
        "min_digits": Argument(2, 2, 256, "Digits of the shortest text."),
        "max_digits": Argument(6, 2, 256, "Digits of the longest text."),
    },
    "calculator": {
        "min_numbers": Argument(2, 2, 8, "Numbers in the shortest expression."),
        "max_numbers": Argument(2, 2, 8, "Numbers in the longest expression."),
        "max_number": Argument(99, 9, 9999, "Largest number in an expression."),
        "tool_delay_s": Argument(0.0, 0.0, 3600.0, "Seconds that each call of the calculator sleeps."),
    },
}


def find_faults(source: TaskSource) -> Iterator[ArgumentFault]:
    """The faults in the arguments of a built-in environment. A taskset of verifiers judges its own."""
    if source.kind == "verifiers":
        return
    known, given = ARGUMENTS.get(source.kind, {}), source.arguments or {}
    for name, value in given.items():
        if name not in known:
            nearest = get_close_matches(name, known, n=1)
            yield ArgumentFault(
                name,
                f"the environment {source.kind} has no argument {name!r}",
                f"it has {', '.join(known) or 'none'}",
                f"use {nearest[0]}" if nearest else f"remove {name}",
            )
            continue
        argument = known[name]
        whole = isinstance(argument.default, int)
        if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
            yield ArgumentFault(
                name,
                f"{name} = {value!r} is not a {'whole number' if whole else 'number'}",
                f"it is: {argument.meaning}",
                f"{name} = {argument.default}",
            )
        elif not argument.low <= value <= argument.high:  # also refuses nan
            yield ArgumentFault(
                name,
                f"{name} = {value} is not between {argument.low} and {argument.high}",
                f"it is: {argument.meaning}",
                f"{name} = {min(max(value, argument.low), argument.high) if value == value else argument.default}",
            )
    yield from _find_empty_range(source)


def read_arguments(source: TaskSource) -> dict[str, int | float]:
    """Every argument of a built-in environment, with defaults. Raises UserError for the first fault."""
    fault = next(find_faults(source), None)
    if fault is not None:
        where = f'[[tasks]] kind = "{source.kind}", arguments.{fault.name}'
        raise UserError(what=fault.what, where=where, why=fault.why, fix=fault.fix)
    return _with_defaults(source)


def _with_defaults(source: TaskSource) -> dict[str, int | float]:
    """The numbers among the arguments. A default maximum is raised to a given minimum, and the other way round."""
    known, given = ARGUMENTS.get(source.kind, {}), source.arguments or {}
    values = {name: argument.default for name, argument in known.items()}
    values |= {name: value for name, value in given.items() if name in known and not isinstance(value, str)}
    for low, high in _ranges(source.kind):
        if high not in given:
            values[high] = max(values[low], values[high])
        elif low not in given:
            values[low] = min(values[low], values[high])
    return values


def _find_empty_range(source: TaskSource) -> Iterator[ArgumentFault]:
    """The faults of ranges whose two ends are within their own bounds: any other end has a fault already."""
    known, values = ARGUMENTS.get(source.kind, {}), _with_defaults(source)
    for low, high in _ranges(source.kind):
        if known[low].low <= values[high] < values[low] <= known[high].high:
            what = f"{low} = {values[low]} is above {high} = {values[high]}"
            yield ArgumentFault(low, what, "no task can have such a size", f"{high} = {values[low]}")


def _ranges(kind: str) -> list[tuple[str, str]]:
    """The pairs of minimum and maximum, for example min_letters and max_letters."""
    known = ARGUMENTS.get(kind, {})
    pairs = [(name, name.replace("min_", "max_")) for name in known if name.startswith("min_")]
    return [pair for pair in pairs if pair[1] in known]
