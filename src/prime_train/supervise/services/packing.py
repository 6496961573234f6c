"""Packs the superseded checkpoints of a live run in a child process of low priority.

The child runs only while the trainer trains, and is ended before an attempt chooses and loads a checkpoint. It may be
ended at any moment, because a checkpoint that is half packed is still complete, and the next child packs the rest.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from prime_train.checkpoints import layout
from prime_train.checkpoints.packing import packing_plan
from prime_train.core.process_id import Identity
from prime_train.core.rundir import RunDir
from prime_train.events import CheckpointPacked
from prime_train.supervise.core.state import State
from prime_train.supervise.watches.sampler import Sampler

_PROGRAM = Path(__file__).with_name("packing_program.py")
_CLOSE_S = 20.0  # with the lowest priority, a killed child of a busy machine takes seconds to be gone
_LAST_READ_S = 5.0  # for the last lines of a child that ended to be read


class PackingChild:
    """The child process. With `enabled` False there is none."""

    def __init__(self, run_dir: RunDir, enabled: bool) -> None:
        self._run_dir = run_dir
        self._enabled = enabled
        self._child: Sampler | None = None
        self._ending: list[Sampler] = []  # killed, and not gone within the limit
        self._packed_before = 0  # checkpoints before this step are packed, as far as possible
        self._packing_before = 0
        self._packed: list[CheckpointPacked] = []
        self._reported: set[tuple[int, str]] = set()  # step and problem, because every child finds an old problem

    def consider(self, state: State) -> None:
        """Start a child if a checkpoint can be packed; end it if no trainer trains. Returns soon.

        Call it from the main thread, which starts the child. A child that cannot be started is reported as a problem of
        the step, and the next save starts another one.
        """
        if not self._enabled:
            return
        self._gather()
        if state.live is None or state.live.first_progress is None or state.live.sent:
            self.end()
        elif self._child is None and state.newest_complete > self._packed_before:
            self._packing_before = state.newest_complete
            arguments = [str(self._run_dir.checkpoints), str(state.newest_complete)]
            child = Sampler(_PROGRAM, arguments, self._run_dir.watches / "packing.log")
            try:
                child.begin()
            except OSError as error:  # no processes or no space left: the run continues without packing
                problem = f"no program can be started: {error.strerror}"
                self._packed.append(CheckpointPacked(state.newest_complete, 0, 0, 0.0, problem))
                self._packed_before = state.newest_complete
            else:
                self._child = child

    def results(self) -> tuple[CheckpointPacked, ...]:
        found, self._packed = tuple(self._packed), []
        return found

    def processes(self) -> tuple[Identity, ...]:
        return self._child.processes() if self._child is not None else ()

    def end(self, limit_s: float = 2.0) -> None:
        """End the child, so that a checkpoint can be chosen and loaded; waits no longer, even if the disk hangs."""
        if self._child is not None:
            self._child.end(limit_s)
            self._read_results(self._child)
            if self._child.ended is None:
                self._ending.append(self._child)
            self._child = None

    def close(self) -> None:
        """End the child for the last time, and delete the pieces that it or an earlier one left."""
        self.end(_CLOSE_S)
        for child in self._ending:  # one that still writes its mark would leave it
            child.end(_CLOSE_S)
        if self._enabled:
            delete_pieces(self._run_dir)

    def _gather(self) -> None:
        """Read the results of the child. A child that ends without its last line has failed; its log has the error."""
        child = self._child
        if child is None:
            return
        has_failed = child.ended is not None and child.silent_s > _LAST_READ_S
        if self._read_results(child) or has_failed:
            self._packed_before = self._packing_before
            child.end()
            self._child = None

    def _read_results(self, child: Sampler) -> bool:
        """Take the results of the child; returns whether its last line was among them."""
        rows = child.take()
        self._packed += [
            CheckpointPacked(row["step"], row["size_bytes"], row["stored_bytes"], row["s"], row["problem"])
            for row in rows
            if "done" not in row and (row["step"], row["problem"]) not in self._reported
        ]
        self._reported |= {(one.step, one.problem) for one in self._packed}
        return any("done" in row for row in rows)


def delete_pieces(run_dir: RunDir) -> None:
    """Delete the pieces that a killed packing left in the complete checkpoints of a run."""
    from prime_train.checkpoints.packing import archive  # here: a run without packing needs no numpy

    for found in layout.scan(run_dir.checkpoints):
        if found.complete and packing_plan.has_leftovers(found.path):
            with contextlib.suppress(archive.DamagedError, OSError):  # the next packing reports it
                archive.clear(found.path)
