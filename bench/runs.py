"""Measures `runs` over a folder of many runs, and `compare` of a run with a million lines of metrics.

    python bench/runs.py [--runs 500] [--steps 1000] [--lines 1000000] [--keep FOLDER]

The runs are made by hand: an attempt of so many steps each, with its events, the snapshot that a supervisor leaves
behind, one line of metrics.jsonl for each step, and a config in which seed and learning rate change from run to run.
CPU is user and system time of the process, its start included; memory its largest resident set.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from functools import reduce
from pathlib import Path

import record
from large_run import run as run_command
from tests.unit.views.written_runs import BEGAN_S, GONE, write_events

import prime_train
from prime_train.core.rundir import RunDir
from prime_train.events import (
    AttemptEnded,
    ChildStarted,
    Event,
    Follower,
    LaunchAsked,
    Progress,
    Record,
    RunClosed,
    RunOpened,
    TrainerStarted,
)
from prime_train.programs.base import absolute
from prime_train.spec import Data, Optim, Run, RunSpec, Source, to_json
from prime_train.supervise.core.fold import fold
from prime_train.supervise.core.journal import save
from prime_train.supervise.core.state import State

REPEATS = 5
SOURCE = Path(prime_train.__file__).parents[1]
_METRICS = {"tokens_per_s": 1e5, "step_s": 0.05, "data_s": 0.001, "forward_backward_s": 0.04, "optimizer_s": 0.005}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--lines", type=int, default=1_000_000)
    parser.add_argument("--keep", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.keep or Path(temporary)
        for number in range(given.runs):
            write_run(RunDir(folder / "runs" / f"run{number:04d}"), number, given.steps)
        for number in range(2):
            write_run(RunDir(folder / "long" / "runs" / f"long{number}"), number, given.lines, progress=1000)
        # What a process and the reading of one run cost on the same machine, at the same time.
        rows = measure("status of one of them", RunDir(folder / "runs" / "run0000"), ("status",))
        for command in (("runs",), ("runs", "--json"), ("runs", "--where", "optim.lr>5e-4", "--sort=best")):
            listed = RunDir(folder / "below" / "runs")  # a command gets the name of the folder, beside which it runs
            rows += measure(f"{given.runs} runs: {' '.join(command)}", listed, command, asked=1.0)
        compared = RunDir(folder / "long" / "runs" / "long1")
        rows += measure(f"compare of 2 runs of {given.lines:,} steps", compared, ("compare", "long0"), n=1)
        record.write("runs", rows)


def measure(
    what: str, run_dir: RunDir, command: tuple[str, ...], n: int = REPEATS, **extra: float
) -> list[dict[str, object]]:
    measured = [run_command(run_dir, SOURCE, command) for _ in range(n)]
    cpu_s, peak_mib = zip(*measured, strict=True)
    return [
        record.emit(f"{what}: CPU", cpu_s, **extra),
        record.emit(f"{what}: memory", peak_mib, unit="MiB"),
    ]


def write_run(run_dir: RunDir, number: int, steps: int, progress: int = 200) -> None:
    """A run that is over, which reported its progress so many times."""
    if run_dir.path.exists():
        return
    run_dir.events.mkdir(parents=True)
    name, at_s = run_dir.path.name, BEGAN_S + 100 * number
    spec = RunSpec(
        run=Run(name=name, max_steps=steps, dir=str(run_dir.path.parent), seed=number),
        data=Data(sources=(Source(kind="python-stdlib"),)),
        optim=Optim(lr=(1 + number % 10) * 1e-4),
    )
    run_dir.resolved.write_text(to_json(absolute(spec, run_dir)))
    done = [max(1, steps * part // progress) for part in range(1, progress + 1)]
    trained: list[Event] = [TrainerStarted(1, GONE, 0, 8, "NVIDIA H100 80GB HBM3", "bf16", 1000, 4096, 0)]
    trained += [Progress(1, step, 2.5 + 1 / step, 1e5, step * 8192) for step in done]
    begun: list[Event] = [RunOpened(name, GONE, steps, "0"), LaunchAsked(1, 0), ChildStarted(1, "trainer", GONE, 1, "")]
    ended: list[Event] = [AttemptEnded(1, 0, "finished", "", "", "", "", "", 0), RunClosed("finished", 0, "")]
    write_events(run_dir, [Record(at_s, "supervisor", place, event, "01") for place, event in enumerate(begun)])
    write_events(
        run_dir,
        [Record(at_s + 0.01 * place, "trainer-001-rank0", place, event, "02") for place, event in enumerate(trained)],
    )
    write_events(
        run_dir, [Record(at_s + 90, "supervisor", 3 + place, event, "01") for place, event in enumerate(ended)]
    )
    rest = json.dumps(_METRICS | {"peak_memory_gib": 1.5})[1:]
    with open(run_dir.metrics, "w", encoding="utf-8") as file:
        file.writelines(
            f'{{"step": {step}, "loss": {2.5 + 1 / step:.6f}, "tokens_seen": {step * 8192}, {rest}\n'
            for step in range(1, steps + 1)
        )
    follower = Follower(run_dir.events)
    save(run_dir, reduce(fold, follower.stream(), State()), follower)


if __name__ == "__main__":
    main()
