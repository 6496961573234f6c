"""Reports the GPUs of a run that may fail soon, and keeps what their tests teach in a file of the run."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Sequence
from pathlib import Path

from prime_train.core.errors import UserError
from prime_train.core.rundir import RunDir, append_traceback, write_atomic
from prime_train.registry.gpu_risk import RiskModel, read_model, shipped_model, write_text
from prime_train.spec.supervision import GpuRiskSettings
from prime_train.supervise.core.state import State
from prime_train.supervise.watches.gpu.history import GpuHistory, identify_gpu
from prime_train.supervise.watches.gpu.risk import DrainOutcome, GpuRisk, RiskHistory, judge_risks, remember_risk
from prime_train.supervise.watches.gpu.samples import Message
from prime_train.supervise.watches.watch import Alarm

NAME = "gpu_at_risk"
_FILE = "gpu_risk.toml"


class RiskReport:
    """The risks of one run. Raises UserError for a model that cannot be read."""

    def __init__(self, run_dir: RunDir, settings: GpuRiskSettings) -> None:
        self._run_dir, self._policy = run_dir, settings.policy
        self._history = RiskHistory(_open_model(run_dir.watches / _FILE, settings.model))

    def look(
        self, memory: GpuHistory, messages: Sequence[Message], state: State, used: Collection[str]
    ) -> tuple[Alarm, ...]:
        """An alarm for each GPU in `used` that is suspect. From `state` it reads the tests of GPUs."""
        if self._policy == "off":
            return ()
        before = self._history.model
        outcomes = [DrainOutcome(test.request_id, test.gpu, test.passed) for test in state.gpu_tests]
        self._history = remember_risk(self._history, memory, messages, outcomes)
        self._history, found = judge_risks(self._history, memory)
        if self._history.model is not before:
            self._keep_model()
        return tuple(self._report(one) for one in found if one.is_suspect and identify_gpu(one.gpu) in used)

    def _report(self, found: GpuRisk) -> Alarm:
        subject, gpu = f"GPU {found.gpu.index}", found.gpu
        what = f"{subject} may fail within a day: the estimate is {found.risk:.0%}, "
        what += f"by {found.name_reasons(self._history.model)}"
        why = "its driver reports signs that come before failures; how often the estimate is right is not known"
        fix = f"prime-train gpu drain {self._run_dir.path.name} {gpu.index} goes on without it, and tests it"
        answer = "drain" if self._policy == "drain" else "alert"
        return Alarm("gpu", NAME, subject, answer, "hardware", what, why, fix, gpu.uuid)  # type: ignore[arg-type]

    def _keep_model(self) -> None:
        # A disk that is full must not stop the watch; the next supervisor then begins with the weights of before.
        with contextlib.suppress(OSError):
            write_atomic(self._run_dir.watches / _FILE, write_text(self._history.model))


def _open_model(kept: Path, named: str | None) -> RiskModel:
    """The model that the run has learned so far, else the one that its config names, else the shipped one."""
    if kept.exists():
        try:
            return read_model(kept)
        except UserError as error:  # another program wrote it
            append_traceback(kept.with_suffix(".log"), error)
    return read_model(Path(named)) if named is not None else shipped_model()
