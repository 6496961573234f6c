"""Keeps the other machines of a paused run waiting, and has an alarm for each that is not there. Decides nothing.

Between two attempts there is no relay, so a child of the supervisor has the bus meanwhile. It tests the GPUs of a
machine that was drained, too.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from prime_train.core.machines import find_machine, name_machine
from prime_train.core.process_id import Identity, own_identity
from prime_train.core.rundir import RunDir
from prime_train.events import AlarmCleared, AlarmRaised, Event, GpuTested
from prime_train.spec import RunSpec
from prime_train.supervise.core.state import State
from prime_train.supervise.launch.environment import SUPERVISOR
from prime_train.supervise.machines import protocol
from prime_train.supervise.machines.protocol import NOT_THERE
from prime_train.supervise.services.gpu_test import LIMIT_S
from prime_train.supervise.watches.sample_lines import load
from prime_train.supervise.watches.sampler import Sampler

_PROGRAM = Path(protocol.__file__).with_name("waiting_program.py")


@dataclass(frozen=True, slots=True)
class MachinesSeen:
    """`missing`: the names of machines that the run needs and that are not there, with the reason."""

    missing: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class MachineTested:
    """All GPUs of a machine were tested."""

    machine: int
    passed: bool
    what: str
    seconds: float


class WaitingMachines:
    """The child. Call its methods from the main thread, which starts it."""

    def __init__(self, run: RunSpec, run_dir: RunDir) -> None:
        self._machines = run.parallel.machines
        self._log = run_dir.watches / "waiting_machines.log"
        self._child: Sampler | None = None
        self._drained: tuple[str, ...] = ()
        self._request_id = ""
        self._tests: tuple[str, ...] = ()  # without a result yet
        self._until_s = 0.0

    def test(self, request_id: str, machines: Sequence[str]) -> None:
        """Test all GPUs of machines; `turn` returns the results. The child learns which at its start."""
        self.end()
        self._request_id, self._tests, self._until_s = request_id, tuple(machines), time.monotonic() + LIMIT_S

    def turn(self, state: State) -> Iterator[Event]:
        """The alarms that are raised or over, and the results of tests, at each turn of the loop."""
        if self._machines == 1:
            return
        waits = state.is_paused or bool(self._tests)
        if not waits or state.live is not None:
            self.end()
            yield from _compare(state, {})
            return
        if self._child is None or self._drained != state.drained_machines:
            self._begin(state.drained_machines)
        for row in self._take():
            if "missing" in row:
                yield from _compare(state, load(MachinesSeen, row).missing)
            else:
                found = load(MachineTested, row)
                yield from self._finish(name_machine(found.machine), found.passed, found.what, found.seconds)
        if self._tests and time.monotonic() > self._until_s:
            for name in self._tests:
                yield from self._finish(name, False, f"no result within {LIMIT_S:.0f} s", 0.0)

    def _take(self) -> list[Mapping[str, object]]:
        """The lines since the last call, without all but the newest about missing machines."""
        if self._child is None:
            return []
        self._child.keep()
        rows = self._child.take()
        seen = [row for row in rows if "missing" in row][-1:]
        return [*seen, *(row for row in rows if "missing" not in row)]

    def _finish(self, name: str, passed: bool, what: str, seconds: float) -> Iterator[Event]:
        if name in self._tests:
            self._tests = tuple(one for one in self._tests if one != name)
            yield GpuTested(self._request_id, name, passed, what, seconds)

    def _begin(self, drained: tuple[str, ...]) -> None:
        """Start the child, or try it again in the next turn."""
        self.end()
        self._drained = drained
        tests = (f"test={find_machine(one)}" for one in self._tests)
        arguments = [*(str(find_machine(one)) for one in drained), *tests]
        child = Sampler(_PROGRAM, arguments, self._log, {SUPERVISOR: str(own_identity())})
        try:
            child.begin()
        except OSError:  # the machine is out of processes or memory
            return
        self._child = child

    def processes(self) -> tuple[Identity, ...]:
        return self._child.processes() if self._child is not None else ()

    def end(self) -> None:
        """End the child, which frees the port for the next attempt."""
        if self._child is not None:
            self._child.end()
            self._child = None


def _compare(state: State, missing: Mapping[str, str]) -> Iterator[Event]:
    """The alarms between what stands and what is missing."""
    standing = {one.alarm.subject for one in state.alarms if (one.alarm.watch, one.alarm.name) == NOT_THERE}
    for name in sorted(standing - missing.keys()):
        yield AlarmCleared(0, *NOT_THERE, name)
    for name in sorted(missing.keys() - standing):
        what = f"{name} is not there while the run is paused: {missing[name]}"
        why = "every machine of the run trains a part of each step, so it stays paused without this one"
        fix = f"give the command of the run again there; then `prime-train resume {state.run}`"
        about = (0, *NOT_THERE, name, "alert", "hardware")
        yield AlarmRaised(*about, what, why, fix, name, state.step)
