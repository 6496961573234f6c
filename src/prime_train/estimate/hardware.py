"""Turns "8xh100-80gb", or the GPUs that a probe saw, into the Hardware that an estimate is for. Asks no driver."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache

from prime_train import registry
from prime_train.dialects.nearest import nearest
from prime_train.errors import UserError
from prime_train.estimate.values import Hardware
from prime_train.units import GIB

_MAX_GPUS = 100_000  # the largest cluster that anyone has told of has as many
_NEVER_SEEN = 0.985  # of the memory as sold that torch sees, where nobody has told: H200, H100 NVL and MI300X do
_SOLD_GB = 1e9


@cache
def of_name(asked: str, where: str = "--gpus") -> Hardware:
    """The Hardware of "8xh100-80gb", or "h200" for one. Raises UserError, naming the nearest GPU, for any other."""
    match = re.fullmatch(r"(?:(\d{1,9})\s*x\s*)?([a-z0-9][a-z0-9 _.-]*)", asked.strip().lower())
    name = re.sub(r"[ _]+", "-", match[2]) if match else ""
    gpu = _entry(name)
    if match is None or gpu is None:
        raise _unknown(asked, name, where)
    count = int(match[1] or 1)
    if not 1 <= count <= _MAX_GPUS:
        raise UserError(
            what=f"{count} GPUs",
            where=where,
            why=f"an estimate is for 1 to {_MAX_GPUS:,} GPUs",
            fix=f"{where} 8x{gpu.id}",
        )
    return of_entry(gpu, count)


def of_entry(gpu: registry.GpuPeak, count: int, usable_bytes: float | None = None) -> Hardware:
    """The Hardware of `count` GPUs of one entry of the registry; `usable_bytes` where it was measured."""
    if usable_bytes is None:
        usable_bytes = gpu.usable_gib * GIB if gpu.usable_gib is not None else gpu.memory_gb * _SOLD_GB * _NEVER_SEEN
    capability = tuple(int(part) for part in (gpu.compute_capability or "").split(".") if part)
    return Hardware(
        id=gpu.id,
        name=gpu.name,
        gpus=count,
        usable_bytes=usable_bytes,
        bandwidth_bytes_per_s=gpu.bandwidth_gb_per_s * 1e9,
        peak_flops_bf16=gpu.peak_flops_bf16_dense,
        compute_capability=(capability[0], capability[1]) if len(capability) == 2 else None,
    )


def of_devices(devices: Sequence[tuple[str, int]]) -> Hardware | None:
    """The Hardware of GPUs as (name, bytes that NVML tells); None where the registry knows none of that name.

    Of several types the one with the least memory counts: a run is as large as its smallest GPU.
    """
    if not devices:
        return None
    name, memory_bytes = min(devices, key=lambda device: device[1])
    gpu = registry.gpu_peak(name)
    if gpu is None:
        return None
    usable = min(memory_bytes, gpu.usable_gib * GIB) if gpu.usable_gib is not None else memory_bytes
    return of_entry(gpu, len(devices), usable)


def _entry(name: str) -> registry.GpuPeak | None:
    """By its id; "rtx4090" is as good as "rtx-4090"."""
    by_id = {gpu.id: gpu for gpu in registry.gpu_peaks()}
    plain = {gpu_id.replace("-", ""): gpu for gpu_id, gpu in by_id.items()}
    return by_id.get(name) or plain.get(name.replace("-", ""))


def _unknown(asked: str, name: str, where: str) -> UserError:
    ids = sorted(gpu.id for gpu in registry.gpu_peaks())
    meant = next((known for known in ids if name and known.startswith(name)), None) or nearest(name, ids)
    return UserError(
        what=f"{asked!r} names no GPUs",
        where=where,
        why="it is COUNTxGPU, and the GPUs known are " + ", ".join(ids),
        fix=f"{where} 8x{meant}: did you mean that?" if meant else f"{where} 8xh100-80gb",
    )
