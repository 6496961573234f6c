"""Measures status, ckpt list and prune, logs and report of a run with millions of events and thousands of checkpoints.

    python bench/large_run.py [--events 2000000] [--checkpoints 10000] [--source SRC] [--keep FOLDER]

The run is made by hand: one attempt whose trainer wrote the events, small checkpoints, a log, and one line of
metrics.jsonl for each step. "mixed" has as many events, every fifth no progress. Each command runs twice, beside the
snapshot that the supervisor of such a run keeps. Before, status runs without it, as for a run that was copied without
its snapshot, and reads all events once. CPU is user and system time of the process; memory its largest resident set.
The source is compiled first, as pip does when it installs a package.
`--source`: a `src` folder of another version, for comparison; its figures are printed and not recorded.
"""

from __future__ import annotations

import argparse
import compileall
import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import record

import prime_train
from prime_train.core.rundir import RunDir
from prime_train.events import (
    AttemptEnded,
    CheckpointDeleted,
    CheckpointSaved,
    ChildStarted,
    Event,
    LaunchAsked,
    Phase,
    Progress,
    Record,
    RunClosed,
    RunOpened,
    TrainerStarted,
)
from prime_train.programs.base import absolute
from prime_train.spec import Checkpoint, Data, Run, RunSpec, Source, to_json

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests.unit.views.written_runs import BEGAN_S, GONE, write_checkpoint, write_events

TRAINER = "trainer-001-rank0"
COMMANDS = (("status",), ("status", "--json"), ("ckpt", "list"), ("ckpt", "prune", "--dry-run"), ("logs",), ("report",))
LIMITS = {"report": (5.0, 150), "ckpt prune --dry-run": (1.4, 150)}  # CPU-seconds, MiB; all others 1 s and 150 MiB

# A process has the memory of its parent until it becomes another program, and that counts for its peak. So a small
# one starts the command: with the bench itself, which has written a large run, every command would have 110 MiB.
_LAUNCHER = """
import os, sys
quiet = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
pid = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ, file_actions=quiet)
_, status, used = os.wait4(pid, 0)
print(used.ru_utime + used.ru_stime, used.ru_maxrss)
sys.exit(os.waitstatus_to_exitcode(status))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=2_000_000)
    parser.add_argument("--checkpoints", type=int, default=10_000)
    parser.add_argument("--source", type=Path, default=Path(prime_train.__file__).parents[1])
    parser.add_argument("--keep", type=Path)
    given = parser.parse_args()
    compileall.compile_dir(given.source / "prime_train", quiet=1)
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.keep or Path(temporary)
        rows = []
        for name, is_mixed in (("progress", False), ("mixed", True)):
            run_dir = RunDir(folder / "runs" / name)
            if not run_dir.path.exists():
                write_run(run_dir, given.events, given.checkpoints, is_mixed=is_mixed)
            rows += list(measure(run_dir, given.source))
        if given.source == Path(prime_train.__file__).parents[1]:
            record.write("large_run", rows)


def measure(run_dir: RunDir, source: Path) -> Iterator[dict[str, object]]:
    run_dir.snapshot.unlink(missing_ok=True)
    cpu_s, peak_mib = run(run_dir, source, ("status",))
    yield record.emit(f"{run_dir.path.name}: status, no snapshot: CPU", [cpu_s], unit="s")
    yield record.emit(f"{run_dir.path.name}: status, no snapshot: memory", [peak_mib], unit="MiB", asked=150)
    for command in COMMANDS:
        most_cpu_s, most_mib = LIMITS.get(" ".join(command), (1.0, 150))
        for time in ("first", "again"):
            cpu_s, peak_mib = run(run_dir, source, command)
            what = f"{run_dir.path.name}: {' '.join(command)}, {time}"
            yield record.emit(f"{what}: CPU", [cpu_s], unit="s", asked=most_cpu_s)
            yield record.emit(f"{what}: memory", [peak_mib], unit="MiB", asked=most_mib)


def run(run_dir: RunDir, source: Path, command: tuple[str, ...]) -> tuple[float, float]:
    """CPU-seconds and peak MiB of one command."""
    arguments = [*command, run_dir.path.name]
    program = [sys.executable, "-c", "from prime_train.cli.entry import main; main()", *arguments]
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", _LAUNCHER, *program],
        cwd=run_dir.path.parents[1],
        env=os.environ | {"PYTHONPATH": str(source)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    cpu_s, peak_kib = map(float, done.stdout.split())
    return cpu_s, peak_kib / 1024


def write_run(run_dir: RunDir, events: int, checkpoints: int, *, is_mixed: bool) -> None:
    """A run of one attempt with so many events of its trainer, and so many checkpoints on the disk."""
    run_dir.events.mkdir(parents=True)
    spec = RunSpec(
        run=Run(name=run_dir.path.name, max_steps=events, dir=str(run_dir.path.parent)),
        data=Data(sources=(Source(kind="python-stdlib"),)),
        checkpoint=Checkpoint(interval_steps=max(1, events // checkpoints)),
    )
    run_dir.resolved.write_text(to_json(absolute(spec, run_dir)))
    written = itertools.islice(_events(events // checkpoints, is_mixed=is_mixed), events)
    last_s = write_events(run_dir, _records(TRAINER, written, BEGAN_S + 2))
    opened = (RunOpened(run_dir.path.name, GONE, events, "0"), LaunchAsked(1, 0))
    child = ChildStarted(1, "trainer", GONE, 1, "trainer.log")
    write_events(run_dir, _records("supervisor", (*opened, child), BEGAN_S))
    ended = (AttemptEnded(1, 0, "stopped", "", "", "", "", "", 0), RunClosed("stopped", 75, "SIGTERM"))
    write_events(run_dir, _records("supervisor", ended, last_s + 1, first=3))
    _write_metrics(run_dir, events)
    run_dir.attempt(1).mkdir(parents=True)
    run_dir.log(1, "trainer").write_text("a line of the trainer\n" * events)
    for number in range(1, checkpoints + 1):
        write_checkpoint(run_dir, number * max(1, events // checkpoints))


def _events(interval: int, *, is_mixed: bool) -> Iterator[Event]:
    yield from (TrainerStarted(1, GONE, 0, 1, "cpu", "fp32", 1000, 4096, 0), Phase(1, "train"))
    for step in itertools.count(1):
        yield Progress(1, step, 2.5 + 1 / step, 1e5, step * 8192)
        if is_mixed and step % 4 == 0:
            yield Phase(1, "train")
        if step % interval == 0:
            yield CheckpointSaved(1, step, 1100, 0.01, 0.3)
            yield CheckpointDeleted(1, step - interval, "superseded")


def _records(writer: str, events: Iterable[Event], at_s: float, first: int = 0) -> Iterator[Record]:
    """These events of one life of a writer, 50 ms apart."""
    return (Record(at_s + 0.05 * count, writer, first + count, event, "0123abcd") for count, event in enumerate(events))


_METRICS = {"tokens_per_s": 1e5, "step_s": 0.05, "data_s": 0.001, "forward_backward_s": 0.04, "optimizer_s": 0.005}


def _write_metrics(run_dir: RunDir, steps: int) -> None:
    rest = json.dumps(_METRICS | {"peak_memory_gib": 1.5})[1:]
    with open(run_dir.metrics, "w", encoding="utf-8") as file:
        file.writelines(f'{{"step": {step}, "loss": {2.5 + 1 / step:.6f}, {rest}\n' for step in range(1, steps + 1))


if __name__ == "__main__":
    main()
