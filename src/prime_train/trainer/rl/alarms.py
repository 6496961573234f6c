"""Decides when the rollouts of a run show that it learns nothing, or from wrong probabilities. Writes nothing."""

from __future__ import annotations

from prime_train.core.errors import UserError
from prime_train.events import AlarmCleared, AlarmRaised

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
            raise UserError(
                what=f"no rollout of the last {NO_REWARD_STEPS} steps earned a reward",
                where=f"step {step}",
                why="the rewards of a group must differ, or there is nothing to learn from it",
                fix="begin with a model that solves some of the tasks: rl.warmup_steps, model.path, or easier tasks",
            )
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
        what, why, fix, where = texts
        return [
            AlarmRaised(
                attempt=self._attempt,
                watch=_WATCH,
                name=name,
                subject="rollouts",
                answer="alert",
                cause_class="config",
                what=what,
                why=why,
                fix=fix,
                where=where,
                step=step,
            )
        ]


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
