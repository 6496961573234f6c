"""Measures what one replica costs against a run without replicas: the time of a step, both in turn on this machine.

The launcher, the lighthouse, the quorum before each step, the sums over one replica and the commit are all real.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import record
from tests.unit.trainer import tiny

from prime_train import spec

MOST_PERCENT = 3
_STEPS, _WARM_STEPS = 60, 10


def measure_steps_s(folder: Path, texts: Path, replicas: int) -> list[float]:
    """The seconds of each step after the first ones, of a model with 5.9 million parameters."""
    run = tiny.run_spec(
        texts,
        run=spec.Run(name="bench", max_steps=_STEPS, seed=7),
        model=spec.Model(layers=6, hidden_size=256, heads=4, kv_heads=2, mlp_size=768),
        parallel=spec.Parallel(replicas=replicas),
        batch=spec.Batch(micro_batch=4, global_batch=8),
        checkpoint=spec.Checkpoint(interval_steps=None),
        eval=spec.Eval(interval_steps=None, held_out_ratio=0.1, batches=1),
    )
    run_dir = tiny.prepare(folder, run)
    module = "prime_train.trainer.replicas.launcher" if replicas else "prime_train.trainer"
    command = [sys.executable, "-P", "-m", module, str(run_dir.path), "--attempt", "1"]
    variables = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    subprocess.run(command, env=os.environ | variables, check=True, capture_output=True)
    return [line["step_s"] for line in tiny.metrics(run_dir)][_WARM_STEPS:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=5)
    count = parser.parse_args().samples
    pairs: list[tuple[float, float]] = []
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        os.environ["PRIME_TRAIN_CACHE"] = str(root / "cache")
        texts = tiny.write_texts(root / "texts")
        for number in range(count):
            one, none = (
                statistics.median(measure_steps_s(root / f"{number}-{replicas}", texts, replicas))
                for replicas in (1, 0)
            )
            pairs.append((one, none))
    with_one, without = zip(*pairs, strict=True)
    more = [100 * (one / none - 1) for one, none in pairs]
    rows = [
        record.emit("a step with one replica", [1000 * one for one in with_one], unit="ms"),
        record.emit("a step without replicas", [1000 * none for none in without], unit="ms"),
        record.emit("more time of a step with one replica", more, unit="percent", most=MOST_PERCENT),
    ]
    record.write("replicas", rows)


if __name__ == "__main__":
    main()
