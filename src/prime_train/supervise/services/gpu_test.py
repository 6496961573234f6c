"""Tests GPUs in a child process of the supervisor, and reports the result of each as an event. Decides nothing."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from prime_train.core.process_id import Identity
from prime_train.core.rundir import RunDir
from prime_train.events import GpuTested
from prime_train.supervise.core.state import CPU
from prime_train.supervise.services import superbench
from prime_train.supervise.watches.sampler import Sampler

_PROGRAM = Path(__file__).parents[2] / "trainer" / "gpu_test.py"  # the only package that imports torch
_SUPERBENCH = Path(__file__).with_name("superbench_program.py")
LIMIT_S = 300.0  # torch is imported from a network disk in a minute, and a test of a healthy GPU takes seconds


class GpuTest:
    """One test at a time. `run` is called from the main thread, which starts the child."""

    def __init__(self, run_dir: RunDir, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = run_dir.watches / "gpu_test.log"
        self._clock = clock
        self._child: Sampler | None = None
        self._request_id = ""
        self._left: list[str] = []  # without a result yet
        self._limit_s = LIMIT_S
        self._until_s = 0.0
        self._problem = ""  # why there is no child

    def run(self, request_id: str, gpus: Sequence[str]) -> None:
        """Start a test. A child that cannot be started is a result too."""
        self.end()
        program, arguments, self._limit_s = self._choose(request_id, gpus)
        self._request_id, self._left, self._until_s = request_id, list(gpus), self._clock() + self._limit_s
        # On one machine the pair meets on the loopback interface, so no other machine reaches it.
        variables = {"CUDA_VISIBLE_DEVICES": ",".join(gpu for gpu in gpus if gpu != CPU)}
        variables |= {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
        self._child = Sampler(program, arguments, self._log, variables)
        try:
            self._child.begin()
        except OSError as error:
            self._problem = f"no program can be started: {error.strerror}"
            self._child = None

    def _choose(self, request_id: str, gpus: Sequence[str]) -> tuple[Path, list[str], float]:
        """The program, its arguments and the limit: SuperBench where it is installed, before the own short test."""
        sb = shutil.which("sb")
        if sb is None or CPU in gpus:
            return _PROGRAM, list(gpus), LIMIT_S
        folder = self._log.absolute().with_name("superbench") / request_id
        limit_s = LIMIT_S + superbench.VERSION_S + superbench.LIMIT_S * len(gpus)
        return _SUPERBENCH, [sb, str(folder), str(_PROGRAM), *gpus], limit_s

    def results(self) -> tuple[GpuTested, ...]:
        """The results since the last call. A device without one when the child ends, or is late, has failed."""
        if not self._left:
            return ()
        child, found = self._child, []
        code = child.ended if child is not None else None  # looked at first: its last lines are read after it
        for row in child.take() if child is not None else ():
            if row.get("gpu") in self._left:
                self._left.remove(row["gpu"])
                what = ": ".join(part for part in (row["what"], row["problem"]) if part)
                found.append(GpuTested(self._request_id, row["gpu"], not row["problem"], what, row["s"]))
        problem = self._find_problem(code)
        if problem and self._left:
            found += [GpuTested(self._request_id, gpu, False, problem, 0.0) for gpu in self._left]
            self._left = []
        if not self._left:
            self.end()
        return tuple(found)

    def _find_problem(self, code: int | None) -> str:
        """Why no further result comes; "" while one may."""
        if self._child is None:
            return self._problem
        if self._clock() > self._until_s:
            return f"no result within {self._limit_s:.0f} s: the driver does not answer"
        # A child that has just ended may have lines that are not read yet.
        if code is not None and self._child.silent_s > 1.0:
            return f"its test ended with exit code {code}, see {self._log}"
        return ""

    def processes(self) -> tuple[Identity, ...]:
        return self._child.processes() if self._child is not None else ()

    def end(self) -> None:
        if self._child is not None:
            self._child.end()
            self._child = None
