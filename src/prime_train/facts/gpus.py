"""Asks NVML for the GPUs this process may use. Starts no CUDA context."""

from __future__ import annotations

import os

from prime_train.facts.facts import Gpu, Gpus, NotKnown

_NO_DRIVER = ("LibraryNotFound", "DriverNotLoaded")


def gpus() -> Gpus | NotKnown:
    """The visible GPUs; none, with the reason, on a machine without a driver."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and visible.strip() in ("", "-1"):
        return Gpus((), "CUDA_VISIBLE_DEVICES hides them")
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        if any(name in type(error).__name__ for name in _NO_DRIVER):
            return Gpus((), "no NVIDIA driver")
        return NotKnown(f"NVML: {error}")
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        found = [
            Gpu(
                _text(pynvml.nvmlDeviceGetName(handle)),
                int(pynvml.nvmlDeviceGetMemoryInfo(handle).total),
                tuple(pynvml.nvmlDeviceGetCudaComputeCapability(handle)),
            )
            for handle in handles
        ]
        uuids = [_text(pynvml.nvmlDeviceGetUUID(handle)) for handle in handles]
    except pynvml.NVMLError as error:
        return NotKnown(f"NVML: {error}")
    finally:
        pynvml.nvmlShutdown()
    kept = _visible(visible, uuids)
    return Gpus(tuple(found[index] for index in kept), "" if kept else "NVML lists none")


def _visible(variable: str | None, uuids: list[str]) -> list[int]:
    """Indices that CUDA_VISIBLE_DEVICES leaves. As CUDA does: the first entry that names none ends the list.

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


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
