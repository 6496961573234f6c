"""Kills Hugging Face and Lightning in their saves: `python bench/save_kills.py PYTHON`.

PYTHON has the packages (constraints-trainers.txt). The kills are those of tests/drills/save_kills.py. A checkpoint that
was judged wrongly, or a run that is stuck, is exit code 1.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import record

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
KILLS = {"hf": 110, "lightning": 90}
SEEDS = {"hf": 3201, "lightning": 3202}
FAULTS = ("wrongly_complete", "wrongly_broken", "resumed_from_broken", "stuck")


def main() -> None:
    from tests.drills.save_kills import kill_saves, start

    python, commit, rows = sys.argv[1], record.commit(), []  # the commit before the code can change
    for kind, kills in KILLS.items():
        with tempfile.TemporaryDirectory() as folder, start(python, kind) as trainers:
            counts = kill_saves(trainers, kills, SEEDS[kind], Path(folder, "out"), Path(folder, "tmp"))
        row = {
            "what": f"SIGKILL at a random moment of a save of {kind}, and the trainer started again",
            **vars(counts),
            "save_s": round(median(counts.save_s), 3),
            "seed": SEEDS[kind],
            "machine": record.machine(),
            "commit": commit,
            "date": time.strftime("%Y-%m-%d", time.gmtime()),
        }
        print(json.dumps(row), flush=True)
        rows.append(row)
    record.write("save_kills", rows)
    sys.exit(any(row[fault] for row in rows for fault in FAULTS))


if __name__ == "__main__":
    main()
