"""Takes a run from two replicas to one and back while its documents change, beside the same run without a loss.

The lost replica stays away until the one that is left has taken steps alone. The change comes before the loss, while
one is away, or when it comes back. Run as a program it prints one JSON line:
python -m tests.drills.replica_changes --seeds N [--first N] [--folder FOLDER]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

from prime_train import spec
from prime_train.core.plans import ChangePlan, write_plan
from prime_train.events import Evaluated, SettingsApplied
from prime_train.supervise.launch.run_directory import write_applied
from prime_train.trainer.data.text_tokenizer import load_tokenizer
from tests.drills.replica_kills import ReplicaCounts, ReplicaRun, drilled_run, judge_rows, kill, until
from tests.drills.replica_launcher import HOLD_ENV, describe_rows
from tests.drills.replica_rows import list_used, read_stream
from tests.unit.trainer import tiny

REPLICAS = 2
ROWS = 7  # of a step, of which the two replicas have 3 and 4
TRANSFORM = "tests.drills.replica_changes:shout"
LAST_STEP = 100  # every run has it, and is compared there
_ALONE_STEPS = 25
_LOSS_RATIO = 0.001  # by which the order of sums may change a loss: 8e-6 was the most in five seeds
_WHEN = ("while away", "before the loss", "when it comes back")


def shout(text: str) -> str:
    """The transformation."""
    return text.upper()


@dataclass
class ChangedReplicas:
    """What was seen. All from `lost_rows` on must stay 0."""

    seeds: int = 0
    steps: int = 0
    alone: int = 0  # steps of one replica
    changed: int = 0  # steps of transformed documents alone
    loss_difference: float = 0.0  # the largest one of a step, as a part of its loss
    held_out: dict[int, tuple[float, float]] = field(default_factory=dict)  # by seed: with the loss, and without
    noise: float = 0.0  # standard deviation over the seeds without a loss
    deviation: float = 0.0  # the largest one of a seed from its run without a loss
    lost_rows: int = 0  # steps whose rows were not each used once
    different_weights: int = 0  # steps that the replicas began with different weights
    other_batches: int = 0  # steps without exactly the rows of the global batch, by the replicas or by the metrics
    other_rows: int = 0  # steps with other rows than their place and their transformations give
    other_versions: int = 0  # steps whose text was changed too early or too late
    different_tokens: int = 0  # steps with other tokens than without a loss
    different_losses: int = 0  # by more than the order of sums explains
    beyond_noise: int = 0  # seeds whose held-out loss is further from the run without a loss than the noise
    seen: list[str] = field(default_factory=list)


def changed_run(texts: Path, seed: int, last_step: int) -> spec.RunSpec:
    run = drilled_run(
        texts,
        run=spec.Run(name="drill", max_steps=10**6, seed=seed),
        parallel=spec.Parallel(processes=REPLICAS, replicas=REPLICAS, collective_limit_s=10.0),
        batch=spec.Batch(micro_batch=2, global_batch=ROWS),
        eval=spec.Eval(interval_steps=last_step, held_out_ratio=0.1, batches=3),
    )
    return replace(run, data=replace(run.data, allowed_transforms=(TRANSFORM,)))


def change_replicas(first_seed: int, seeds: int, folder: Path, last_step: int = LAST_STEP) -> ChangedReplicas:
    """For each seed a run with a loss and one without, both with the same change at the same step."""
    found = ChangedReplicas()
    texts = tiny.write_texts(folder / "texts")
    for seed in range(first_seed, first_seed + seeds):
        config = changed_run(texts, seed, last_step)
        lossy = ReplicaRun(folder / f"lossy-{seed}", config, {HOLD_ENV: str(folder / f"lossy-{seed}" / "back")})
        values: dict[str, list[str]] = {"data.transforms": []}
        plan = ChangePlan(version=1, values={"data.transforms": [TRANSFORM]}, before=values, config=values)
        _train_lossy(lossy, plan, random.Random(seed), _WHEN[seed % len(_WHEN)])
        reached = len(tiny.metrics(lossy.run_dir))
        straight = ReplicaRun(folder / f"straight-{seed}", config)
        write_plan(straight.run_dir.settings, plan)
        write_applied(((1, applied_step(lossy)),), straight.run_dir, 1)
        with straight.started() as process:
            until(process, lambda: straight.step(0) >= reached)  # noqa: B023 - it is called before the next value
            straight.stop(process)
        found.seeds += 1
        _judge(lossy, seed, found)
        _compare(lossy, straight, seed, found)
    return _judge_noise(found)


def applied_step(run: ReplicaRun) -> int:
    """The first step with the change."""
    return next((event.step for event in tiny.events(run.run_dir) if isinstance(event, SettingsApplied)), 0)


def _train_lossy(run: ReplicaRun, plan: ChangePlan, chance: random.Random, when: str) -> None:
    last_step = run.run.eval.interval_steps or 0

    def change(at: str) -> None:
        if at == when:
            write_plan(run.run_dir.settings, plan)

    with run.started() as process:
        run.await_all(process, [0])
        time.sleep(chance.uniform(0.0, 0.5))  # the seeded instant
        change("before the loss")
        take_one_away(run, process, chance.randrange(REPLICAS))
        change("while away")
        if when == "while away":
            until(process, lambda: applied_step(run) > 0)
        begun = max(map(run.step, run.numbers))
        until(process, lambda: max(map(run.step, run.numbers)) >= begun + _ALONE_STEPS)
        Path(run.variables[HOLD_ENV]).touch()
        change("when it comes back")
        until(process, lambda: len(run.members()) == REPLICAS)
        run.await_all(process, [*map(run.step, run.numbers), applied_step(run) + _ALONE_STEPS, last_step])
        run.stop(process)


def take_one_away(run: ReplicaRun, process: subprocess.Popen[bytes], victim: int) -> None:
    """Kill a replica, and wait until the other one trains alone. It stays away until the file is there."""
    sign = run.sign(victim)
    assert sign is not None
    kill(sign.pid)
    other = 1 - victim
    until(process, lambda: run.members() == (str(other),))
    begun = run.step(other)
    until(process, lambda: run.step(other) > begun)


def _judge(run: ReplicaRun, seed: int, found: ChangedReplicas) -> None:
    """The rows of the run with a loss: each once, always as many, and those of its place and version."""
    counts = ReplicaCounts()
    judge_rows(run, counts)
    found.lost_rows += counts.lost_rows
    found.different_weights += counts.different_weights
    found.seen += counts.seen
    used, lines = list_used(run), tiny.metrics(run.run_dir)
    found.steps += len(used)
    found.alone += sum(step.replicas == 1 for step in used)
    by_metrics = [line["sequences"] for line in lines]
    for step, (rows, counted) in enumerate(zip((len(one.rows) for one in used), by_metrics, strict=True), start=1):
        if (rows, counted) != (ROWS, ROWS):
            found.other_batches += 1
            found.seen.append(f"seed {seed}, step {step}: {rows} rows, {counted} by the metrics")
    change = applied_step(run)
    later = replace(run.run, data=replace(run.run.data, transforms=(TRANSFORM,)))
    expected, changed = read_stream(run.run, [ROWS] * len(used), {change: later})
    tokenizer = load_tokenizer(run.run)
    begins = changed.index(True) + 1
    assert change <= begins
    for step, (one, batch) in enumerate(zip(used, expected, strict=True), start=1):
        if one.rows != describe_rows(batch):
            found.other_rows += 1
            found.seen.append(f"seed {seed}, step {step}: other rows than the stream has there")
        text = "".join(tokenizer.decode(row) for row in batch.tokens.tolist()).replace("<|endoftext|>", "")
        is_changed = not any(letter.islower() for letter in text)
        found.changed += is_changed
        if step != begins and is_changed != (step > begins):  # the step between has documents of both kinds
            found.other_versions += 1
            found.seen.append(f"seed {seed}, step {step}: changed from step {begins} on, text {text[:80]!r}")


def _compare(lossy: ReplicaRun, straight: ReplicaRun, seed: int, found: ChangedReplicas) -> None:
    """With the run without a loss, step by step."""
    assert applied_step(straight) == applied_step(lossy)
    ours, theirs = tiny.metrics(lossy.run_dir), tiny.metrics(straight.run_dir)
    for one, other in zip(ours, theirs, strict=False):
        if (one["step"], one["tokens"], one["tokens_seen"]) != (other["step"], other["tokens"], other["tokens_seen"]):
            found.different_tokens += 1
            found.seen.append(f"seed {seed}, step {one['step']}: {one['tokens']} tokens, {other['tokens']} without")
        difference = abs(one["loss"] - other["loss"]) / other["loss"]
        found.loss_difference = max(found.loss_difference, difference)
        if difference > _LOSS_RATIO:
            found.different_losses += 1
            found.seen.append(f"seed {seed}, step {one['step']}: loss {one['loss']}, {other['loss']} without")
    found.held_out[seed] = find_held_out(lossy), find_held_out(straight)


def find_held_out(run: ReplicaRun) -> float:
    """The held-out loss at the step that all runs have."""
    found = (event for event in tiny.events(run.run_dir) if isinstance(event, Evaluated))
    return next(event.loss for event in found if event.step == run.run.eval.interval_steps)


def _judge_noise(found: ChangedReplicas) -> ChangedReplicas:
    deviations = [abs(lossy - straight) for lossy, straight in found.held_out.values()]
    found.deviation = max(deviations)
    if len(deviations) > 1:  # one seed has no spread
        found.noise = statistics.stdev(straight for _, straight in found.held_out.values())
        found.beyond_noise = sum(deviation > found.noise for deviation in deviations)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Take a run from two replicas to one and back under a change.")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--steps", type=int, default=LAST_STEP, help="every run has at least as many")
    parser.add_argument("--folder", type=Path, help="where the runs are kept; a temporary folder by default")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.folder or Path(temporary)
        os.environ.setdefault("PRIME_TRAIN_CACHE", str(folder / "cache"))
        found = change_replicas(given.first, given.seeds, folder, given.steps)
    sys.stdout.write(json.dumps(vars(found)) + "\n")


if __name__ == "__main__":
    main()
