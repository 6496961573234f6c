"""Measures what `live.step` and `live.should_stop` cost a training loop, with a supervisor's folder and without one."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile

import record

STEP_US = 20  # may be at most
LOOP = """
import time
from prime_train import live
count = 100_000
began_s = time.perf_counter()
for number in range(count):
    live.step(number, loss=1.5, tokens=4096)
    live.should_stop()
print((time.perf_counter() - began_s) / count * 1e6)
"""


def measure_us(folder: str) -> float:
    environment = os.environ | ({"PRIME_TRAIN_LIVE": folder} if folder else {})
    done = subprocess.run([sys.executable, "-c", LOOP], env=environment, capture_output=True, text=True, check=True)
    return float(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=7)
    count = parser.parse_args().samples
    with tempfile.TemporaryDirectory() as folder:
        pairs = [(measure_us(folder), measure_us("")) for _ in range(count)]
    with_one, without = zip(*pairs, strict=True)
    rows = [
        record.emit("live.step and should_stop, supervised", with_one, unit="us", most=STEP_US),
        record.emit("live.step and should_stop, no supervisor", without, unit="us"),
    ]
    record.write("live_step", rows)


if __name__ == "__main__":
    main()
