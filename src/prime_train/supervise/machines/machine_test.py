"""Tests all GPUs of a machine that follows, when machine 0 asks for it. The CPU is the stand-in where there is none."""

from __future__ import annotations

import os

from prime_train.core.rundir import RunDir
from prime_train.events import GpuTested
from prime_train.facts import host
from prime_train.facts.facts import NotKnown
from prime_train.supervise.core.state import CPU
from prime_train.supervise.launch.environment import VISIBLE
from prime_train.supervise.machines.protocol import Message
from prime_train.supervise.services.gpu_test import GpuTest


class MachineTest:
    """One test at a time, in a child. Call its methods from the main thread, which starts it."""

    def __init__(self, run_dir: RunDir) -> None:
        self._test = GpuTest(run_dir)
        self._left = 0  # devices without a result
        self._found: list[GpuTested] = []

    def begin(self) -> None:
        """Start a test in the place of one that runs. Waits some seconds for the driver."""
        self.end()
        gpus = host.gpus()
        if isinstance(gpus, NotKnown):
            self._found = [GpuTested("", "driver", False, gpus.reason, 0.0)]
            return
        given = os.environ.get(VISIBLE, "").split(",") if os.environ.get(VISIBLE) else []
        names = [*given, *map(str, range(len(given), len(gpus.devices)))][: len(gpus.devices)] or [CPU]
        self._left = len(names)
        self._test.run("", names)

    def take(self) -> Message | None:
        """The message with the result, once, when every device has one."""
        found = self._test.results()
        self._left -= len(found)
        self._found += found
        if self._left or not self._found:
            return None
        what = "; ".join(f"{one.gpu} {'passed' if one.passed else 'FAILED'}: {one.what}" for one in self._found)
        passed, seconds = all(one.passed for one in self._found), float(sum(one.seconds for one in self._found))
        self._found = []
        return {"kind": "tested", "passed": passed, "what": what, "seconds": seconds}

    def end(self) -> None:
        self._test.end()
        self._left, self._found = 0, []
