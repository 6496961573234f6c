"""Translates the end of a run into the exit code of its job: `python -m prime_train.away.sky.job_end RUN_DIR CODE`.

SkyPilot starts a job again, on another machine, after the exit codes in RECOVERED and after a pre-emption. Reads only.
"""

from __future__ import annotations

import sys
from pathlib import Path

from prime_train.core.errors import ExitCode
from prime_train.core.rundir import RunDir
from prime_train.events import AlarmRaised, read
from prime_train.supervise.core.state import State
from prime_train.supervise.machines.protocol import MISSING
from prime_train.views.run.status import fold_events

ELSEWHERE = 33  # no exit code of `prime-train run`: the hardware failed, and another machine continues the run
_KILLED, _TERMINATED = 137, 143
RECOVERED = (ELSEWHERE, int(ExitCode.RESUMABLE), _KILLED, _TERMINATED)
_MOST_HARDWARE_FAILURES = 6  # in a row without a new complete checkpoint: then it is not the hardware


def translate(code: int, state: State, disk_alarms: frozenset[str] = frozenset()) -> int:
    """The exit code of the job, from that of `prime-train run` and the state of its run.

    `disk_alarms`: the texts of the alarms that pause a run because its disk is full. Such a pause is not recovered: the
    next machine has the same disk, and costs money.
    """
    if code == ExitCode.RESUMABLE and any(what in state.stop_by for what in disk_alarms):
        return int(ExitCode.RETRIES_SPENT)
    if code == ExitCode.RUN_FAILED and state.attempt is not None and state.attempt.cause_id == MISSING:
        return ELSEWHERE
    if code != ExitCode.RETRIES_SPENT or state.attempt is None:
        return code
    barren = 0
    for attempt in reversed(state.attempts):
        if attempt.fruitful or attempt.outcome != "failed":
            break
        barren += 1
    is_hardware = state.attempt.cause_class == "hardware"
    return ELSEWHERE if is_hardware and barren <= _MOST_HARDWARE_FAILURES else code


def main(arguments: list[str]) -> int:
    """The exit code of the job. `arguments`: the run directory, and the exit code of `prime-train run`."""
    folder, code = arguments
    run_dir = RunDir(Path(folder).resolve())
    if not run_dir.events.is_dir():  # the config was refused before the run was opened
        return int(code)
    alarms = (record.event for record in read(run_dir.events) if isinstance(record.event, AlarmRaised))
    full = frozenset(alarm.what for alarm in alarms if alarm.watch == "disk" and alarm.answer == "pause")
    return translate(int(code), fold_events(run_dir), full)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
