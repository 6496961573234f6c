"""A finished rollout, and what is wrong with many of them: they fail, or a run learns nothing from them. No effects."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass
from typing import NamedTuple

from prime_train.core.errors import UserError
from prime_train.events import AlarmCleared, AlarmRaised, RolloutsFailed


@dataclass(frozen=True, slots=True)
class Rollout:
    """T tokens of one chat, from the prompt to the last answer, exactly as the engine saw and wrote them."""

    environment: str
    task: int  # the number of the task in its environment's training split
    tokens: tuple[int, ...]  # (T,)
    sampled: tuple[bool, ...]  # (T,) True for tokens that the model wrote; only these count in the loss
    logprobs: tuple[float, ...]  # (T,) of the engine, for sampled tokens; 0.0 for the others
    reward: float
    version: int  # of the oldest weights that generated a token of it
    truncated: bool  # a token limit, or the limit of turns, ended it
    turns: int
    temperature: float = 1.0  # at which its tokens were drawn, so the loss needs it too

    @property
    def answer_tokens(self) -> int:
        return self.sampled.count(True)


@dataclass(frozen=True, slots=True)
class Failed:
    """A rollout whose environment failed."""

    environment: str
    task: int
    reason: str  # one line
    trace: str = ""  # the traceback


Outcome = Rollout | Failed

WINDOW = 64  # rollouts, at least
FIRST = 8  # if the first rollouts of a run all fail, these are enough


class _Seen(NamedTuple):
    """The first failure of an environment since the last report."""

    failed: Failed
    is_first: bool  # of the attempt


class Failures:
    """The outcomes of the last rollouts of an attempt, `window` or more."""

    def __init__(self, attempt: int, max_failed_ratio: float, window: int = WINDOW) -> None:
        self._attempt = attempt
        self._max_failed_ratio = max_failed_ratio
        self._recent: deque[bool] = deque(maxlen=max(WINDOW, window))  # True: failed
        self._one_succeeded = False
        self._first: Failed | None = None
        self._asked: Counter[str] = Counter()  # per environment, since the last report
        self._failed: Counter[str] = Counter()
        self._seen: dict[str, _Seen] = {}

    def add(self, outcome: Rollout | Failed) -> None:
        failed = isinstance(outcome, Failed)
        self._recent.append(failed)
        self._asked[outcome.environment] += 1
        if not isinstance(outcome, Failed):
            self._one_succeeded = True
            return
        self._failed[outcome.environment] += 1
        self._seen.setdefault(outcome.environment, _Seen(outcome, self._first is None))
        self._first = self._first or outcome

    def report(self, step: int) -> list[RolloutsFailed]:
        """One event for each environment in which rollouts failed since the last report."""
        events = [
            RolloutsFailed(
                attempt=self._attempt,
                step=step,
                environment=name,
                failed=self._failed[name],
                asked=self._asked[name],
                reason=seen.failed.reason,
                traceback=seen.failed.trace if seen.is_first else "",
            )
            for name, seen in self._seen.items()
        ]
        self._asked.clear()
        self._failed.clear()
        self._seen.clear()
        return events

    def check(self) -> None:
        """Raises UserError if too many of the last rollouts failed, or all of the first."""
        failed, count = sum(self._recent), len(self._recent)
        none_succeeded = not self._one_succeeded and failed >= FIRST
        full = count == self._recent.maxlen
        too_many_failed = full and failed > self._max_failed_ratio * count
        if self._first is None or not (none_succeeded or too_many_failed):
            return
        what = f"{failed} of the last {count} rollouts failed; the first: {self._first.reason}"
        why = f"rl.max_failed_ratio = {self._max_failed_ratio:g}; a run that loses so many learns from a biased rest"
        fix = "repair the environment: its first traceback is in the event rollouts_failed and in the report"
        raise UserError(what, f"environment {self._first.environment}, task {self._first.task}", why, fix)


NO_SIGNAL_STEPS = 10  # steps in a row without an update, before the alarm
NO_REWARD_STEPS = 50  # steps in a row in which no rollout earned a reward, before the end of the run
_WATCH, _MISMATCH, _NO_SIGNAL = "rl", "rl_mismatch", "rl_no_signal"


class RolloutAlarms:
    """The alarms of one attempt. `check` returns the changes after a step."""

    def __init__(self, attempt: int, max_mismatch_kl: float) -> None:
        self._attempt = attempt
        self._max_mismatch_kl = max_mismatch_kl
        self._active: set[str] = set()
        self._idle_steps = 0
        self._unrewarded_steps = 0

    def check(
        self, step: int, reward: float, mismatch_kl: float | None, *, learned: bool
    ) -> list[AlarmRaised | AlarmCleared]:
        """`learned`: the step changed the weights. Raises UserError if no rollout earns a reward for too long."""
        self._idle_steps = 0 if learned else self._idle_steps + 1
        self._unrewarded_steps = 0 if learned or reward != 0 else self._unrewarded_steps + 1
        if self._unrewarded_steps >= NO_REWARD_STEPS:
            why = "the rewards of a group must differ, or there is nothing to learn from it"
            fix = "begin with a model that solves some of the tasks: rl.warmup_steps, model.path, or easier tasks"
            raise UserError(f"no rollout of the last {NO_REWARD_STEPS} steps earned a reward", f"step {step}", why, fix)
        changes = self._set(_NO_SIGNAL, self._idle_steps >= NO_SIGNAL_STEPS, step, _describe_no_signal(reward))
        if mismatch_kl is not None:
            too_high = not mismatch_kl <= self._max_mismatch_kl
            changes += self._set(_MISMATCH, too_high, step, _describe_mismatch(mismatch_kl, self._max_mismatch_kl))
        return changes

    def _set(
        self, name: str, holds: bool, step: int, texts: tuple[str, str, str, str]
    ) -> list[AlarmRaised | AlarmCleared]:
        """The event if the alarm begins or ends."""
        if holds == (name in self._active):
            return []
        if not holds:
            self._active.remove(name)
            return [AlarmCleared(self._attempt, _WATCH, name, "rollouts")]
        self._active.add(name)
        return [AlarmRaised(self._attempt, _WATCH, name, "rollouts", "alert", "config", *texts, step=step)]


def _describe_mismatch(mismatch_kl: float, maximum: float) -> tuple[str, str, str, str]:
    return (
        f"the probabilities of engine and trainer differ by {mismatch_kl:.2g} nats per token (limit {maximum:g})",
        "with the same weights they should agree; the importance ratio of the loss is wrong by this",
        'compare the types: inference.dtype = "float32" with precision.compute = "fp32"',
        "rl.max_mismatch_kl",
    )


def _describe_no_signal(reward: float) -> tuple[str, str, str, str]:
    return (
        f"the rollouts of each group have equal rewards for {NO_SIGNAL_STEPS} steps (mean reward {reward:.3g})",
        "without a difference in its group a rollout has no advantage, so the weights do not change",
        "harder tasks if all are solved, easier ones or rl.warmup_steps if none is, or a larger rl.group_size",
        "rl.group_size",
    )
