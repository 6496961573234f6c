"""Runs a preset that learns from rewards with several seeds, and records what its held-out tasks score.

    python bench/rl_learning.py [--preset rl-quickstart] [--seeds 11 22 33] [--set KEY=VALUE ...]

Each run is one `prime-train run` from an empty folder, the training of its tokenizer included. `first` is the mean
reward of the first evaluation on held-out tasks, `last` that of the last one.
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

PROGRAM = Path(sys.executable).with_name("prime-train")
_LEAST_REWARD, _MOST_S = 0.9, 600.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="rl-quickstart")
    parser.add_argument("--seeds", type=int, nargs="+", default=[11, 22, 33])
    parser.add_argument("--set", nargs="+", default=[], help="more settings, as of `prime-train run`")
    given = parser.parse_args()
    rows = [learn(given.preset, seed, given.set) for seed in given.seeds]
    record.write("rl_learning", rows)
    missed = [row for row in rows if row["last"] < _LEAST_REWARD or row["median"] > _MOST_S]
    sys.exit(f"{len(missed)} of {len(rows)} runs missed a reward of {_LEAST_REWARD} in {_MOST_S:g} s" if missed else 0)


def learn(preset: str, seed: int, settings: list[str]) -> dict[str, Any]:
    """One run in an empty folder: its seconds, and the rewards of its evaluations."""
    options = [f"--set={setting}" for setting in (f"run.seed={seed}", *settings)]
    with tempfile.TemporaryDirectory() as folder:
        began_s = time.perf_counter()
        command = [str(PROGRAM), "run", preset, "--run-name", "bench", *options]
        subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
        took_s = time.perf_counter() - began_s
        shown = subprocess.run([str(PROGRAM), "status", "bench", "--json"], cwd=folder, check=True, capture_output=True)
        curve = (Path(folder) / "runs" / "bench" / "plots" / "reward.png").exists()
    (tasks,) = json.loads(shown.stdout)["tasks"]
    return record.emit(
        f"{preset}, seed {seed}",
        [took_s],
        unit="s",
        first=tasks["first_reward"],
        last=tasks["reward"],
        first_step=tasks["first_step"],
        last_step=tasks["step"],
        curve_in_report=curve,
        asked=f"last >= {_LEAST_REWARD} in {_MOST_S:g} s",
    )


if __name__ == "__main__":
    main()
