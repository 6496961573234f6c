"""What the machine has: versions, compiler, memory, shared memory, and packages. Needs no prime_train."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, version

import torch

from gpu.bench import Bench
from gpu.wheels import WHEELS


def measure(bench: Bench) -> None:
    with bench.case("machine"):
        bench.emit(
            "machine",
            torch=torch.__version__,
            python=platform.python_version(),
            cuda=torch.version.cuda,
            nccl=str(torch.cuda.nccl.version()) if bench.on_gpu else None,  # type: ignore[no-untyped-call]
            triton=_version("triton"),
            compiler=shutil.which("gcc") or shutil.which("cc") or "",
            cores=len(os.sched_getaffinity(0)),
            ram_gib=round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
            shared_memory_gib=round(shutil.disk_usage("/dev/shm").total / 2**30, 2),
            disk_gib=round(shutil.disk_usage("/tmp").free / 2**30, 1),
        )
    with bench.case("packages"):
        bench.emit("packages", **{wheel.name: _version(wheel.name) for wheel in WHEELS})
    if bench.on_gpu:
        with bench.case("driver"):
            query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total,power.limit", "--format=csv,noheader"]
            done = subprocess.run(query, capture_output=True, text=True, timeout=10, check=False)
            bench.emit("driver", answer=(done.stdout or done.stderr).strip()[:400], rc=done.returncode)


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
