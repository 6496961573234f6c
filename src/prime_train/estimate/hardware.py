"""Turns "8xh100-80gb", or GPUs found by a probe, into the Hardware of an estimate. Queries no driver."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache

from prime_train.core.errors import UserError
from prime_train.core.units import GIB
from prime_train.estimate.values import Hardware
from prime_train.registry import gpus
from prime_train.toml.did_you_mean import nearest

_MAX_GPUS = 100_000  # size of the largest published cluster
_TYPICAL_USABLE_SHARE = 0.985  # share of the sold memory that torch sees on H200, H100 NVL and MI300X
_SOLD_GB = 1e9


@cache
def hardware_from_name(text: str, where: str = "--gpus") -> Hardware:
    """The Hardware of "8xh100-80gb", or "h200" for one GPU. Raises UserError with the nearest name for other text."""
    match = re.fullmatch(r"(?:(\d{1,9})\s*x\s*)?([a-z0-9][a-z0-9 _.-]*)", text.strip().lower())
    name = re.sub(r"[ _]+", "-", match[2]) if match else ""
    gpu = _entry(name)
    if match is None or gpu is None:
        raise _unknown(text, name, where)
    count = int(match[1] or 1)
    if not 1 <= count <= _MAX_GPUS:
        why = f"an estimate is for 1 to {_MAX_GPUS:,} GPUs"
        raise UserError(f"{count} GPUs", where, why, f"{where} 8x{gpu.id}")
    return hardware_from_entry(gpu, count)


def hardware_from_entry(gpu: gpus.GpuPeak, count: int, usable_bytes: float | None = None) -> Hardware:
    """The Hardware of `count` GPUs of one registry entry, with the measured `usable_bytes` if known."""
    if usable_bytes is None and gpu.usable_gib is not None:
        usable_bytes = gpu.usable_gib * GIB
    elif usable_bytes is None:
        usable_bytes = gpu.memory_gb * _SOLD_GB * _TYPICAL_USABLE_SHARE
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


def hardware_from_devices(devices: Sequence[tuple[str, int]]) -> Hardware | None:
    """The Hardware of GPUs given as (name, bytes from NVML); None if the registry does not have the GPU.

    The GPU with the least memory counts, because it limits the run.
    """
    if not devices:
        return None
    name, memory_bytes = min(devices, key=lambda device: device[1])
    gpu = gpus.gpu_peak(name)
    if gpu is None:
        return None
    usable = min(memory_bytes, gpu.usable_gib * GIB) if gpu.usable_gib is not None else memory_bytes
    return hardware_from_entry(gpu, len(devices), usable)


def _entry(name: str) -> gpus.GpuPeak | None:
    """The GPU of an id; "rtx4090" means "rtx-4090"."""
    by_id = {gpu.id: gpu for gpu in gpus.gpu_peaks()}
    plain = {gpu_id.replace("-", ""): gpu for gpu_id, gpu in by_id.items()}
    return by_id.get(name) or plain.get(name.replace("-", ""))


def _unknown(text: str, name: str, where: str) -> UserError:
    ids = sorted(gpu.id for gpu in gpus.gpu_peaks())
    similar = next((known for known in ids if name and known.startswith(name)), None) or nearest(name, ids)
    return UserError(
        what=f"{text!r} names no known GPU",
        where=where,
        why="the form is COUNTxGPU; known GPUs: " + ", ".join(ids),
        fix=f"{where} 8x{similar}: did you mean that?" if similar else f"{where} 8xh100-80gb",
    )
