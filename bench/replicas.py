"""Measures what one replica costs against a run without replicas: the time of a step, in turn on this machine.

The launcher, the lighthouse, the quorum before each step and the commit are all real. The cost is about the same in
every step, so it is measured in a small step and in a larger one. A step lasts from one to the next by the clock of the
events, with all that the loop does between two steps.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import record
from tests.unit.trainer import tiny

from prime_train import spec
from prime_train.events import Progress, read

MOST_PERCENT = 3
_WARM_STEPS = 10


class Size(NamedTuple):
    """A model and the steps of it in one run."""

    name: str
    hidden_size: int
    global_batch: int
    steps: int


SIZES = (Size("small", 256, 8, 60), Size("larger", 512, 16, 35))


class StepTimes(NamedTuple):
    """Medians over the steps of one run."""

    step_s: float
    quorum_s: float  # the wait for it


def measure_steps(folder: Path, texts: Path, size: Size, replicas: int) -> StepTimes:
    run = tiny.run_spec(
        texts,
        run=spec.Run(name="bench", max_steps=size.steps, seed=7),
        model=spec.Model(layers=6, hidden_size=size.hidden_size, heads=4, kv_heads=2, mlp_size=3 * size.hidden_size),
        parallel=spec.Parallel(replicas=replicas),
        batch=spec.Batch(micro_batch=4, global_batch=size.global_batch),
        checkpoint=spec.Checkpoint(interval_steps=None),
        eval=spec.Eval(interval_steps=None, held_out_ratio=0.1, batches=1),
    )
    run_dir = tiny.prepare(folder, run)
    module = "prime_train.trainer.replicas.launcher" if replicas else "prime_train.trainer"
    command = [sys.executable, "-P", "-m", module, str(run_dir.path), "--attempt", "1"]
    variables = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    subprocess.run(command, env=os.environ | variables, check=True, capture_output=True)
    seen = [(one.event.step, one.time_s) for one in read(run_dir.events) if isinstance(one.event, Progress)]
    later = itertools.pairwise(one for one in seen if one[0] >= _WARM_STEPS)
    step_s = statistics.median((to_s - from_s) / (to - start) for (start, from_s), (to, to_s) in later)
    lines = tiny.metrics(run_dir)[_WARM_STEPS:]
    parts = ("data_s", "forward_backward_s", "optimizer_s", "checkpoint_s")
    return StepTimes(step_s, statistics.median(line["step_s"] - sum(line[part] for part in parts) for line in lines))


def measure_size(root: Path, texts: Path, size: Size, samples: int) -> list[dict[str, object]]:
    """The rows of one size. Each pair begins with another of the two, so that a slower machine meets both."""
    one, none = list[StepTimes](), list[float]()
    for number in range(samples):
        for replicas in (1, 0) if number % 2 else (0, 1):
            found = measure_steps(root / f"{size.name}-{number}-{replicas}", texts, size, replicas)
            if replicas:
                one.append(found)
            else:
                none.append(found.step_s)
    more = [100 * (with_one.step_s / without - 1) for with_one, without in zip(one, none, strict=True)]
    added = [1000 * (with_one.step_s - without) for with_one, without in zip(one, none, strict=True)]
    step = f"a {size.name} step"
    return [
        record.emit(f"{step} without replicas", [1000 * step_s for step_s in none], unit="ms"),
        record.emit(f"{step} with one replica", [1000 * found.step_s for found in one], unit="ms"),
        record.emit(f"the wait for the quorum in {step}", [1000 * found.quorum_s for found in one], unit="ms"),
        record.emit(f"what one replica adds to {step}", added, unit="ms"),
        record.emit(f"more time of {step} with one replica", more, unit="percent", most=MOST_PERCENT),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=9)
    samples = parser.parse_args().samples
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        os.environ["PRIME_TRAIN_CACHE"] = str(root / "cache")
        texts = tiny.write_texts(root / "texts")
        rows = [row for size in SIZES for row in measure_size(root, texts, size, samples)]
    record.write("replicas", rows)


if __name__ == "__main__":
    main()
