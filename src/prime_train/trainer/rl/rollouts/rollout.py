"""A finished rollout: the tokens of a chat, which of them the model wrote, and the reward; and counts of failed ones.
Reads and writes nothing."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass
from typing import NamedTuple

from prime_train.core.errors import UserError
from prime_train.events import RolloutsFailed


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
        raise UserError(
            what=f"{failed} of the last {count} rollouts failed; the first: {self._first.reason}",
            where=f"environment {self._first.environment}, task {self._first.task}",
            why=f"rl.max_failed_ratio = {self._max_failed_ratio:g}; a run that loses so many learns from a biased rest",
            fix="repair the environment: its first traceback is in the event rollouts_failed and in the report",
        )
