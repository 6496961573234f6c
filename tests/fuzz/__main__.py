"""`python -m tests.fuzz`: damages run directories and judges what the commands do with them."""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.fuzz.case import Failure, Plan, play
from tests.fuzz.stage import Stage, stranger
from tests.fuzz.templates import make

REPORT_EVERY = 50  # cases


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Damage run directories.")
    parser.add_argument("--seed", type=int, default=0, help="of the first case; the next case has the next seed")
    parser.add_argument("--cases", type=int, default=30)
    parser.add_argument("--limit-s", type=float, default=60.0, help="longest time of a command")
    parser.add_argument("--read-only", action="store_true", help="only read the runs, and continue none")
    parser.add_argument("--torch", action="store_true", help="train with the real loop")
    parser.add_argument("--ranks", type=int, default=1, help="of the trainer; two train with the real loop")
    parser.add_argument("--only", nargs="*", default=(), help="areas or kinds of damage, such as manifest and forge")
    parser.add_argument("--root", type=Path, help="keep templates and the last case in this folder")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="fuzz-") as temporary:
        stage = Stage((given.root or Path(temporary)).resolve(), given.torch or given.ranks > 1, given.ranks)
        failures = run(
            stage,
            range(given.seed, given.seed + given.cases),
            Plan(given.limit_s, not given.read_only, tuple(given.only)),
        )
    return 1 if failures else 0


def run(stage: Stage, seeds: range, plan: Plan) -> list[Failure]:
    """Play a case for each seed, print the failures and a summary, and return the failures."""
    stage.prepare()
    reference = make(stage)
    began_s = time.monotonic()
    failures: list[Failure] = []
    codes: Counter[str] = Counter()
    # Ctrl-C ends a long run early; its summary counts the cases that were played.
    with contextlib.suppress(KeyboardInterrupt), contextlib.ExitStack() as stack:
        process = stack.enter_context(stranger())
        for seed in seeds:
            if process.poll() is not None:  # the case before ended it
                process = stack.enter_context(stranger())
            code, found = play(stage, reference, random.Random(seed), process, plan)
            codes[code] += 1
            if codes.total() % REPORT_EVERY == 0:
                _print(f"{codes.total()} of {len(seeds)} cases, {len(failures)} failures")
            for failure in found:
                failures.append(failure)
                loop = f" --ranks {stage.ranks}" if stage.ranks > 1 else " --torch" if stage.torch else ""
                only = f" --only {' '.join(plan.only)}" if plan.only else ""
                again = f"python -m tests.fuzz --seed {seed} --cases 1{loop}{only}"
                _print(f"{seed} [{failure.area}] {failure.damage}\n    {failure.what}\n    {again}")
    summary = {
        "cases": codes.total(),
        "seed": seeds.start,
        "loop": "torch" if stage.torch else "arithmetic",
        "ranks": stage.ranks,
        "failed_cases": len({failure.damage for failure in failures}),
        "by_area": dict(Counter(failure.area for failure in failures)),
        "ends": dict(codes),
        "wall_s": round(time.monotonic() - began_s, 1),
    }
    _print(json.dumps(summary))
    return failures


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
