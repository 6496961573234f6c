"""What a rule is: a function of a RunSpec, and of Facts where it needs some, with its documentation. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from prime_train.config.parsed_config import Fault, Reading
from prime_train.core.findings import Problem, Severity
from prime_train.spec import RunSpec
from prime_train.spec.answers import part_of

if TYPE_CHECKING:
    from prime_train.facts.facts import Facts, NotKnown, PartPackage

T = TypeVar("T")
C = TypeVar("C", bound=Callable[..., object])
Problems = Iterator[Problem]
RunCheck = Callable[[RunSpec], Problems]
FactsCheck = Callable[[RunSpec, "Facts"], Problems]
SharperCheck = Callable[[RunSpec, "Facts | None"], Problems]
FileCheck = Callable[[Reading], Iterator[Fault]]
Judge = Callable[[Reading, "Facts | None"], Problems | Iterator[Fault]]


class Rule(NamedTuple):
    """One rule. `doc` is its explain page, its entry in docs/rules.md and its tests (see explain.py).

    `check` gets a reading with a RunSpec if `reads_run`, and facts if `needs` is not empty. `uses` are facts that make
    its judgement more exact; it judges without them too.
    """

    code: str
    severity: Severity
    needs: tuple[str, ...]  # fields of Facts
    reads_run: bool
    check: Judge
    name: str
    family: str  # its module below this package: "training.bat_batch"
    doc: str
    uses: tuple[str, ...] = ()


RULES: dict[str, Rule] = {}


def rule(code: str, severity: Severity) -> Callable[[RunCheck], RunCheck]:
    """Registers a rule that judges the config alone."""
    return _register(code, severity, lambda check: lambda reading, _: check(_present(reading.run)))


def facts_rule(
    code: str, severity: Severity, needs: tuple[str, ...], uses: tuple[str, ...] = ()
) -> Callable[[FactsCheck], FactsCheck]:
    """Registers a rule that judges the config on a machine. It is skipped if a fact it needs is not known.

    `uses` are further facts that it reads if they are known: see `if_known`.
    """

    def bind(check: FactsCheck) -> Judge:
        return lambda reading, facts: check(_present(reading.run), _present(facts))

    return _register(code, severity, bind, needs, uses)


def sharper_rule(code: str, severity: Severity, uses: tuple[str, ...]) -> Callable[[SharperCheck], SharperCheck]:
    """Registers a rule that judges the config alone, and more exactly if facts are known: see `if_known`."""
    return _register(code, severity, lambda check: lambda reading, facts: check(_present(reading.run), facts), (), uses)


def file_rule(code: str, severity: Severity) -> Callable[[FileCheck], FileCheck]:
    """Registers a rule that finds faults in the file itself."""
    return _register(code, severity, lambda check: lambda reading, _: check(reading), reads_run=False)


def reader_rule(code: str, severity: Severity) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Registers a rule whose faults the reader of the file finds: the function has only its name and documentation."""

    def bind(_: Callable[[], None]) -> Judge:
        return lambda reading, _: (fault for fault in reading.faults if fault.code == code)

    return _register(code, severity, bind, reads_run=False)


def _register(
    code: str,
    severity: Severity,
    bind: Callable[[C], Judge],
    needs: tuple[str, ...] = (),
    uses: tuple[str, ...] = (),
    *,
    reads_run: bool = True,
) -> Callable[[C], C]:
    def add(check: C) -> C:
        if code in RULES:
            raise ValueError(f"two rules are called {code}: {RULES[code].name} and {check.__name__}")
        family, doc = check.__module__.removeprefix(f"{__package__}."), check.__doc__ or ""
        RULES[code] = Rule(code, severity, needs, reads_run, bind(check), check.__name__, family, doc, uses)
        return check

    return add


def _present(value: T | None) -> T:
    assert value is not None
    return value


def suggest(
    at: str,
    what: str,
    value: Any,
    *,
    fix: str = "",
    why: str = "",
    severity: Severity | None = None,
    safe: bool = False,
) -> Problem:
    """A problem that another value of its own field solves; None takes the key out."""
    return Problem(at, what, fix, {at: value}, why, severity, safe)


def unused(at: str, value: object, why: str, fix: str = "take it out") -> Problem:
    """A problem of a value that has no effect, because of another setting."""
    return suggest(at, f"{value} is not used: {why}", None, fix=fix, safe=True)


def lacks(at: str, kind: str, key: str, example: str) -> Problem:
    """A problem of an entry without a key that its kind needs."""
    return Problem(f"{at}.{key}", f'kind = "{kind}" has no {key}', fix=f"for example {example}")


def values_of(run: RunSpec, *fields: str) -> tuple[Any, ...] | None:
    """The values of fields, each in a part of the run; None if one of them is not set."""
    values = tuple(getattr(part_of(run, part), name, None) for part, name in (field.split(".") for field in fields))
    return None if None in values else values


def must_agree(run: RunSpec, at: str, other: str) -> Problems:
    """A problem if two fields, each in a part of a prime-rl run, are both set and differ."""
    value, expected = values_of(run, at, other) or (None, None)
    if value != expected:
        texts = [f"{one:g}" if isinstance(one, float) else str(one) for one in (value, expected)]
        yield suggest(at, f"{texts[0]} is not `{other}` {texts[1]}", expected)


def must_not_come_after_the_end(at: str, what: str, interval: int | None, max_steps: int) -> Problems:
    """A problem if the first of what is due at an interval is due after the last step."""
    if interval is not None and interval > max_steps:
        found = f"the first {what} is due at step {interval}, and `run.max_steps` is {max_steps}"
        yield suggest(at, found, max(1, max_steps // 10))


def must_be_installed(facts: Facts, field: str, fix: Callable[[PartPackage], str]) -> Problems:
    """A problem for each package that a part below the field needs and cannot use."""
    for part in known(facts.part_packages):
        if part.field.startswith(field) and part.fault:
            yield Problem(part.field, f"{part.python} cannot use {part.package}: {part.fault}", fix=fix(part))


def known(fact: T | NotKnown) -> T:
    """The fact itself. Raises ValueError if it is not known, because a rule runs only if every fact it needs is."""
    from prime_train.facts.facts import NotKnown  # here, because a lint has no facts and does not load them

    if isinstance(fact, NotKnown):
        raise ValueError(f"a rule reads a fact that it does not name in `needs`: {fact.reason}")
    return fact


def if_known(facts: Facts | None, name: str) -> Any:
    """The fact of that name; None if there are no facts, or it is not known, or is None itself."""
    if facts is None:
        return None
    from prime_train.facts.facts import NotKnown

    fact = getattr(facts, name)
    return None if isinstance(fact, NotKnown) else fact
