"""Kills 200 pushes, pulls and prunes of backups at random moments: `python bench/backup_drills.py [KILLS]`.

Half of them run while the S3 server fails 30 % of its calls. The drills and the judgement are in
tests/drills/backup_drill.py.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import record

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

SERIES = 4  # at a time, each with a server and a bucket of its own


def run_series(number: int, kills: int) -> dict[str, Any]:
    from tests.drills import backup_drill

    with tempfile.TemporaryDirectory() as folder:
        return asdict(backup_drill.run_series(1000 * number, kills, Path(folder)))


def main() -> None:
    wanted = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    began_s, commit = time.monotonic(), record.commit()  # before the code can change
    with ProcessPoolExecutor(SERIES, get_context("spawn")) as pool:
        found = list(pool.map(run_series, range(SERIES), [wanted // SERIES] * SERIES))
    kills, finished = Counter[str](), Counter[str]()
    for tally in found:
        kills.update(tally["kills"])
        finished.update(tally["finished"])
    row = {
        "what": "backup drills: killed at a random moment, judged byte for byte, then repeated to the end",
        "drills": sum(kills.values()) + sum(finished.values()),
        "kills": sum(kills.values()),
        "killed_before_the_end": dict(kills),
        "ended_before_the_kill": dict(finished),
        "left_a_partial_backup": sum(tally["partial"] for tally in found),
        "failed_calls_ratio": "0.3 in every other four drills",
        "complete_backups_lost": [text for tally in found for text in tally["lost"]],
        "incomplete_taken_for_complete": [text for tally in found for text in tally["wrong"]],
        "not_repaired_by_a_repeat": [text for tally in found for text in tally["not_repaired"]],
        "seconds": round(time.monotonic() - began_s, 1),
        "machine": record.machine(),
        "commit": commit,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }
    print(json.dumps(row), flush=True)
    record.write("backup_drills", [row])
    kept = ("complete_backups_lost", "incomplete_taken_for_complete", "not_repaired_by_a_repeat")
    sys.exit(1 if any(row[name] for name in kept) else 0)


if __name__ == "__main__":
    main()
