"""Carries out every fault of tests/drills once, records what followed, and writes docs/drills.md from the record.

    python bench/drills.py [--only WORDS]      [--page]: write the page of the last record, carry out nothing

A fault that cannot be brought about here (no C compiler, no leave to mount a disk) is recorded with the reason.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import record

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.append(str(REPOSITORY))  # the faults are those of the tests
sys.path.append(str(REPOSITORY / "docs"))

import drills_page

from tests.drills.drill import Row, carry_out, check
from tests.drills.table import ROWS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="carry out the faults whose names hold these words; write nothing")
    parser.add_argument("--page", action="store_true", help="write docs/drills.md from the last record")
    given = parser.parse_args()
    if not given.page:
        wanted = [row for row in ROWS if given.only in f"{row.group}: {row.name}"]
        with tempfile.TemporaryDirectory() as folder:
            rows = [_recorded(row, Path(folder), number) for number, row in enumerate(wanted)]
        if given.only:
            return
        record.write("drills", rows)
    (REPOSITORY / "docs" / "drills.md").write_text(drills_page.page(), encoding="utf-8")


def _recorded(row: Row, folder: Path, number: int) -> dict[str, Any]:
    """One row of the record. Raises AssertionError where the fault was not answered as the table says."""
    told: dict[str, Any] = {"group": row.group, "name": row.name, "expected": row.found, "again": row.again is not None}
    lacks = row.needs() if row.needs is not None else ""
    if lacks:
        told["left_out"] = lacks
    else:
        result = carry_out(row, folder / str(number), folder / "cache")
        check(row, result)
        told |= {
            "found": list(result.found),
            "exit_code": result.exit_code,
            "attempts": result.attempts,
            "detect_s": result.detect_s,
            "resume_s": result.resume_s,
            "resumed_from": result.resumed_from,
            "newest_complete": max(result.kept, default=0),
            "watched_every_s": min(row.watches.values(), default=None),
        }
    told |= {"machine": record.machine(), "commit": record.commit(), "date": time.strftime("%Y-%m-%d", time.gmtime())}
    sys.stdout.write(json.dumps(told) + "\n")
    sys.stdout.flush()
    return told


if __name__ == "__main__":
    main()
