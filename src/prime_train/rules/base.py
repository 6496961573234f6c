"""What a rule is: a function of a RunSpec, and of Facts where it needs some, with its documentation. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from prime_train.dialects.reading import Fault, Reading
from prime_train.findings import Problem, Severity
from prime_train.spec import RunSpec

if TYPE_CHECKING:
    from prime_train.facts.facts import Facts, NotKnown

T = TypeVar("T")
RunCheck = Callable[[RunSpec], Iterator[Problem]]
FactsCheck = Callable[[RunSpec, "Facts"], Iterator[Problem]]
SharperCheck = Callable[[RunSpec, "Facts | None"], Iterator[Problem]]
FileCheck = Callable[[Reading], Iterator[Fault]]


class Rule(NamedTuple):
    """One rule. `doc` is its explain page, its entry in docs/rules.md and its tests (see explain.py).

    `check` gets a reading with a RunSpec if `reads_run`, and facts if `needs` is not empty. `uses` are facts that make
    its judgement more exact; it judges without them too.
    """

    code: str
    severity: Severity
    needs: tuple[str, ...]  # fields of Facts
    reads_run: bool
    check: Callable[[Reading, Facts | None], Iterator[Problem | Fault]]
    name: str
    family: str  # the name of its module
    doc: str
    uses: tuple[str, ...] = ()


RULES: dict[str, Rule] = {}


def rule(code: str, severity: Severity) -> Callable[[RunCheck], RunCheck]:
    """Registers a rule that judges the config alone."""

    def register(check: RunCheck) -> RunCheck:
        def judge(reading: Reading, _: Facts | None) -> Iterator[Problem]:
            assert reading.run is not None
            return check(reading.run)

        _add(code, severity, check, judge)
        return check

    return register


def facts_rule(
    code: str, severity: Severity, needs: tuple[str, ...], uses: tuple[str, ...] = ()
) -> Callable[[FactsCheck], FactsCheck]:
    """Registers a rule that judges the config on a machine. It is skipped if a fact it needs is not known.

    `uses` are further facts that it reads if they are known: see `if_known`.
    """

    def register(check: FactsCheck) -> FactsCheck:
        def judge(reading: Reading, facts: Facts | None) -> Iterator[Problem]:
            assert reading.run is not None
            assert facts is not None
            return check(reading.run, facts)

        _add(code, severity, check, judge, needs, uses)
        return check

    return register


def sharper_rule(code: str, severity: Severity, uses: tuple[str, ...]) -> Callable[[SharperCheck], SharperCheck]:
    """Registers a rule that judges the config alone, and more exactly if facts are known: see `if_known`."""

    def register(check: SharperCheck) -> SharperCheck:
        def judge(reading: Reading, facts: Facts | None) -> Iterator[Problem]:
            assert reading.run is not None
            return check(reading.run, facts)

        _add(code, severity, check, judge, uses=uses)
        return check

    return register


def file_rule(code: str, severity: Severity) -> Callable[[FileCheck], FileCheck]:
    """Registers a rule that reports faults of the file itself, found by its reader or by the rule."""

    def register(check: FileCheck) -> FileCheck:
        _add(code, severity, check, lambda reading, _: check(reading), reads_run=False)
        return check

    return register


def _add(
    code: str,
    severity: Severity,
    check: Callable[..., object],
    judge: Callable[[Reading, Facts | None], Iterator[Problem | Fault]],
    needs: tuple[str, ...] = (),
    uses: tuple[str, ...] = (),
    *,
    reads_run: bool = True,
) -> None:
    if code in RULES:
        raise ValueError(f"two rules are called {code}: {RULES[code].name} and {check.__name__}")
    family = check.__module__.rpartition(".")[2]
    RULES[code] = Rule(code, severity, needs, reads_run, judge, check.__name__, family, check.__doc__ or "", uses)


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
