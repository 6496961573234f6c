"""Reports a run whose cost so far passes prime_train.budget_usd. Starts no process, and guesses no price."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Literal

from prime_train.core.outside import RECORD_BYTES, read_json
from prime_train.core.process_id import Identity
from prime_train.core.rundir import RunDir
from prime_train.spec import PrimeTrain, RunSpec
from prime_train.supervise.core.state import State
from prime_train.supervise.launch.program import Context
from prime_train.supervise.services.used_gpus import UsedGpus, find_gpus
from prime_train.supervise.watches.cost.spent import usd_so_far
from prime_train.supervise.watches.watch import Alarm

Answer = Literal["alert", "pause"]


def create(context: Context) -> CostWatch:
    """A watch also for a run without a budget: it may get one while it trains."""
    answer = context.run.prime_train.watch.cost
    assert answer != "off"
    return CostWatch(context.run, context.run_dir, answer)


class CostWatch:
    """Compares the cost so far with the budget. Of the config only the budget changes live."""

    name = "cost"

    def __init__(self, run: RunSpec, run_dir: RunDir, answer: Answer) -> None:
        self._run, self._run_dir, self._answer = run, run_dir, answer
        self._budget_usd = run.prime_train.budget_usd
        self._gpus: tuple[object, UsedGpus | None] = (None, None)  # with the start that they are of

    def begin(self) -> None:
        """Start nothing: the price table is a file of the package."""

    def take_settings(self, settings: PrimeTrain) -> None:
        self._budget_usd = settings.budget_usd

    def look(self, state: State, now_s: float) -> tuple[Alarm, ...]:
        # Before the first step the GPUs may not be known yet.
        if self._budget_usd is None or not state.step or not state.attempts:
            return ()
        gpus = self._find_gpus(state)
        usd = usd_so_far(state, gpus, now_s)
        name = self._run.run.name
        if gpus is None or usd is None:
            return (_alarm_unknown(gpus, name, self._budget_usd),)
        if usd.high <= self._budget_usd:
            return ()
        what = f"the run has cost ${usd.low:,.2f} to ${usd.high:,.2f}; its budget is ${self._budget_usd:,.2f}"
        why = f"so long have {gpus.number} x {gpus.device} been used, at the prices of today's offers on demand"
        fix = f"prime-train stop {name}, or prime-train set {name} prime_train.budget_usd=USD"
        # Of prices on both sides of the budget the middle one decides, as in the rule on the whole run.
        answer: Any = self._answer if usd.typical > self._budget_usd else "note"
        return (Alarm(self.name, "budget_spent", name, answer, "unknown", what, why, fix),)

    def _find_gpus(self, state: State) -> UsedGpus | None:
        """Read once per start: their files do not change later."""
        about = (state.attempt_number, state.started)
        if self._gpus[0] != about:
            config: Any = {}
            with suppress(OSError, ValueError):
                config = read_json(self._run_dir.resolved, RECORD_BYTES, self._run_dir.path)
            found = find_gpus(self._run_dir, state.started, config, self._run) if isinstance(config, dict) else None
            self._gpus = (about, found)
        return self._gpus[1]

    def processes(self) -> tuple[Identity, ...]:
        return ()

    def end(self) -> None:
        """Nothing runs."""


def _alarm_unknown(gpus: UsedGpus | None, name: str, budget_usd: float) -> Alarm:
    reason = "which GPUs it uses is not known" if gpus is None else f"no offer or time is known for {gpus.device}"
    what = f"the cost so far is not known, so the budget of ${budget_usd:,.2f} is not watched: {reason}"
    fix = "prime-train prices refresh may have the price; else look at the bill of the machine"
    return Alarm(CostWatch.name, "cost_not_known", name, "note", "unknown", what, "no price is guessed", fix)
