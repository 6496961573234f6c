"""All the faults."""

from __future__ import annotations

from tests.drills import (
    rows_ends,
    rows_engine,
    rows_files,
    rows_preemption,
    rows_prime_rl,
    rows_rewards,
    rows_silence,
    rows_supervisor,
    rows_trainer,
    rows_wandb,
    rows_watches,
)
from tests.drills.drill import Row

ROWS: tuple[Row, ...] = (
    *rows_ends.ROWS,
    *rows_silence.ROWS,
    *rows_files.ROWS,
    *rows_supervisor.ROWS,
    *rows_engine.ROWS,
    *rows_watches.ROWS,
    *rows_preemption.ROWS,
    *rows_trainer.ROWS,
    *rows_wandb.ROWS,
    *rows_prime_rl.ROWS,
    *rows_rewards.ROWS,
)
