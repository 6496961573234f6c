"""Refuses a rented machine with a GPU that the run has condemned: `python -m prime_train.away.sky.condemned RUN_DIR`.

Runs on the machine before the run, of which a bucket has the events. A cloud does not take the name of a machine to be
avoided, and gives a machine another name each time it rents it. The UUID of a GPU stays, so the machine is known by it.
With the exit code ELSEWHERE SkyPilot gives the machine back and rents another one.
"""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from prime_train.away.sky.job_end import ELSEWHERE
from prime_train.core.rundir import RunDir
from prime_train.events import Event, EventLog, LaunchAsked, MachineRefused, read
from prime_train.facts.host import list_uuids
from prime_train.supervise.core.gpu_stages import find_stage
from prime_train.supervise.core.state import State
from prime_train.views.run.status import fold_events

MOST_REFUSALS = 3  # in a row: each costs the rent of some minutes, and the cloud may have no other machine
_UPLOAD_S = 30.0  # until the bucket has the event: SkyPilot's mount sends a file some seconds after its last write


def count_refusals(history: Iterable[Event]) -> int:
    """The machines that were refused since the latest attempt. `history`: the events, oldest first."""
    count = 0
    for event in history:
        match event:
            case LaunchAsked():
                count = 0
            case MachineRefused():
                count += 1
    return count


def find_condemned(state: State, uuids: Sequence[str]) -> tuple[str, ...]:
    """The GPUs among `uuids` that no attempt of the run is to use any more."""
    return tuple(uuid for uuid in uuids if find_stage(state, uuid) == "condemned")


def main(arguments: list[str]) -> int:
    """ELSEWHERE for a machine that is refused, else 0. `arguments`: the run directory; seconds for the bucket."""
    folder, *wait_s = arguments
    run_dir = RunDir(Path(folder).resolve())
    if not run_dir.events.is_dir():  # the first machine of the run
        return 0
    found = find_condemned(fold_events(run_dir), list_uuids())
    if not found:
        return 0
    number = count_refusals(record.event for record in read(run_dir.events)) + 1
    named = f"{', '.join(found)} of {socket.gethostname()}"
    if number > MOST_REFUSALS:
        sys.stderr.write(
            f"warning: {named} is condemned, and used after all: {MOST_REFUSALS} machines were given back\n"
        )
        return 0
    EventLog(run_dir.events, "machine").append(MachineRefused(socket.gethostname(), found, number))
    sys.stderr.write(
        f"error: the run has condemned a GPU of this machine\n  where {named}\n"
        "  what  this machine is given back, and SkyPilot rents another one\n"
        "  why   the GPU failed its test or ended two attempts of this run\n"
        f"  fix   nothing is to be done: this is refusal {number} of at most {MOST_REFUSALS} in a row; "
        f"prime-train gpu return {run_dir.path.name} {found[0]} allows it again\n"
    )
    time.sleep(float(*wait_s) if wait_s else _UPLOAD_S)
    return ELSEWHERE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
