"""The values of a verdict on a model: checks, each with a fix, and one verdict per use. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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


class ModelUse(NamedTuple):
    """Whether the model can be used for `id`: "rl", "sft" or "pretraining". `because`: ids of the deciding checks."""

    id: str
    outcome: Outcome
    what: str
    fix: str
    because: tuple[str, ...] = ()


class ModelVerdict(NamedTuple):
    """All results for one model. `numbers` are for programs that read the JSON: parameters, bytes, context.

    `is_damaged`: there are weights, and they are incomplete or do not match config.json.
    """

    model: str
    origin: str
    revision: str
    checks: tuple[Check, ...]
    uses: tuple[ModelUse, ...]
    numbers: Mapping[str, float | int | str | None]
    is_damaged: bool = False

    @property
    def usable(self) -> bool:
        """Whether at least one use is not ruled out by a failure. Damaged weights are never usable."""
        return not self.is_damaged and any(use.outcome is not Outcome.FAILURE for use in self.uses)


def ok(check_id: str, what: str) -> Check:
    return Check(check_id, Outcome.OK, what)


def warning(check_id: str, what: str, why: str, fix: str) -> Check:
    return Check(check_id, Outcome.WARNING, what, why, fix)


def failure(check_id: str, what: str, why: str, fix: str) -> Check:
    return Check(check_id, Outcome.FAILURE, what, why, fix)


def not_known(check_id: str, what: str, fix: str = "") -> Check:
    return Check(check_id, Outcome.NOT_KNOWN, what, "", fix)


LABELS = {"rl": "RL", "sft": "SFT", "pretraining": "pretraining"}
# A failure of a required check rules the use out; any other bad check only makes it a warning.
_REQUIRED = {
    "rl": ("access", "config", "weights", "quantisation", "tokenizer", "vocabulary", "vllm", "chat-template"),
    "sft": ("access", "config", "weights", "quantisation", "tokenizer", "vocabulary"),
    "pretraining": ("access", "config", "tokenizer", "vocabulary"),
}
_ADVISORY = {
    "rl": ("multi-turn", "turn-end", "tools", "tool-parser", "context", "kind", "remote-code", "known-issues"),
    "sft": ("chat-template", "kind", "remote-code", "known-issues"),
    "pretraining": ("remote-code",),
}
_TRAINERS = {"rl": ("prime-rl",), "sft": ("bundled-trainer", "prime-rl"), "pretraining": ("bundled-trainer",)}
_TEXTS = {
    Outcome.OK: "can be used",
    Outcome.WARNING: "can be used, with warnings",
    Outcome.NOT_KNOWN: "may be usable: not every check was possible",
    Outcome.FAILURE: "cannot be used",
}


def judge_uses(checks: Iterable[Check]) -> tuple[ModelUse, ...]:
    """RL, SFT and pretraining, in this order."""
    by_id = {check.id: check for check in checks}
    return tuple(_use(use, by_id) for use in LABELS)


def _use(use: str, checks: Mapping[str, Check]) -> ModelUse:
    required = [checks[name] for name in _REQUIRED[use] if name in checks]
    advisory = [checks[name] for name in _ADVISORY[use] if name in checks]
    trainer = _trainer(use, checks)
    failures = [check for check in required if check.outcome is Outcome.FAILURE]
    if trainer is not None and trainer.outcome is Outcome.FAILURE:
        failures.append(trainer)
    if failures:
        return _verdict(use, Outcome.FAILURE, failures)
    unknown = [check for check in required if check.outcome is Outcome.NOT_KNOWN]
    if unknown:
        return _verdict(use, Outcome.NOT_KNOWN, unknown)
    warnings = [check for check in (*required, *advisory) if check.outcome in (Outcome.WARNING, Outcome.FAILURE)]
    if trainer is not None and trainer.outcome is Outcome.WARNING:
        warnings.append(trainer)
    return _verdict(use, Outcome.WARNING if warnings else Outcome.OK, warnings)


def _trainer(use: str, checks: Mapping[str, Check]) -> Check | None:
    """The check of the best trainer. A warning of the bundled trainer means that it does not support the model."""
    found = [_for_use(use, checks[name]) for name in _TRAINERS[use] if name in checks]
    return min(found, key=lambda check: list(Outcome).index(check.outcome)) if found else None


def _for_use(use: str, check: Check) -> Check:
    if check.id != "bundled-trainer" or check.outcome is not Outcome.WARNING:
        return check
    fix = "use a Llama or a Qwen3 shape: the bundled trainer can pretrain those" if use == "pretraining" else check.fix
    return check._replace(outcome=Outcome.FAILURE, fix=fix)


def _verdict(use: str, outcome: Outcome, because: list[Check]) -> ModelUse:
    names = tuple(dict.fromkeys(check.id for check in because))
    reasons = f" ({', '.join(names)})" if names else ""
    fix = next((check.fix for check in because if check.fix), "")
    return ModelUse(use, outcome, f"{_TEXTS[outcome]}{reasons}", fix, names)
