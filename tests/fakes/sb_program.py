"""A stand-in for `sb` of SuperBench: `sb version`, and `sb exec`, which writes results.json as version 0.12 does.

FAKE_SB names a JSON file: for each GPU what a benchmark of it does, by the name of the benchmark: "ok" (where it is not
named), "wrong" (gpu-burn counts wrong results, and returns 0), "fails", "late", "missing" (its program is not
installed), "raises" (an entry that is null), or a text that is written in place of the results. "version" is what `sb
version` prints, and "hang" a GPU on which the program never ends.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

RETURN_CODES = {"ok": 0, "wrong": 0, "fails": 32, "late": 124, "missing": 31}


def main(arguments: list[str]) -> None:
    orders: dict[str, Any] = json.loads(Path(os.environ["FAKE_SB"]).read_text())
    if arguments == ["version"]:
        sys.stdout.write(json.dumps(orders.get("version", "0.12.0")) + "\n")
        return
    assert arguments[0] == "exec"
    given = dict(zip(arguments[1::2], arguments[2::2], strict=True))
    config = json.loads(Path(given["--config-file"]).read_text())
    gpu = os.environ["CUDA_VISIBLE_DEVICES"]
    if orders.get("hang") == gpu:
        burn = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        Path(orders["pid_file"]).write_text(str(burn.pid))
        burn.wait()
    for name, benchmark in config["superbench"]["benchmarks"].items():
        assert benchmark["enable"]
        write(Path(given["--output-dir"]), name, orders.get(gpu, {}).get(name, "ok"))


def write(folder: Path, name: str, does: str) -> None:
    """benchmarks/NAME/rankN/results.json, as superbench/executor/executor.py has it."""
    place = folder / "benchmarks" / name / f"rank{os.environ.get('PROC_RANK', '0')}"
    place.mkdir(parents=True)
    if does not in (*RETURN_CODES, "raises"):
        (place / "results.json").write_text(does)
        return
    entries = [None] if does == "raises" else [result(name, does)]
    with (place / "results.json").open("w") as file:
        json.dump(entries, file, indent=2)


def result(name: str, does: str) -> dict[str, Any]:
    """One entry, as superbench/benchmarks/result.py has it."""
    metrics: dict[str, list[float]] = {"return_code": [RETURN_CODES[does]]}
    if name == "gpu-burn" and does in ("ok", "wrong"):
        metrics |= {"time": [20], "gpu_0_pass": [int(does == "ok")], "abort": [0]}
    elif does == "ok":
        metrics |= {"cpu_to_gpu0_by_dma_under_numa0_bw": [24.7], "gpu0_to_cpu_by_sm_under_numa0_bw": [26.1]}
    return {
        "name": name,
        "type": "micro",
        "run_count": 1,
        "return_code": RETURN_CODES[does],
        "start_time": "2026-04-24 01:02:03",
        "end_time": "2026-04-24 01:02:30",
        "raw_data": {},
        "result": metrics,
        "reduce_op": dict.fromkeys(metrics),
    }


if __name__ == "__main__":
    main(sys.argv[1:])
