"""Cuts a save of every layout at 200 moments, and its files at 200 lengths: `python bench/layout_cuts.py [TIMES]`.

The saves and the judgement are in tests/unit/checkpoints; a checkpoint that is called complete and is not ends it.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

import record

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))


def main() -> None:
    from tests.unit.checkpoints.test_layouts import check_cuts, check_truncations
    from tests.unit.checkpoints.written_saves import SAVES

    times = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    began_s, commit = time.monotonic(), record.commit()  # before the code can change
    for check in (check_cuts, check_truncations):
        for name in SAVES:
            with tempfile.TemporaryDirectory() as folder:
                check(name, Path(folder), times)
    row = {
        "what": "saves of other trainers: cut at a random moment, or one file cut at a random length",
        "layouts": len(SAVES),
        "cuts": times * len(SAVES),
        "truncations": times * len(SAVES),
        "wrongly_complete": 0,
        "seconds": round(time.monotonic() - began_s, 1),
        "machine": record.machine(),
        "commit": commit,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }
    print(json.dumps(row), flush=True)
    record.write("layout_cuts", [row])


if __name__ == "__main__":
    main()
