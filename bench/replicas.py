"""Measures what one replica costs against a run without replicas: the time of a step, beside each other.

The launcher, the lighthouse, the quorum before each step and the commit are all real. The cost is about the same in
every step, so it is measured in a small step and in a larger one. A step lasts from one to the next by the clock of the
events, with all that the loop does between two steps, and its CPU time is that of all threads of all processes. Both
runs train at the same time, each with all its processes on one core, and then again with the cores exchanged: so what
the machine does meanwhile slows both. Needs two cores.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import record
from tests.unit.trainer import tiny

from prime_train import spec
from prime_train.core.rundir import RunDir
from prime_train.events import Progress, read

MOST_PERCENT = 3
_WARM_STEPS = 10
_LAST_STEPS = 12  # in which the run may end before it is looked at
_LOOK_S = 0.5


class Size(NamedTuple):
    """A model and the steps of it in one run."""

    name: str
    hidden_size: int
    global_batch: int
    steps: int


SIZES = (Size("small", 256, 8, 120), Size("larger", 512, 16, 48))


class StepTimes(NamedTuple):
    """Medians over the steps of one run."""

    step_s: float
    quorum_s: float  # the wait for it
    cpu_s: float  # on a core, with the launcher and the lighthouse


@dataclass(frozen=True)
class Training:
    """A run that trains on one core."""

    run_dir: RunDir
    process: subprocess.Popen[bytes]

    def await_end(self, last_step: int) -> StepTimes:
        """The times of the steps from the first ones on to `last_step`."""
        first, before_s = self._await_step(_WARM_STEPS)
        last, after_s = self._await_step(last_step)
        cpu_s = (after_s - before_s) / (last - first)
        _, errors = self.process.communicate()
        if self.process.returncode != 0:
            raise RuntimeError(errors.decode(errors="replace")[-2000:])
        seen = [(one.event.step, one.time_s) for one in read(self.run_dir.events) if isinstance(one.event, Progress)]
        later = itertools.pairwise(one for one in seen if one[0] >= _WARM_STEPS)
        step_s = statistics.median((to_s - from_s) / (to - start) for (start, from_s), (to, to_s) in later)
        lines = tiny.metrics(self.run_dir)[_WARM_STEPS:]
        parts = ("data_s", "forward_backward_s", "optimizer_s", "checkpoint_s")
        quorum_s = statistics.median(line["step_s"] - sum(line[part] for part in parts) for line in lines)
        return StepTimes(step_s, quorum_s, cpu_s)

    def _await_step(self, step: int) -> tuple[int, float]:
        """The step that was reached, and the CPU time until then."""
        while self.process.poll() is None:
            reached = max(
                (one.event.step for one in read(self.run_dir.events) if isinstance(one.event, Progress)), default=0
            )
            if reached >= step:
                main = psutil.Process(self.process.pid)
                return reached, sum(map(read_cpu_s, (main, *main.children(recursive=True))))
            time.sleep(_LOOK_S)
        raise RuntimeError(f"the run ended before step {step}")


def read_cpu_s(process: psutil.Process) -> float:
    """Time on a core in seconds, over all threads. schedstat counts nanoseconds, /proc/PID/stat only 10 ms ticks."""
    threads = Path(f"/proc/{process.pid}/task").glob("*/schedstat")
    return sum(int(thread.read_text(encoding="ascii").split()[0]) for thread in threads) / 1e9


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
        with ThreadPoolExecutor() as both:
            ends = [both.submit(training.await_end, size.steps - _LAST_STEPS) for training in (with_one, without)]
        one.append(ends[0].result())
        none.append(ends[1].result())
    step = f"a {size.name} step"
    longer = compare([found.step_s for found in one], [found.step_s for found in none])
    more = compare([found.cpu_s for found in one], [found.cpu_s for found in none])
    return [
        record.emit(f"{step} without replicas", [1000 * found.step_s for found in none], unit="ms"),
        record.emit(f"{step} with one replica", [1000 * found.step_s for found in one], unit="ms"),
        record.emit(f"the wait for the quorum in {step}", [1000 * found.quorum_s for found in one], unit="ms"),
        emit_percent(f"more time of {step} with one replica, all on one core", longer),
        emit_percent(f"more CPU time of {step} with one replica", more),
    ]


def compare(one: Sequence[float], none: Sequence[float]) -> list[float]:
    """The percent more of each sample, whose two ratios are from exchanged cores."""
    ratios = [with_one / without for with_one, without in zip(one, none, strict=True)]
    return [100 * ((first * second) ** 0.5 - 1) for first, second in zip(ratios[::2], ratios[1::2], strict=True)]


def emit_percent(what: str, more: Sequence[float]) -> dict[str, object]:
    error = round(statistics.stdev(more) / len(more) ** 0.5, 6)
    mean = round(statistics.fmean(more), 6)
    return record.emit(what, more, unit="percent", most=MOST_PERCENT, mean=mean, standard_error=error)


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
