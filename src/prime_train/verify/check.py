"""The values a verdict on a model is made of: checks, each with what to do, and one verdict per use. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple


class Outcome(StrEnum):
    """How a check came out, from good to bad; what is not known lies between a warning and a failure."""

    OK = "ok"
    WARNING = "warning"
    NOT_KNOWN = "not known"
    FAILURE = "failure"


class Check(NamedTuple):
    """One thing that was looked at. `what` has the figures; `why` and `fix` are "" where all is well."""

    id: str
    outcome: Outcome
    what: str
    why: str = ""
    fix: str = ""


class Use(NamedTuple):
    """Whether the model can be used so: "rl", "sft" or "pretraining". `because` are ids of the checks that decide."""

    id: str
    outcome: Outcome
    what: str
    fix: str
    because: tuple[str, ...] = ()


class Verdict(NamedTuple):
    """All that was judged of one model. `numbers` are figures for programs: parameters, bytes, context."""

    model: str
    origin: str
    revision: str
    checks: tuple[Check, ...]
    uses: tuple[Use, ...]
    numbers: Mapping[str, float | int | str | None]

    @property
    def usable(self) -> bool:
        """Whether it can be used for anything at all, or may be: what is not known refuses nothing."""
        return any(use.outcome is not Outcome.FAILURE for use in self.uses)


def ok(check_id: str, what: str) -> Check:
    return Check(check_id, Outcome.OK, what)


def warning(check_id: str, what: str, why: str, fix: str) -> Check:
    return Check(check_id, Outcome.WARNING, what, why, fix)


def failure(check_id: str, what: str, why: str, fix: str) -> Check:
    return Check(check_id, Outcome.FAILURE, what, why, fix)


def not_known(check_id: str, what: str, fix: str = "") -> Check:
    return Check(check_id, Outcome.NOT_KNOWN, what, "", fix)
