"""The report's section on rewards: the curve, held-out tasks, rollouts, and what failed in an environment. Pure."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterator

from prime_train.views.run.history import RunHistory, describe_scores
from prime_train.views.text import fenced, plain, sanitize, table

_LAST_RATIO = 0.1  # of the steps, which the table of rollouts compares with the first ones
# Column of metrics.jsonl -> what it is, and the decimals that are shown.
_ROLLOUTS = {
    "reward": ("mean reward", 3),
    "answer_tokens": ("answer tokens", 1),
    "entropy": ("entropy, nats per token", 3),
    "clip_ratio": ("clipped tokens", 4),
    "behind_steps": ("updates behind", 2),
    "reference_kl": ("divergence from the reference, nats per token", 5),
    "mismatch_kl": ("engine against trainer, nats per token", 6),
}
_COUNTS = {
    "rollouts": "scored",
    "truncated": "cut off by a token limit",
    "failed": "failed in an environment",
    "too_old": "dropped because their weights were too old",
}


def sections(history: RunHistory, image: str) -> Iterator[str]:
    """The paragraphs; none for a run without rewards and tasks. `image`: the plot, or what replaces it."""
    has_rewards = any(map(math.isfinite, history.metrics["reward"]))
    if not (has_rewards or history.task_evaluations or history.failed_rollouts):
        return
    yield "## Rewards"
    yield image
    for line in describe_scores(history):
        yield f"Held-out tasks of {line}."
    if history.task_evaluations:
        rows = [
            (f"{e.step:,}", e.environment, f"{e.reward:.3f}", f"{e.tasks:,}", f"{e.failed:,}", f"{e.answer_tokens:.1f}")
            for e in history.task_evaluations
        ]
        yield table(("step", "held-out tasks of", "mean reward", "tasks", "failed", "answer tokens"), rows)
    if has_rewards:
        yield _rollouts(history)
        yield _counts(history)
    yield from _failures(history)


def _rollouts(history: RunHistory) -> str:
    """Means over the first and the last tenth of the steps with rewards."""
    kept = [index for index, reward in enumerate(history.metrics["reward"]) if math.isfinite(reward)]
    count = max(1, round(_LAST_RATIO * len(kept)))
    rows = []
    for column, (name, digits) in _ROLLOUTS.items():
        ends = [[history.metrics[column][index] for index in part] for part in (kept[:count], kept[-count:])]
        means = [_mean(values) for values in ends]
        if any(mean is not None for mean in means):
            rows.append((name, *("" if mean is None else f"{mean:.{digits}f}" for mean in means)))
    steps = "first step" if count == 1 else f"first {count:,} steps"
    return table(("of the rollouts", steps, steps.replace("first", "last")), rows)


def _mean(values: list[float]) -> float | None:
    finite = [value for value in values if math.isfinite(value)]
    return statistics.fmean(finite) if finite else None


def _counts(history: RunHistory) -> str:
    sums = {name: sum(filter(math.isfinite, history.metrics[name])) for name in (*_COUNTS, "groups", "zero_groups")}
    parts = [f"{sums[name]:,.0f} {words}" for name, words in _COUNTS.items() if sums[name] or name == "rollouts"]
    sentence = f"Rollouts: {', '.join(parts)}."
    if sums["groups"]:
        sentence += (
            f" {sums['zero_groups']:,.0f} of {sums['groups']:,.0f} groups had equal rewards, which teach nothing."
        )
    return sentence


def _failures(history: RunHistory) -> Iterator[str]:
    """How many rollouts failed for which reason, and the first traceback of each environment."""
    if not history.failed_rollouts:
        return
    counts: Counter[tuple[str, str]] = Counter()
    traces: dict[str, str] = {}
    for event in history.failed_rollouts:
        counts[event.environment, event.reason] += event.failed
        if event.traceback:
            traces.setdefault(event.environment, event.traceback)
    yield "### Failed rollouts"
    rows = [(name, f"{failed:,}", reason) for (name, reason), failed in counts.most_common()]
    yield table(("environment", "failed", "first error"), rows)
    for name, trace in traces.items():
        yield f"First traceback of {plain(name)}:"
        yield fenced(sanitize(trace))
