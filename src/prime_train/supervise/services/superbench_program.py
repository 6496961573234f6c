"""Tests GPUs with `sb exec` of SuperBench: `superbench_program.py SB FOLDER TEST GPU...`. Prints a JSON line for each.

`FOLDER` gets the results. The GPUs that SuperBench cannot judge, as without the programs of its benchmarks, are left to
the program `TEST`, which takes the place of this one.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

from prime_train.core import outside
from prime_train.core.rundir import write_atomic
from prime_train.supervise.services.superbench import (
    BENCHMARKS,
    LIMIT_S,
    VERSION_S,
    BenchVerdict,
    build_config,
    judge_results,
)

_VERSION = re.compile(r"\d+\.\d+[\w.+-]{0,60}")


def main(arguments: list[str]) -> None:
    """Test each GPU, in order; those without a verdict with the other program."""
    sb, folder, test, *gpus = arguments
    version = read_version(sb)
    left = gpus
    if version:
        left = [gpu for number, gpu in enumerate(gpus) if not report(sb, version, Path(folder, str(number)), gpu)]
    if left:
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(left)
        os.execv(sys.executable, [sys.executable, "-P", test, *left])


def read_version(sb: str) -> str:
    """The version that `sb version` prints; "" where it is another program of this name, or does not start."""
    try:
        done = subprocess.run([sb, "version"], capture_output=True, text=True, timeout=VERSION_S, check=True)
    except (OSError, ValueError, subprocess.SubprocessError):
        return ""
    found = _VERSION.fullmatch(done.stdout.strip().strip('"'))  # knack prints a text as JSON
    return found[0] if found is not None else ""


def report(sb: str, version: str, folder: Path, gpu: str) -> bool:
    """Test one GPU and print its line. False where the benchmarks did not judge it."""
    began_s = time.monotonic()
    try:
        run_benchmarks(sb, folder, gpu)
        verdict = read_verdict(folder)
    except subprocess.TimeoutExpired:
        end_benchmarks()
        verdict = BenchVerdict(failed=(f"no result within {LIMIT_S:.0f} s",))
    except (OSError, ValueError) as error:
        sys.stderr.write(f"{gpu}: no verdict: {error}\n")
        return False
    if not verdict.is_known:
        sys.stderr.write(f"{gpu}: none of the benchmarks could run, see {folder}\n")
        return False
    what = f"SuperBench {version}: {', '.join(verdict.passed)} right" if verdict.passed else f"SuperBench {version}"
    took_s = round(time.monotonic() - began_s, 3)
    line = {"gpu": gpu, "problem": "; ".join(verdict.failed)[:500], "what": what, "s": took_s}
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()
    return True


def run_benchmarks(sb: str, folder: Path, gpu: str) -> None:
    """Run the benchmarks on one GPU. What it prints goes to the log. Raises OSError, TimeoutExpired."""
    folder.mkdir(parents=True)  # a request is tested once, so it cannot hold the results of before
    config = folder / "config.json"
    write_atomic(config, json.dumps(build_config()))
    command = [sb, "exec", "--config-file", str(config), "--output-dir", str(folder)]
    own = {"CUDA_VISIBLE_DEVICES": gpu, "PROC_RANK": "0"}  # the number in the name of the folder with results
    # It exits with 0 where a benchmark failed, so its code means nothing.
    subprocess.run(command, env=os.environ | own, stdin=subprocess.DEVNULL, stdout=2, timeout=LIMIT_S, check=False)


def end_benchmarks() -> None:
    """End the programs that SuperBench started. They are in the process group of this program, which stays."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.killpg(os.getpgrp(), signal.SIGTERM)


def read_verdict(folder: Path) -> BenchVerdict:
    """What the benchmarks wrote. Raises OSError, ValueError."""
    contents: dict[str, object] = {}
    for name in BENCHMARKS:
        path = folder / "benchmarks" / name / "rank0" / "results.json"
        if path.exists():  # else it was not known to this version
            contents[name] = outside.read_json(path, outside.LINE_BYTES, within=folder)
    return judge_results(contents)


if __name__ == "__main__":
    main(sys.argv[1:])
