"""Measures the live tensors of a step of the bundled trainer on the CPU, beside the estimate.

tests/system/trainer/live_tensors.py counts the tensors. `error` compares the estimate with a trainer whose norms and
softmax keep the same tensors as on a GPU, `unfused_error` with the unchanged trainer on the CPU.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

import record
import torch

sys.path.insert(0, str(record.HERE.parent))

from tests.system.trainer.live_tensors import Case, cases, estimated, measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--terms", action="store_true", help="print every term of the estimate")
    options = parser.parse_args()
    torch.set_num_threads(1)  # the models are too small to share among cores
    rows = [_row(case, show_terms=options.terms) for case in cases()]
    record.write("live_tensors", rows)


def _row(case: Case, *, show_terms: bool) -> dict[str, Any]:
    live, plain, terms = measured(case), measured(case, fused=False), estimated(case)
    total = sum(term.bytes for term in terms)
    row = {
        "what": f"live tensors of one step: {case.name}",
        "measured_bytes": live.peak,
        "resident_bytes": live.resident,
        "estimated_bytes": round(total),
        "error": round(total / live.peak - 1, 4),
        "unfused_bytes": plain.peak,
        "unfused_error": round(total / plain.peak - 1, 4),
        "torch": torch.__version__,
        "machine": record.machine(),
        "commit": record.commit(),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }
    sys.stdout.write(f"{json.dumps(row)}\n")
    for term in terms if show_terms else ():
        sys.stdout.write(f"    {term.name:40s} {term.bytes / 2**20:10.2f} MiB  {term.formula}\n")
    return row


if __name__ == "__main__":
    main()
