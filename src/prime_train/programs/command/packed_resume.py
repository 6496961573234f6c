"""Refuses a start that would not find the newest checkpoint of a command, because it is packed. Unpacks nothing."""

from __future__ import annotations

from collections.abc import Sequence

from prime_train.checkpoints.layout import SavedCheckpoint
from prime_train.checkpoints.packing import foreign
from prime_train.checkpoints.step_folders import StepPlaces
from prime_train.core.errors import UserError
from prime_train.core.rundir import RunDir


def refuse_packed(places: StepPlaces, found: Sequence[SavedCheckpoint], run_dir: RunDir) -> None:
    """Raise UserError if the newest whole checkpoint is packed: its trainer would begin at an earlier one, or at 0."""
    whole = next((one.step for one in found if one.complete), 0)
    if packed := foreign.find_newer(places, whole):
        raise UserError(
            what=f"the newest whole checkpoint, of step {packed:,}, is packed",
            where=str(foreign.locate(places, packed)),
            why=f"its trainer does not find it there, and would go on from step {whole:,}",
            fix=f"prime-train ckpt restore {run_dir.path.name} --step {packed}; then give the same command again",
        )
