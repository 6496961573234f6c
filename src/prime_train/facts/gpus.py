"""Reads the GPUs that this process may use from NVML, in a child with a deadline. Parses --gpus for another machine."""

from __future__ import annotations

import os
import re
import sys
from typing import Any

from prime_train.core.errors import UserError
from prime_train.core.units import GIB
from prime_train.facts.facts import NotKnown
from prime_train.facts.machine import CudaContext, Gpu, GpuUser, VisibleGpus
from prime_train.facts.probe_process import NoAnswer, read_answer, run_probe, script
from prime_train.registry import gpus as gpu_registry

DEADLINE_S = 10.0  # eight GPUs without persistence mode need some seconds to start


def gpus(deadline_s: float = DEADLINE_S) -> VisibleGpus | NotKnown:
    """The visible GPUs. On a machine without a driver there are none, with the reason."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and visible.strip() in ("", "-1"):
        return VisibleGpus((), "CUDA_VISIBLE_DEVICES hides them")
    output = read_answer("NVML: its child", [sys.executable, script("nvml_program")], deadline_s)
    if isinstance(output, NoAnswer):
        return NotKnown(f"NVML: {output.reason}; the driver may be stuck, see `dmesg`")
    if isinstance(output, NotKnown):
        return output
    if "unknown" in output:
        return NotKnown(output["unknown"])
    if "none" in output:
        return VisibleGpus((), output["none"])
    found = [_gpu(device) for device in output["devices"]]
    kept = visible_indices(visible, [device.get("uuid", "") for device in output["devices"]])
    return VisibleGpus(
        tuple(found[index] for index in kept),
        "" if kept else "NVML lists none",
        driver=output["driver"],
        driver_cuda=divmod(output["driver_cuda"] // 10, 100) if output["driver_cuda"] else None,  # 12080 is 12.8
    )


def _gpu(device: dict[str, Any]) -> Gpu:
    if "fault" in device:
        return Gpu("", 0, (0, 0), fault=device["fault"])
    major, minor = device["compute_capability"]
    users = tuple(GpuUser(**user) for user in device["users"])
    return Gpu(device["name"], device["memory_bytes"], (major, minor), device["used_bytes"], users)


def visible_indices(variable: str | None, uuids: list[str]) -> list[int]:
    """The indices in CUDA_VISIBLE_DEVICES. As in CUDA, the first invalid entry ends the list.

    Source: CUDA C++ programming guide, environment variables.
    """
    if variable is None:
        return list(range(len(uuids)))
    kept: list[int] = []
    for entry in variable.split(","):
        name = entry.strip()
        if name.isdigit() and int(name) < len(uuids):
            kept.append(int(name))
        elif not name.isdigit() and any(uuid.startswith(name) for uuid in uuids if name):
            kept.append(next(index for index, uuid in enumerate(uuids) if uuid.startswith(name)))
        else:
            break
    return kept


def parse_gpus(text: str) -> VisibleGpus:
    """The GPUs of "8xh100-80gb" or "h200" (one GPU), with all memory free. Raises UserError."""
    known = {gpu.id: gpu for gpu in gpu_registry.gpu_peaks() if gpu.compute_capability is not None}
    match = re.fullmatch(r"(?:(\d{1,5})x)?([a-z0-9-]+)", text.lower())
    gpu = known.get(match[2]) if match else None
    if match is None or gpu is None or gpu.compute_capability is None or match[1] == "0":
        raise UserError(
            what=f"{text!r} names no GPUs",
            where="--gpus",
            why="the form is COUNTxGPU, and the known GPUs are " + ", ".join(sorted(known)),
            fix="--gpus 8xh100-80gb",
        )
    memory_bytes = round(gpu.usable_gib * GIB) if gpu.usable_gib is not None else round(gpu.memory_gb * 1e9)
    major, minor = (int(part) for part in gpu.compute_capability.split("."))
    return VisibleGpus((Gpu(gpu.name, memory_bytes, (major, minor)),) * int(match[1] or 1))


CUDA_DEADLINE_S = 120.0  # importing torch from a cold disk, then a context on each of eight GPUs

_PROGRAM = """
import torch
if not torch.cuda.is_available():
    torch.cuda.init()  # raises the reason
for index in range(torch.cuda.device_count()):
    with torch.cuda.device(index):
        torch.ones(8, device="cuda").sum().item()
print(torch.cuda.device_count())
"""


def create_cuda_context(python: str, deadline_s: float = CUDA_DEADLINE_S) -> CudaContext | NotKnown:
    """Whether torch computes on every GPU; `failure` is the error of CUDA."""
    answer = run_probe([python, "-c", _PROGRAM], deadline_s)
    if isinstance(answer, NoAnswer):
        return CudaContext(0, f"torch created no CUDA context within {deadline_s:g} s")
    if isinstance(answer, NotKnown):
        return answer
    if answer.code == 0 and answer.out.strip().isdigit():
        return CudaContext(int(answer.out), "")
    if "No module named 'torch'" in answer.last_line:
        return NotKnown(f"{python} has no torch")
    return CudaContext(0, answer.last_line or f"the child ended with exit code {answer.code}")
