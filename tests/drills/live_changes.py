"""Changes the settings of two real ranks, each plan later for one of them than for the other, with kills between.

What has to hold: both ranks put each version in force at the same step, and the run that was killed ends with the
weights and the metrics of one that was not, with the same changes at the same steps. Run as a program it prints one
JSON line: python -m tests.drills.live_changes FIRST_SEED SEEDS FOLDER
"""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import psutil
import torch
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from prime_train import spec
from prime_train.checkpoints import layout
from prime_train.core.plans import ChangePlan, write_plan
from prime_train.core.rundir import RunDir
from prime_train.events import Follower, Record, SettingsApplied
from prime_train.spec.live_values import overlay, read_value
from prime_train.supervise.launch.run_directory import write_applied
from prime_train.trainer.live_settings import FOLDER_ENV
from tests import fork_server
from tests.drills.live_rank import APPLIED_ENV
from tests.unit.trainer import tiny

RANKS = 2
_DELAY_S = 1.0  # of a plan on its way to one of the ranks
_LAST_STEPS = 40  # after the change that ends the run
_KILL_CHANCE = 0.6
_ENDLESS = 10**6

# What a change draws from: values that differ from those before change every weight after them.
_DRAWN: dict[str, tuple[Any, ...]] = {
    "optim.lr": (3e-4, 1e-3, 2e-3, 5e-3),
    "optim.weight_decay": (0.0, 0.1, 0.5),
    "optim.clip_norm": (0.1, 0.5, 2.0),
    "optim.skip_steps": ([], [*range(3, 90, 4)], [*range(2, 90, 7)]),
    "eval.interval_steps": (20, 50, 90),
    "checkpoint.interval_steps": (7, 10, 25),
    "batch.micro_batch": (1, 2),
    "data.sampling_probs": ([0.5, 0.5], [0.9, 0.1], [0.2, 0.8]),
    "data.loader_workers": (0, 1, 2),
}


@dataclass
class ChangeCounts:
    """What was seen. The last three must stay 0."""

    seeds: int = 0
    kills: int = 0
    changes: int = 0
    repeated: int = 0  # changes that a later attempt put in force again at their steps
    different_steps: int = 0  # versions that the two ranks put in force at different steps
    different_weights: int = 0  # runs whose last checkpoint is not that of the uninterrupted run
    different_metrics: int = 0
    seen: list[str] = field(default_factory=list)


