"""A verdict for RL, SFT and pretraining each, out of the checks. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prime_train.verify.check import Check, Outcome, Use

_LABELS = {"rl": "RL", "sft": "SFT", "pretraining": "pretraining"}
# What a use cannot do without, and what it can do without at a price.
_NEEDS = {
    "rl": ("access", "config", "weights", "quantisation", "tokenizer", "vocabulary", "vllm", "chat-template"),
    "sft": ("access", "config", "weights", "quantisation", "tokenizer", "vocabulary"),
    "pretraining": ("access", "config", "tokenizer", "vocabulary"),
}
_MINDS = {
    "rl": ("multi-turn", "turn-end", "tools", "tool-parser", "context", "kind", "remote-code", "known-issues"),
    "sft": ("chat-template", "kind", "remote-code", "known-issues"),
    "pretraining": ("remote-code",),
}
_TRAINERS = {"rl": ("prime-rl",), "sft": ("bundled-trainer", "prime-rl"), "pretraining": ("bundled-trainer",)}
_WORDS = {
    Outcome.OK: "can be used",
    Outcome.WARNING: "can be used, with care",
    Outcome.NOT_KNOWN: "may be usable: not all could be judged",
    Outcome.FAILURE: "cannot be used",
}


def uses(checks: Iterable[Check]) -> tuple[Use, ...]:
    """RL, SFT and pretraining, in this order."""
    by_id = {check.id: check for check in checks}
    return tuple(_use(use, by_id) for use in _LABELS)


def _use(use: str, checks: Mapping[str, Check]) -> Use:
    needed = [checks[name] for name in _NEEDS[use] if name in checks]
    minded = [checks[name] for name in _MINDS[use] if name in checks]
    trainer = _trainer(use, checks)
    bad = [check for check in needed if check.outcome is Outcome.FAILURE]
    if trainer is not None and trainer.outcome is Outcome.FAILURE:
        bad.append(trainer)
    if bad:
        return _told(use, Outcome.FAILURE, bad)
    unknown = [check for check in needed if check.outcome is Outcome.NOT_KNOWN]
    if unknown:
        return _told(use, Outcome.NOT_KNOWN, unknown)
    careful = [check for check in (*needed, *minded) if check.outcome in (Outcome.WARNING, Outcome.FAILURE)]
    if trainer is not None and trainer.outcome is Outcome.WARNING:
        careful.append(trainer)
    return _told(use, Outcome.WARNING if careful else Outcome.OK, careful)


def _trainer(use: str, checks: Mapping[str, Check]) -> Check | None:
    """The check of the trainer that suits best; where pretraining has none of ours, that is a failure."""
    found = [checks[name] for name in _TRAINERS[use] if name in checks]
    if not found:
        return None
    order = (Outcome.OK, Outcome.WARNING, Outcome.NOT_KNOWN, Outcome.FAILURE)
    best = min(found, key=lambda check: order.index(check.outcome))
    if use == "pretraining" and best.outcome is Outcome.WARNING:
        return best._replace(outcome=Outcome.FAILURE, fix="take a Llama or a Qwen3 shape: those can be pretrained here")
    return best


def _told(use: str, outcome: Outcome, because: list[Check]) -> Use:
    names = tuple(dict.fromkeys(check.id for check in because))
    reasons = f" ({', '.join(names)})" if names else ""
    fix = next((check.fix for check in because if check.fix), "")
    return Use(use, outcome, f"{_WORDS[outcome]}{reasons}", fix, names)


def label(use: str) -> str:
    return _LABELS[use]
