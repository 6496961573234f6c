"""All the faults."""

from __future__ import annotations

from tests.drills import rows_ends, rows_files, rows_silence, rows_supervisor
from tests.drills.drill import Row

ROWS: tuple[Row, ...] = (*rows_ends.ROWS, *rows_silence.ROWS, *rows_files.ROWS, *rows_supervisor.ROWS)
