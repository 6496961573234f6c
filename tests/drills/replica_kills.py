"""Kills one of three replicas at seeded instants, also inside a sum, and counts what became of rows and weights.

Run as a program it prints one JSON line: python -m tests.drills.replica_kills --seeds N [--first N] [--folder FOLDER]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from prime_train import spec
from prime_train.core.rundir import RunDir
from prime_train.events import ReplicasJoined
from prime_train.spec.supervision import PrimeTrain, Restart
from prime_train.trainer.replicas.life_sign import LifeSign, folder_of, read_sign
from prime_train.trainer.replicas.lighthouse import HEARTBEAT_LIMIT_MS
from tests.drills.replica_launcher import DIARY_ENV
from tests.unit.trainer import tiny

REPLICAS = 3
LIMIT_S = HEARTBEAT_LIMIT_MS / 1000 + 2.0
ROWS = 7  # of a step: no number of replicas but one divides it
_ENDLESS = 10**6
# Sums in another order are rounded otherwise. With the default rate each step multiplies that, also without replicas:
# 2e-2 after 900 steps. With this one it stays below 1e-6.
_RATE = 1e-4
_LIKE = 1e-4
_LOOK_S = 0.002
_SETTLED_STEPS = 5
_SOON = Restart(backoff_s=0.1, backoff_max_s=0.1)  # the kills follow each other faster than faults do


@dataclass
class ReplicaCounts:
    """What was seen. All from `late` on must stay 0."""

    kills: int = 0
    inside_sums: int = 0
    steps: int = 0
    rejoined: int = 0
    slowest_s: float = 0.0  # from a kill to the next step that both others committed
    rejoin_s: float = 0.0  # the longest time from a kill to a step of all three
    late: int = 0  # kills after which that took more than the limit
    lost_rows: int = 0  # steps whose rows were not each used once
    different_weights: int = 0  # steps that replicas of one quorum began with different weights
    missing_steps: int = 0  # of metrics.jsonl
    different_tokens: int = 0  # steps with other tokens than without replicas
    different_losses: int = 0  # by more than the order of sums explains
    seen: list[str] = field(default_factory=list)


@dataclass
class ReplicaRun:
    """One run of replicas under their launcher. A second attempt takes the place of the first one."""

    folder: Path
    run: spec.RunSpec
    variables: dict[str, str] = field(default_factory=dict)
    attempt: int = 1

    def __post_init__(self) -> None:
        self.run_dir = tiny.prepare(self.folder / "run", self.run)
        self.diary = self.folder / "diary"

    @property
    def numbers(self) -> range:
        """Those of the replicas."""
        return range(self.run.parallel.replicas)

    @contextmanager
    def started(self, resume_step: int = 0) -> Iterator[subprocess.Popen[bytes]]:
        """The launcher. At the end of the block it and its replicas are ended, where they still run."""
        own = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "RUST_LOG": "warn", DIARY_ENV: str(self.diary)}
        arguments = [str(self.run_dir.path), "--attempt", str(self.attempt), "--resume-step", str(resume_step)]
        command = [sys.executable, "-m", "tests.drills.replica_launcher", *arguments]
        with open(self.folder / "log", "ab") as log:
            process = subprocess.Popen(command, env=os.environ | own | self.variables, stdout=log, stderr=log)
        try:
            yield process
        finally:
            pids = [sign.pid for sign in map(self.sign, self.numbers) if sign is not None]
            if process.poll() is None:
                process.kill()
                process.wait()
                for pid in pids:
                    kill(pid)

    def sign(self, number: int) -> LifeSign | None:
        return read_sign(folder_of(self.run_dir, self.attempt), number)

    def step(self, number: int) -> int:
        sign = self.sign(number)
        return -1 if sign is None or sign.stage in ("setup", "ready") else sign.step

    def members(self) -> tuple[str, ...]:
        """Of the newest quorum, by the events."""
        found = [event for event in tiny.events(self.run_dir) if isinstance(event, ReplicasJoined)]
        return found[-1].members if found else ()

    def lines(self) -> Iterator[tuple[int, list[str]]]:
        """The diaries: (replica, words)."""
        for number in self.numbers:
            path = Path(f"{self.diary}-{number}")
            for line in path.read_text().splitlines() if path.exists() else ():
                yield number, line.split()

    def commits(self, number: int) -> list[tuple[int, float]]:
        """(step, when) of each commit of a replica."""
        words = (words for of, words in self.lines() if of == number and words[0] == "commit")
        return [(int(step), float(when)) for _, step, _, when in words]

    def await_all(self, process: subprocess.Popen[bytes], begun: list[int]) -> None:
        """Wait until all replicas have taken some steps together, `begun` each being behind them."""
        goal = max(begun) + _SETTLED_STEPS
        until(process, lambda: all(self.step(number) >= goal for number in self.numbers))

    def stop(self, process: subprocess.Popen[bytes]) -> None:
        """Have the run stop as a person does, and wait for it."""
        self.run_dir.stop_request(self.attempt).touch()
        assert process.wait(tiny.DEADLINE_S) == 0, (self.folder / "log").read_text()[-4000:]


def until(process: subprocess.Popen[bytes], holds: Callable[[], bool]) -> None:
    """As `tiny.until`, for as long as the launcher runs."""
    limit_s = time.monotonic() + tiny.DEADLINE_S
    while not holds():
        assert process.poll() is None, f"the launcher ended with {process.returncode}"
        assert time.monotonic() < limit_s, "it did not happen in time"
        time.sleep(_LOOK_S)


def kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def find_lighthouse(launcher: int) -> psutil.Process:
    """That of a launcher, by its pid."""
    children = psutil.Process(launcher).children()
    return next(child for child in children if "prime_train.trainer.replicas.lighthouse" in child.cmdline())


def drilled_run(texts: Path, **parts: Any) -> spec.RunSpec:
    """A run of three replicas without an end."""
    layout = spec.Parallel(processes=REPLICAS, replicas=REPLICAS, collective_limit_s=10.0)
    settings: dict[str, Any] = {
        "run": spec.Run(name="drill", max_steps=_ENDLESS, seed=7),
        "parallel": layout,
        "batch": spec.Batch(micro_batch=2, global_batch=ROWS),
        "checkpoint": spec.Checkpoint(interval_steps=100),
        "optim": spec.Optim(lr=_RATE),
        "eval": spec.Eval(interval_steps=_ENDLESS, held_out_ratio=0.1, batches=1),
        "schedule": spec.Schedule(kind="constant", warmup_steps=3),
        "prime_train": PrimeTrain(restart=_SOON),
    }
    return tiny.run_spec(texts, **settings | parts)


def kill_replicas(first_seed: int, seeds: int, folder: Path) -> ReplicaCounts:
    """One run with a kill for each seed, and the same steps without replicas."""
    counts = ReplicaCounts()
    texts = tiny.write_texts(folder / "texts")
    run = ReplicaRun(folder, drilled_run(texts))
    with run.started() as process:
        run.await_all(process, [0])
        for seed in range(first_seed, first_seed + seeds):
            _kill_one(run, process, random.Random(seed), counts, inside=seed % 2 == 1)
        run.stop(process)
    judge_rows(run, counts)
    _compare(run, texts, counts)
    return counts


def _kill_one(
    run: ReplicaRun, process: subprocess.Popen[bytes], chance: random.Random, counts: ReplicaCounts, *, inside: bool
) -> None:
    victim = chance.randrange(REPLICAS)
    time.sleep(chance.uniform(0.0, 0.5))  # the seeded instant
    sign = run.sign(victim)
    while inside and (sign is None or sign.stage != "sums"):
        sign = run.sign(victim)
    while sign is None:
        sign = run.sign(victim)
    kill(sign.pid)
    killed_s = time.monotonic()
    counts.kills += 1
    counts.inside_sums += inside
    others = [number for number in range(REPLICAS) if number != victim]
    reached = [run.step(number) for number in range(REPLICAS)]

    def find_next_s() -> float | None:
        firsts = [next((at for _, at in run.commits(number) if at > killed_s), None) for number in others]
        found = [first for first in firsts if first is not None]
        return max(found) if len(found) == len(others) else None

    until(process, lambda: all(run.step(number) > max(reached) for number in others))
    until(process, lambda: find_next_s() is not None)
    took_s = (find_next_s() or killed_s) - killed_s
    counts.slowest_s = max(counts.slowest_s, round(took_s, 3))
    if took_s > LIMIT_S:
        counts.late += 1
        counts.seen.append(f"kill {counts.kills} of replica {victim}: the others went on after {took_s:.2f} s")
    pid = sign.pid
    until(process, lambda: (now := run.sign(victim)) is not None and now.pid != pid and now.stage in ("works", "sums"))
    counts.rejoin_s = max(counts.rejoin_s, round(time.monotonic() - killed_s, 3))
    counts.rejoined += 1
    run.await_all(process, [run.step(number) for number in range(REPLICAS)])


def judge_rows(run: ReplicaRun, counts: ReplicaCounts) -> None:
    """In every quorum that committed a step, the parts are each row of it once, and the weights before it are equal."""
    parts: dict[tuple[int, str], list[range]] = defaultdict(list)
    weights: dict[tuple[int, str], set[str]] = defaultdict(set)
    sizes: dict[tuple[int, str], int] = {}
    wholes: dict[tuple[int, str], int] = {}  # rows of the step
    committed: set[tuple[int, str]] = set()
    for _, words in run.lines():
        key = (int(words[1]), words[2])
        match words[0]:
            case "part":
                parts[key].append(range(int(words[3]), int(words[4])))
                wholes[key] = int(words[5])
            case "begin":
                weights[key].add(words[3])
                sizes[key] = int(words[4])
            case "commit":
                committed.add(key)
    for key in committed:
        rows = sorted(row for part in parts[key] for row in part)
        if rows != list(range(wholes[key])) or len(parts[key]) != sizes[key]:
            counts.lost_rows += 1
            counts.seen.append(f"step {key[0]} in quorum {key[1]}: rows {rows}")
        if len(weights[key]) != 1:
            counts.different_weights += 1
            counts.seen.append(f"step {key[0]} in quorum {key[1]}: weights {weights[key]}")


def _compare(run: ReplicaRun, texts: Path, counts: ReplicaCounts) -> None:
    """With the same run in one process without replicas."""
    lines = tiny.metrics(run.run_dir)
    counts.steps = len(lines)
    counts.missing_steps = sum(line["step"] != number for number, line in enumerate(lines, start=1))
    alone = drilled_run(texts, parallel=spec.Parallel(), batch=spec.Batch(micro_batch=ROWS, global_batch=ROWS))
    plain = train_plain(run.folder / "plain", alone, len(lines))
    for ours, theirs in zip(lines, plain, strict=True):
        if (ours["tokens"], ours["tokens_seen"]) != (theirs["tokens"], theirs["tokens_seen"]):
            counts.different_tokens += 1
            counts.seen.append(f"step {ours['step']}: {ours['tokens']} tokens, {theirs['tokens']} without replicas")
        if abs(ours["loss"] - theirs["loss"]) > _LIKE * theirs["loss"]:
            counts.different_losses += 1
            counts.seen.append(f"step {ours['step']}: loss {ours['loss']}, {theirs['loss']} without replicas")


def train_plain(path: Path, run: spec.RunSpec, steps: int) -> list[dict[str, Any]]:
    """The first lines of the metrics of a run without replicas."""
    run_dir: RunDir = tiny.prepare(path, run)
    process = tiny.start(run_dir)
    try:
        tiny.until(lambda: run_dir.metrics.exists() and run_dir.metrics.read_bytes().count(b"\n") >= steps)
    finally:
        tiny.kill(process)
    return tiny.metrics(run_dir)[:steps]


def main() -> None:
    parser = argparse.ArgumentParser(description="Kill one of three replicas at seeded instants.")
    parser.add_argument("--seeds", type=int, default=60, help="kills")
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--folder", type=Path, help="where the run is kept; a temporary folder by default")
    given = parser.parse_args()
    os.environ.setdefault("PYTEST_VERSION", "drill")  # the run without replicas is forked: see fork_server
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.folder or Path(temporary)
        os.environ.setdefault("PRIME_TRAIN_CACHE", str(folder / "cache"))
        counts = kill_replicas(given.first, given.seeds, folder)
    sys.stdout.write(json.dumps(vars(counts)) + "\n")


if __name__ == "__main__":
    main()
