"""Reports a silence that is too long, where the run is not ended for it; `supervise/core/policy.py` ends one.

Judges by the trainer's own events.
"""

from __future__ import annotations

from prime_train.core.process_id import Identity
from prime_train.spec import PrimeTrain
from prime_train.supervise.core.policy import Policy, build_policy, change_limits, find_silence_limit_s
from prime_train.supervise.core.state import State
from prime_train.supervise.launch.program import Context
from prime_train.supervise.watches.watch import Alarm


def create(context: Context) -> SilenceWatch | None:
    """None for "restart": policy.py then ends the attempt."""
    if context.run.prime_train.watch.hang != "alert":
        return None
    return SilenceWatch(build_policy(context.run, context.program))


class SilenceWatch:
    """`[prime_train.watch] hang = "alert"`."""

    name = "hang"

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    def begin(self) -> None:
        """There is nothing to sample."""

    def look(self, state: State, now_s: float) -> tuple[Alarm, ...]:
        live = state.live
        if live is None or live.trainer_exit is not None or live.serves_only or not live.all_started:
            return ()
        limit_s, silent_s = find_silence_limit_s(state, live, self._policy), now_s - live.last_sign_s
        if silent_s < limit_s:
            return ()
        what = f"no sign of life for {silent_s:.0f} s in phase {live.phase}; the limit is {limit_s:.0f} s"
        why = 'a rank hangs, or the phase is slow; the run continues, because prime_train.watch.hang is "alert"'
        fix = f"py-spy dump --pid {live.children[-1].pid} shows where it waits; prime-train stop ends the run"
        return (Alarm(self.name, "silent", "", "alert", "hang", what, why, fix, live.children[-1].log),)

    def take_settings(self, settings: PrimeTrain) -> None:
        self._policy = change_limits(self._policy, settings.heartbeat)

    def processes(self) -> tuple[Identity, ...]:
        return ()

    def end(self) -> None:
        """There is nothing to end."""