@dataclass
class ChangedRun:
    """One run of two ranks from its first step to its last one."""

    folder: Path
    run: spec.RunSpec
    chance: random.Random
    plans: list[ChangePlan] = field(default_factory=list)
    attempt: int = 0
    kills: int = 0
    _ranks: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.run_dir = tiny.prepare(self.folder / "run", self.run)
        self.applied = self.folder / "applied"
        self.applied.mkdir()

    # --- the trainer, as a supervisor starts it ---

    def launch(self, resume_step: int, applied: Mapping[int, int] | None = None) -> None:
        """Start both ranks. `applied`: the version and step of each change that they repeat; None = by the events."""
        self.attempt += 1
        steps = self.steps() if applied is None else applied
        write_applied(tuple(sorted(steps.items())), self.run_dir, self.attempt)
        own = {"OMP_NUM_THREADS": "1", APPLIED_ENV: str(self.applied), FOLDER_ENV: str(self.folder / "plans")}
        own |= {"WORLD_SIZE": str(RANKS), "LOCAL_WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1"}
        own["MASTER_PORT"] = str(_find_port())
        arguments = [str(self.run_dir.path), "--attempt", str(self.attempt), "--resume-step", str(resume_step)]
        command = [fork_server.interpreter(), "-m", "tests.drills.live_rank", *arguments]
        with open(self.folder / "log", "ab") as log:
            self._ranks = [
                subprocess.Popen(
                    command, env=os.environ | own | {"RANK": str(rank), "LOCAL_RANK": str(rank)}, stdout=log, stderr=log
                )
                for rank in range(RANKS)
            ]

    def kill(self) -> None:
        """Kill both ranks, one soon after the other, and wait until neither writes any more."""
        for rank in self._ranks:
            rank.kill()
        for rank in self._ranks:
            rank.wait(tiny.DEADLINE_S)
        # The server of the forks ends a rank after its command: a line that is cut would be one.
        tiny.until(lambda: not self._find_writers())
        self.kills += 1

    def _find_writers(self) -> list[int]:
        log = str(self.folder / "log")
        return [one.pid for one in psutil.process_iter() if _writes_to(one, log)]

    def wait(self) -> None:
        codes = [rank.wait(tiny.DEADLINE_S) for rank in self._ranks]
        assert codes == [0] * RANKS, (self.folder / "log").read_text()[-4000:]

    def recover(self) -> None:
        newest = layout.newest_complete(self.run_dir.checkpoints)
        self.launch(0 if newest is None else newest.step)

    # --- what it does ---

    def records(self) -> list[Record]:
        return list(Follower(self.run_dir.events).stream())

    def steps(self) -> dict[int, int]:
        """The step of each version, by the events."""
        found = (record.event for record in self.records())
        return {event.version: event.step for event in found if isinstance(event, SettingsApplied)}

    def step(self) -> int:
        """The newest line of the metrics, by its number."""
        written = self.run_dir.metrics.read_text(encoding="utf-8") if self.run_dir.metrics.exists() else ""
        whole, _, _ = written.rpartition("\n")  # rank 0 may be in the middle of a line
        return int(json.loads(whole.splitlines()[-1])["step"]) if whole else 0

    # --- changes ---

    def plan(self, values: dict[str, Any]) -> ChangePlan:
        """The next version, as the supervisor writes it."""
        present = overlay(self.run, self.plans)
        before, config = ({key: read_value(run, key) for key in values} for run in (present, self.run))
        plan = ChangePlan(version=len(self.plans) + 1, values=values, before=before, config=config, by="drill")
        self.plans.append(plan)
        write_plan(self.run_dir.settings, plan)
        return plan

    def deliver(self, plan: ChangePlan) -> None:
        """One rank has the plan up to a second before the other. Kills between the two, and after them."""
        first = self.chance.randrange(RANKS)
        write_plan(self.folder / "plans" / f"rank{first}", plan)
        delay_s = self.chance.choice((0.0, self.chance.uniform(0.0, _DELAY_S), _DELAY_S))
        kill_s = self.chance.uniform(0.0, 1.5 * _DELAY_S) if self.chance.random() < _KILL_CHANCE else None
        if kill_s is not None and kill_s < delay_s:
            time.sleep(kill_s)
            self.kill()
            self.recover()
            kill_s = None
        time.sleep(delay_s)
        write_plan(self.folder / "plans" / f"rank{1 - first}", plan)
        if kill_s is not None:
            time.sleep(kill_s)
            self.kill()
            self.recover()
        tiny.until(lambda: plan.version in self.steps() or self._has_ended())

    def _has_ended(self) -> bool:
        return any(rank.poll() is not None for rank in self._ranks)


def _writes_to(process: psutil.Process, log: str) -> bool:
    with suppress(psutil.Error, OSError):
        return os.readlink(f"/proc/{process.pid}/fd/1") == log  # noqa: PTH115 - a text is compared
    return False


