"""Has superseded checkpoints of a live run packed by a child that gives way to the training. Packs nothing itself.

The child is there only while the trainer trains: before an attempt chooses and loads a checkpoint it is ended, which it
may be at any moment, and what it left half done is complete and goes on later. It ends with the supervisor.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from prime_train.core.process_id import Identity
from prime_train.core.rundir import RunDir
from prime_train.supervise.state import State
from prime_train.supervise.watches.sampler import Sampler

_PROGRAM = Path(__file__).with_name("packing_program.py")
_LAST_WORD_S = 5.0  # for what a child told before its end to be read


@dataclass(frozen=True, slots=True)
class Packed:
    """What became of one checkpoint. `problem` says why it was not packed; empty where it was."""

    step: int
    size_bytes: int
    stored_bytes: int
    seconds: float
    problem: str


class Packing:
    """The child and when it runs. With `enabled` False it does nothing."""

    def __init__(self, run_dir: RunDir, enabled: bool) -> None:
        self._run_dir = run_dir
        self._enabled = enabled
        self._child: Sampler | None = None
        self._packed_before = 0  # the step before which all that could be packed has been
        self._packing_before = 0
        self._packed: list[Packed] = []
        self._told: set[tuple[int, str]] = set()  # step and problem: the child meets an old problem each time

    def consider(self, state: State) -> None:
        """Start a child where something can be packed, end it where no trainer trains. Never blocks for long.

        To be called from the main thread, which starts the child. Where none can be started, that is told as a problem
        of the step, and tried again after the next save.
        """
        if not self._enabled:
            return
        self._gather()
        if state.live is None or state.live.first_progress is None or state.live.sent:
            self.stand_still()
        elif self._child is None and state.newest_complete > self._packed_before:
            self._packing_before = state.newest_complete
            child = Sampler(
                _PROGRAM,
                [str(self._run_dir.checkpoints), str(state.newest_complete)],
                self._run_dir.watches / "packing.log",
                # Else the folder of the program comes first where modules are looked for.
                {"PYTHONSAFEPATH": "1"},
            )
            try:
                child.begin()
            except OSError as error:  # out of processes or of room: the run goes on without
                problem = f"no program can be started: {error.strerror}"
                self._packed.append(Packed(state.newest_complete, 0, 0, 0.0, problem))
                self._packed_before = state.newest_complete
            else:
                self._child = child

    def results(self) -> tuple[Packed, ...]:
        """What was packed since the last call."""
        found, self._packed = tuple(self._packed), []
        return found

    def stand_still(self) -> None:
        """End the child, so that a checkpoint can be chosen and loaded; at most 2 s, for a disk that hangs."""
        if self._child is not None:
            self._child.end()
            self._take(self._child)
            self._child = None

    def processes(self) -> tuple[Identity, ...]:
        return self._child.processes() if self._child is not None else ()

    def end(self) -> None:
        """Leave no process behind."""
        self.stand_still()

    def _gather(self) -> None:
        """Take what the child has told. One that ended without its last word has met a fault: it is in its log."""
        child = self._child
        if child is not None and (self._take(child) or (child.ended is not None and child.silent_s > _LAST_WORD_S)):
            self._packed_before = self._packing_before
            child.end()
            self._child = None

    def _take(self, child: Sampler) -> bool:
        """Whether the last word was among what the child has told."""
        rows = child.take()
        self._packed += [
            Packed(row["step"], row["size_bytes"], row["stored_bytes"], row["s"], row["problem"])
            for row in rows
            if "done" not in row and (row["step"], row["problem"]) not in self._told
        ]
        self._told |= {(one.step, one.problem) for one in self._packed}
        return any("done" in row for row in rows)
