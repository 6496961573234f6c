"""Program: prints NVML's facts about this machine's GPUs as one JSON object. Creates no CUDA context.

A separate program, because a stuck driver blocks the process that calls NVML.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

_NO_DRIVER = ("LibraryNotFound", "DriverNotLoaded")


def read_gpus() -> dict[str, Any]:
    """{"devices": [...], "driver": ..., "driver_cuda": ...}, or {"none": why}, or {"unknown": why}."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        kind = "none" if any(name in type(error).__name__ for name in _NO_DRIVER) else "unknown"
        return {kind: "no NVIDIA driver" if kind == "none" else f"NVML: {error}"}
    try:
        count = pynvml.nvmlDeviceGetCount()
        return {
            "driver": _optional(pynvml.nvmlSystemGetDriverVersion) or "",
            "driver_cuda": _optional(pynvml.nvmlSystemGetCudaDriverVersion_v2) or 0,
            "devices": [_device(index) for index in range(count)],
        }
    except pynvml.NVMLError as error:
        return {"unknown": f"NVML: {error}"}
    finally:
        pynvml.nvmlShutdown()


def _device(index: int) -> dict[str, Any]:
    """One GPU, or only its `fault` if it does not answer."""
    import pynvml

    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
        return {
            "name": _text(pynvml.nvmlDeviceGetName(handle)),
            "uuid": _text(pynvml.nvmlDeviceGetUUID(handle)),
            "memory_bytes": int(memory.total),
            "used_bytes": int(memory.used),
            "compute_capability": list(pynvml.nvmlDeviceGetCudaComputeCapability(handle)),
            "users": _users(handle),
        }
    except pynvml.NVMLError as error:
        return {"fault": str(error)}


def _users(handle: Any) -> list[dict[str, Any]]:
    """The processes that compute on a GPU. In a container the pids are those of the host."""
    import pynvml

    found = _optional(pynvml.nvmlDeviceGetComputeRunningProcesses_v3, handle)
    if found is None:  # drivers before R510
        found = _optional(pynvml.nvmlDeviceGetComputeRunningProcesses_v2, handle) or []
    return [{"pid": user.pid, "used_bytes": user.usedGpuMemory or 0, "name": _name(user.pid)} for user in found]


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    except OSError:
        return ""


def _optional(call: Any, *arguments: Any) -> Any:
    """The result of a call; None if the driver is too old for it."""
    import pynvml

    try:
        found = call(*arguments)
    except pynvml.NVMLError:
        return None
    return _text(found) if isinstance(found, bytes) else found


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


if __name__ == "__main__":
    sys.path.pop(0)  # this folder: a module in it must not stand in for a package
    print(json.dumps(read_gpus()))  # noqa: T201 - the answer
