"""The values of a verdict on a model: checks, each with a fix, and one verdict per use. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple


class Outcome(StrEnum):
    """The result of a check, from best to worst. NOT_KNOWN is worse than a warning and better than a failure."""

    OK = "ok"
    WARNING = "warning"
    NOT_KNOWN = "not known"
    FAILURE = "failure"


class Check(NamedTuple):
    """The result of one check. `what` has the numbers; `why` and `fix` are "" if the check passed."""

    id: str
    outcome: Outcome
    what: str
    why: str = ""
    fix: str = ""


class Use(NamedTuple):
    """Whether the model can be used for `id`: "rl", "sft" or "pretraining". `because`: ids of the deciding checks."""

    id: str
    outcome: Outcome
    what: str
    fix: str
    because: tuple[str, ...] = ()


class Verdict(NamedTuple):
    """All results for one model. `numbers` are for programs that read the JSON: parameters, bytes, context."""

    model: str
    origin: str
    revision: str
    checks: tuple[Check, ...]
    uses: tuple[Use, ...]
    numbers: Mapping[str, float | int | str | None]

    @property
    def usable(self) -> bool:
        """Whether at least one use is not ruled out by a failure."""
        return any(use.outcome is not Outcome.FAILURE for use in self.uses)


def ok(check_id: str, what: str) -> Check:
    return Check(check_id, Outcome.OK, what)


def warning(check_id: str, what: str, why: str, fix: str) -> Check:
    return Check(check_id, Outcome.WARNING, what, why, fix)


def failure(check_id: str, what: str, why: str, fix: str) -> Check:
    return Check(check_id, Outcome.FAILURE, what, why, fix)


def not_known(check_id: str, what: str, fix: str = "") -> Check:
    return Check(check_id, Outcome.NOT_KNOWN, what, "", fix)
