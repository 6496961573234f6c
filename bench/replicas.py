"""Measures what one replica costs against a run without replicas: the time of a step, beside each other.

The launcher, the lighthouse, the quorum before each step and the commit are all real. The cost is about the same in
every step, so it is measured in a small step and in a larger one. A step lasts from one to the next by the clock of the
events, with all that the loop does between two steps. Both runs train at the same time, each with all its processes on
one core, and then again with the cores exchanged: so what the machine does meanwhile slows both. Needs two cores.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import record
from tests.unit.trainer import tiny

from prime_train import spec
from prime_train.core.rundir import RunDir
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


@dataclass(frozen=True)
class Training:
    """A run that trains on one core."""

    run_dir: RunDir
    process: subprocess.Popen[bytes]

    def await_end(self) -> StepTimes:
        _, errors = self.process.communicate()
        if self.process.returncode != 0:
            raise RuntimeError(errors.decode(errors="replace")[-2000:])
        seen = [(one.event.step, one.time_s) for one in read(self.run_dir.events) if isinstance(one.event, Progress)]
        later = itertools.pairwise(one for one in seen if one[0] >= _WARM_STEPS)
        step_s = statistics.median((to_s - from_s) / (to - start) for (start, from_s), (to, to_s) in later)
        lines = tiny.metrics(self.run_dir)[_WARM_STEPS:]
        parts = ("data_s", "forward_backward_s", "optimizer_s", "checkpoint_s")
        return StepTimes(
            step_s, statistics.median(line["step_s"] - sum(line[part] for part in parts) for line in lines)
        )


def start_training(folder: Path, texts: Path, size: Size, replicas: int, core: int) -> Training:
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
    command = ["taskset", "--cpu-list", str(core), sys.executable, "-P", "-m", module, str(run_dir.path)]
    variables = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    streams: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    return Training(run_dir, subprocess.Popen([*command, "--attempt", "1"], env=os.environ | variables, **streams))


def measure_size(root: Path, texts: Path, size: Size, samples: int) -> list[dict[str, object]]:
    """The rows of one size. A sample is two pairs, with the cores exchanged."""
    cores = sorted(os.sched_getaffinity(0))[:2]
    one, none = list[StepTimes](), list[StepTimes]()
    for number in range(2 * samples):
        here, there = cores if number % 2 else reversed(cores)
        with_one = start_training(root / f"{size.name}-{number}-one", texts, size, 1, here)
        without = start_training(root / f"{size.name}-{number}-none", texts, size, 0, there)
        one.append(with_one.await_end())
        none.append(without.await_end())
    ratios = [found.step_s / other.step_s for found, other in zip(one, none, strict=True)]
    more = [100 * ((first * second) ** 0.5 - 1) for first, second in zip(ratios[::2], ratios[1::2], strict=True)]
    error = round(statistics.stdev(more) / len(more) ** 0.5, 6)
    step = f"a {size.name} step"
    return [
        record.emit(f"{step} without replicas", [1000 * found.step_s for found in none], unit="ms"),
        record.emit(f"{step} with one replica", [1000 * found.step_s for found in one], unit="ms"),
        record.emit(f"the wait for the quorum in {step}", [1000 * found.quorum_s for found in one], unit="ms"),
        record.emit(
            f"more time of {step} with one replica",
            more,
            unit="percent",
            most=MOST_PERCENT,
            mean=round(statistics.fmean(more), 6),
            standard_error=error,
        ),
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
