"""Runs every fault of tests/drills once and records the result; `make docs` writes docs/drills.md from the record.

    python bench/drills.py [--only WORDS] [--new]

A fault that cannot be caused on this machine (no C compiler, no permission to mount a disk) is recorded with the
reason.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import record

sys.path.append(str(Path(__file__).resolve().parents[1]))  # the faults are those of the tests

from tests.drills.drill import Result, Row, carry_out, check
from tests.drills.table import ROWS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="run faults whose names contain these words; keep the other records")
    parser.add_argument("--new", action="store_true", help="run only faults without a record; keep the other records")
    given = parser.parse_args()
    known = {(row["group"], row["name"]) for row in _read_record()} if given.new else set()
    wanted = [row for row in ROWS if given.only in f"{row.group}: {row.name}" and (row.group, row.name) not in known]
    with tempfile.TemporaryDirectory() as folder:
        rows = [_recorded(row, Path(folder), number) for number, row in enumerate(wanted)]
    failed = [f"{row['group']}: {row['name']}" for row in rows if "failed" in row]
    if failed:
        sys.exit(f"not handled as expected: {'; '.join(failed)}")
    record.write("drills", [*_others(rows), *rows] if given.only or given.new else rows)


def _others(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of the last record, without the faults that were run again."""
    again = {(row["group"], row["name"]) for row in rows}
    return [row for row in _read_record() if (row["group"], row["name"]) not in again]


def _read_record() -> list[dict[str, Any]]:
    path = record.HERE / "results" / "drills.json"
    before: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    return before


def _recorded(row: Row, folder: Path, number: int) -> dict[str, Any]:
    """One row of the record; it has "failed" if the supervisor did not react as expected."""
    recorded: dict[str, Any] = {
        "group": row.group,
        "name": row.name,
        "expected": row.found,
        "again": row.again is not None,
    }
    lacks = row.needs() if row.needs is not None else ""
    if lacks:
        recorded["left_out"] = lacks
    else:
        try:
            result = carry_out(row, folder / str(number), folder / "cache")
            recorded |= _followed(row, result)
            check(row, result)
        except (AssertionError, subprocess.TimeoutExpired) as error:
            recorded["failed"] = str(error)
    recorded |= {
        "machine": record.machine(),
        "commit": record.commit(),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }
    sys.stdout.write(json.dumps(recorded) + "\n")
    sys.stdout.flush()
    return recorded


def _followed(row: Row, result: Result) -> dict[str, Any]:
    return {
        "found": list(result.found),
        "exit_code": result.exit_code,
        "attempts": result.attempts,
        "detect_s": result.detect_s,
        "resume_s": result.resume_s,
        "resumed_from": result.resumed_from,
        "newest_complete": max(result.kept, default=0),
        "watched_every_s": min(row.watches.values(), default=None),
    }


if __name__ == "__main__":
    main()
