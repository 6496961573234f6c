"""Plays a case for each seed, and prints the failures and a summary in one line of JSON."""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

Case = Callable[[random.Random], Sequence[str]]  # what was wrong; an exception is a failure, too


def show(text: str) -> None:
    sys.__stdout__.write(f"{text}\n")  # type: ignore[union-attr] # a case may look at what is written to sys.stdout
    sys.__stdout__.flush()  # type: ignore[union-attr]


def play(name: str, case: Case, arguments: list[str], limit_s: float = 60.0) -> int:
    """The exit code of `python -m NAME`: 1 if a case failed, or took longer than `limit_s`."""
    parser = argparse.ArgumentParser(prog=f"python -m {name}")
    parser.add_argument("--seed", type=int, default=0, help="of the first case; the next case has the next seed")
    parser.add_argument("--cases", type=int, default=30)
    given = parser.parse_args(arguments)
    failed, began_s = 0, time.monotonic()
    for seed in range(given.seed, given.seed + given.cases):
        case_s = time.monotonic()
        try:
            problems = list(case(random.Random(seed)))
        except Exception as error:  # whatever is not expected is the finding
            place = traceback.extract_tb(error.__traceback__)[-1]
            problems = [f"{type(error).__name__}: {error!s:.200} at {Path(place.filename).name}:{place.lineno}"]
        if time.monotonic() - case_s > limit_s:
            problems.append(f"it took {time.monotonic() - case_s:.0f} s")
        failed += bool(problems)
        for problem in problems:
            show(f"{seed} {problem}\n    python -m {name} --seed {seed} --cases 1")
    wall_s = round(time.monotonic() - began_s, 1)
    show(json.dumps({"cases": given.cases, "seed": given.seed, "failed_cases": failed, "wall_s": wall_s}))
    return 1 if failed else 0
