"""Takes a run whose batch follows its replicas from two to one and back, and resumes it in the middle of a ramp.

Every row that a step used is compared with the stream, the rate of each step with a sum over the steps before.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal

from prime_train import spec
from tests.drills.replica_changes import take_one_away
from tests.drills.replica_kills import ReplicaCounts, ReplicaRun, drilled_run, judge_rows, until
from tests.drills.replica_launcher import HOLD_ENV, describe_rows
from tests.drills.replica_rows import UsedRows, list_used, read_stream
from tests.unit.trainer import tiny

REPLICAS = 2
PART = 3  # rows of each replica in a step
RAMP_STEPS = 40
_FEW_STEPS = 5
_WARMUP_STEPS = 3  # of `drilled_run`


@dataclass
class ScaledReplicas:
    """What was seen. All from `lost_rows` on must stay 0."""

    resumed: int = 0  # the step of the checkpoint
    resumed_ratio: float = 0.0  # of the rate in that step
    sizes: list[int] = field(default_factory=list)  # replicas of each step
    lost_rows: int = 0
    different_weights: int = 0
    other_batches: int = 0  # steps with other rows than PART of each replica, by the replicas or by the metrics
    other_rows: int = 0  # steps whose rows are not those after the rows of the step before
    other_tokens: int = 0
    other_rates: int = 0
    seen: list[str] = field(default_factory=list)


def scale_replicas(folder: Path, follows: Literal["linear", "sqrt"], victims: tuple[int, int]) -> ScaledReplicas:
    """Two losses with a return between, a stop while one is away, and a resume with both."""
    texts = tiny.write_texts(folder / "texts")
    sizes = {"micro_batch": 2, "global_batch": PART * REPLICAS}
    config = drilled_run(
        texts,
        parallel=spec.Parallel(processes=REPLICAS, replicas=REPLICAS, collective_limit_s=10.0),
        batch=spec.Batch(**sizes, with_replicas=follows, rate_ramp_steps=RAMP_STEPS),
    )
    back = folder / "back"
    run, found = ReplicaRun(folder, config, {HOLD_ENV: str(back)}), ScaledReplicas()
    with run.started() as process:
        run.await_all(process, [0])
        take_one_away(run, process, victims[0])
        _await_steps(run, process, RAMP_STEPS)
        back.touch()
        until(process, lambda: len(run.members()) == REPLICAS)
        _await_steps(run, process, RAMP_STEPS)
        back.unlink()
        take_one_away(run, process, victims[1])
        run.run_dir.stop_request(1).touch()
        back.touch()
        run.stop(process)
    found.resumed = len(tiny.metrics(run.run_dir))
    run.attempt = 2
    with run.started(found.resumed) as process:
        run.await_all(process, [found.resumed])
        _await_steps(run, process, RAMP_STEPS)
        run.stop(process)
    _judge(run, found)
    return found


def _await_steps(run: ReplicaRun, process: subprocess.Popen[bytes], steps: int) -> None:
    """Wait until the replicas that train have taken some steps more than so many."""
    begun = max(map(run.step, run.numbers))
    until(process, lambda: max(map(run.step, run.numbers)) >= begun + steps + _FEW_STEPS)


def _judge(run: ReplicaRun, found: ScaledReplicas) -> None:
    counts = ReplicaCounts()
    judge_rows(run, counts)
    found.lost_rows, found.different_weights, found.seen = counts.lost_rows, counts.different_weights, counts.seen
    used, lines = list_used(run), tiny.metrics(run.run_dir)
    found.sizes = [one.replicas for one in used]
    expected, _ = read_stream(run.run, [len(one.rows) for one in used], {})
    ratios = list_ratios(found.sizes, run.run.batch.with_replicas)
    found.resumed_ratio = ratios[found.resumed - 1]
    seen_tokens = accumulate(one.tokens for one in used)
    for one, line, batch, ratio, seen in zip(used, lines, expected, ratios, seen_tokens, strict=True):
        rate = run.run.optim.lr * min(1.0, line["step"] / _WARMUP_STEPS) * ratio
        wrong = {
            "other_batches": _describe_batch(one) != (PART * one.replicas, line["replicas"], line["sequences"]),
            "other_rows": one.rows != describe_rows(batch),
            "other_tokens": (line["tokens"], line["tokens_seen"]) != (one.tokens, seen),
            "other_rates": abs(line["lr"] - rate) > 1e-9 * rate,
        }
        for name, is_wrong in wrong.items():
            if is_wrong:
                setattr(found, name, getattr(found, name) + 1)
                found.seen.append(f"{name}: {one.replicas} replicas, {len(one.rows)} rows, rate {rate}, {_show(line)}")


def _describe_batch(one: UsedRows) -> tuple[int, int, int]:
    return len(one.rows), one.replicas, len(one.rows)


def _show(line: dict[str, Any]) -> dict[str, Any]:
    return {name: line.get(name) for name in ("step", "replicas", "sequences", "tokens", "tokens_seen", "lr")}


def list_ratios(sizes: list[int], follows: str) -> list[float]:
    """The ratio of the rate in each step: the same part of the way in each step, from where it was."""
    ratios, ratio, end, left, part = [], 1.0, 1.0, 0, 0.0
    for size in sizes:
        wanted = (size / REPLICAS) ** (1.0 if follows == "linear" else 0.5)
        if wanted != end:
            end, left, part = wanted, RAMP_STEPS, (wanted - ratio) / RAMP_STEPS
        if left:
            ratio, left = ratio + part, left - 1
        ratios.append(ratio)
    return ratios