def _find_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def drill(seed: int, folder: Path, texts: Path, counts: ChangeCounts) -> None:
    """One run with changes and kills, and the same run without a kill."""
    chance = random.Random(seed)
    plain = tiny.run_spec(texts)
    sources = (*plain.data.sources, spec.Source(kind="files", path=str(texts / "00*.txt")))
    # In every other run the sources are drawn by documents.
    unit: Literal["documents", "tokens"] = "tokens" if seed % 4 < RANKS else "documents"
    run = tiny.run_spec(
        texts,
        data=replace(plain.data, sources=sources, sampling_probs=(0.5, 0.5), sampling_unit=unit),
        run=spec.Run(name="changed", max_steps=_ENDLESS, seed=seed),
        parallel=spec.Parallel(processes=RANKS, dp_shard=1 + seed % 2 * (RANKS - 1)),
        batch=spec.Batch(micro_batch=2, global_batch=4),
        checkpoint=spec.Checkpoint(interval_steps=10),
        eval=spec.Eval(interval_steps=50, held_out_ratio=0.1, batches=1),
    )
    changed = ChangedRun(folder / "changed", run, chance)
    changed.launch(0)
    for _ in range(chance.randint(1, 2)):
        beyond = changed.step() + chance.randint(3, 20)
        tiny.until(lambda: changed.step() >= beyond)  # noqa: B023 - it is called before the next value
        keys = chance.sample(sorted(_DRAWN), chance.randint(1, 3))
        present = overlay(run, changed.plans)
        values = {key: chance.choice([one for one in _DRAWN[key] if one != read_value(present, key)]) for key in keys}
        changed.deliver(changed.plan(values))
    last = changed.step() + _LAST_STEPS
    changed.deliver(changed.plan({"run.max_steps": last}))
    changed.wait()
    straight = ChangedRun(folder / "straight", run, chance)
    for plan in changed.plans:
        write_plan(straight.run_dir.settings, plan)
    # The steps of the changes are those of the other run: what is compared is the killing.
    straight.launch(0, changed.steps())
    straight.wait()
    _compare(seed, changed, straight, counts)


def _compare(seed: int, changed: ChangedRun, straight: ChangedRun, counts: ChangeCounts) -> None:
    counts.seeds += 1
    counts.kills += changed.kills
    counts.changes += len(changed.plans)
    lines = {rank: (changed.applied / f"rank{rank}").read_text().splitlines() for rank in range(RANKS)}
    counts.repeated += len(lines[0]) - len(changed.plans)
    by_version = [{(line.split()[1], line.split()[2]) for line in own} for own in lines.values()]
    if by_version[0] != by_version[1] or len(by_version[0]) != len(changed.plans):
        counts.different_steps += 1
        counts.seen.append(f"seed {seed}: rank 0 {lines[0]}, rank 1 {lines[1]}")
    ends = [layout.newest_complete(each.run_dir.checkpoints) for each in (changed, straight)]
    loaded = [
        _load(end.path, each.folder / "end.pt") for end, each in zip(ends, (changed, straight), strict=True) if end
    ]
    if len(loaded) < len(ends) or not _is_equal(loaded[0], loaded[1]):
        counts.different_weights += 1
        counts.seen.append(f"seed {seed}: the last checkpoints differ")
    if _lines(changed.run_dir) != _lines(straight.run_dir):
        counts.different_metrics += 1
        counts.seen.append(f"seed {seed}: the metrics differ")


def _lines(run_dir: RunDir) -> list[tuple[Any, ...]]:
    return [(line["step"], line["loss"], line["lr"], line["grad_norm"]) for line in tiny.metrics(run_dir)]


def _load(checkpoint: Path, out: Path) -> dict[str, Any]:
    dcp_to_torch_save(checkpoint, out)
    loaded: dict[str, Any] = torch.load(out, weights_only=False)
    return loaded


def _is_equal(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_is_equal(one[key], other[key]) for key in one)
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else bool(one == other)


def change_runs(first_seed: int, seeds: int, folder: Path) -> ChangeCounts:
    counts = ChangeCounts()
    texts = tiny.write_texts(folder / "texts")
    for seed in range(first_seed, first_seed + seeds):
        drill(seed, folder / f"seed-{seed}", texts, counts)
    return counts


def main() -> None:
    first_seed, seeds, folder = sys.argv[1:]
    os.environ.setdefault("PYTEST_VERSION", "drill")  # the ranks are forked: see fork_server
    counts = change_runs(int(first_seed), int(seeds), Path(folder))
    sys.stdout.write(json.dumps(vars(counts)) + "\n")


if __name__ == "__main__":
    main()
