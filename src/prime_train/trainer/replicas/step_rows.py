"""The rows of one step after another. Those of a step that is not committed are used again; trains nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from prime_train.spec import RunSpec
from prime_train.trainer.data.stream import TakenRows, TrainStream

Position = dict[str, Any]  # JSON-able
OpenRows = Callable[[Position | None], TrainStream]


class StepRows:
    """A stream that steps over the rows of committed steps alone. Each replica has the same one."""

    def __init__(self, open_rows: OpenRows, position: Position | None, stream: TrainStream) -> None:
        """`stream`: at `position`, None for the first row. `open_rows` opens another one there."""
        self._open_rows, self._position, self._stream = open_rows, position, stream
        self._taken: TakenRows | None = None  # of the step in progress

    @property
    def stream(self) -> TrainStream:
        """For rounds, which keep their rows themselves."""
        return self._stream

    def take_settings(self, run: RunSpec) -> None:
        """See `TrainRows`. Called before the rows of a step are taken for the first time."""
        self._stream.take_settings(run)

    def take(self, run: RunSpec, sequences: int) -> TakenRows:
        """The rows of the next step, the same ones until `commit`. `run` has the settings in force."""
        if self._taken is not None and self._taken.count != sequences:
            # Other replicas repeat the step with another batch. Only a position goes back over a buffer, and the
            # buffers after it must be those of a replica that joins here.
            self._stream, self._taken = self._open_rows(self._position), None
            self._stream.take_settings(run)
        if self._taken is None:
            self._taken = self._stream.take(sequences)
        return self._taken

    def commit(self) -> Position:
        """The position after the step, which is committed."""
        self._taken, self._position = None, self._stream.position()
        return self._position
