"""The first rows of a table are read by a child, which may lack the library for it."""

from __future__ import annotations

import sys
from pathlib import Path

from prime_train.facts.data_lengths import FirstRows, read_first_rows
from prime_train.facts.facts import NotKnown


def test_an_interpreter_without_pyarrow_names_the_way(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S -E "$@"\n')  # without site-packages
    python.chmod(0o700)
    table = tmp_path / "table.parquet"
    table.write_bytes(b"PAR1")
    found = read_first_rows(table, 3, str(python))
    assert isinstance(found, NotKnown)
    assert found.reason.endswith("has no pyarrow, which reads .parquet files: uv pip install pyarrow")


def test_rows_of_lines_and_their_faults(tmp_path: Path) -> None:
    lines = tmp_path / "lines.jsonl"
    lines.write_text('{"text": "a"}\n\n{"text": "b"}\n{"text": "c"}\n')
    assert read_first_rows(lines, 2, sys.executable) == FirstRows(('{"text": "a"}', '{"text": "b"}'))
    lines.write_text("{")
    found = read_first_rows(lines, 2, sys.executable)
    assert isinstance(found, FirstRows)
    assert found.fault.startswith("JSONDecodeError")
