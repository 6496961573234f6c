"""Turns "8xh100-80gb", or GPUs found by a probe, into the Hardware of an estimate. Queries no driver."""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from prime_train.core.errors import UserError
from prime_train.core.units import GIB
from prime_train.estimate.values import Hardware
from prime_train.registry import gpus
from prime_train.toml.did_you_mean import nearest

_MAX_GPUS = 100_000  # size of the largest published cluster
_TYPICAL_USABLE_SHARE = 0.985  # share of the sold memory that torch sees on H200, H100 NVL and MI300X
_SOLD_GB = 1e9
_MOST_GIB, _MOST_TFLOPS = 4096, 100_000  # of one GPU; above them the number is in another unit


@cache
def hardware_from_name(text: str, where: str = "--gpus") -> Hardware:
    """The Hardware of "8xh100-80gb", or "h200" for one GPU. Raises UserError with the nearest name for other text."""
    count, name = _parse(text)
    gpu = _entry(name)
    if gpu is None:
        raise _unknown(text, count, name, where)
    return hardware_from_entry(gpu, _check_count(count, gpu.id, where))


class GpuNumbers(NamedTuple):
    """What the user knows of one GPU: memory that torch can see, and the dense bf16 peak of its data sheet."""

    memory_gib: float
    bf16_tflops: float


def hardware_from_numbers(text: str | None, numbers: GpuNumbers, where: str = "--gpus") -> Hardware:
    """The Hardware of "8xanything" with the user's numbers; one GPU without a text.

    What the numbers leave open comes from the registry's entry if the GPU has one. Else the bandwidth is that of a GPU
    with the registry's median ratio of FLOP/s to bandwidth. Raises UserError for numbers that no GPU has.
    """
    for option, value, most in (
        ("--gpu-memory-gib", numbers.memory_gib, _MOST_GIB),
        ("--gpu-bf16-tflops", numbers.bf16_tflops, _MOST_TFLOPS),
    ):
        if not 0 < value <= most:  # false for NaN
            why = f"one GPU has more than 0 and at most {most:,}"
            raise UserError(f"{value:g}", option, why, f"{option} {'80' if option.endswith('gib') else '989'}")
    count, name = _parse(text) if text is not None else (1, "")
    if text is not None and not name:
        raise _unknown(text, count, name, where)
    count = _check_count(count, name or "my-gpu", where)
    peak, gpu = numbers.bf16_tflops * 1e12, _entry(name)
    if gpu is not None:
        known = hardware_from_entry(gpu, count, numbers.memory_gib * GIB)
        return known._replace(peak_flops_bf16=peak, assumed="memory and bf16 peak are those of the command line")
    ratio = statistics.median(
        entry.peak_flops_bf16_dense / (entry.bandwidth_gb_per_s * 1e9) for entry in gpus.gpu_peaks()
    )
    return Hardware(
        id=name or "my-gpu",
        name=name or "my-gpu",
        gpus=count,
        usable_bytes=numbers.memory_gib * GIB,
        bandwidth_bytes_per_s=peak / ratio,
        peak_flops_bf16=peak,
        compute_capability=None,
        assumed=f"bandwidth of {peak / ratio / 1e9:,.0f} GB/s, from the peak by the median ratio of known GPUs; "
        "links of a PCIe card",
    )


def _parse(text: str) -> tuple[int, str]:
    """(count, name) of "8 x RTX_4090"; the name is "" if the text has another form."""
    match = re.fullmatch(r"(?:(\d{1,9})\s*x\s*)?([a-z0-9][a-z0-9 _.-]*)", text.strip().lower())
    return (int(match[1] or 1), re.sub(r"[ _]+", "-", match[2])) if match else (1, "")


def _check_count(count: int, name: str, where: str) -> int:
    if 1 <= count <= _MAX_GPUS:
        return count
    why = f"an estimate is for 1 to {_MAX_GPUS:,} GPUs"
    raise UserError(f"{count} GPUs", where, why, f"{where} 8x{name}")


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


def _unknown(text: str, count: int, name: str, where: str) -> UserError:
    ids = sorted(gpu.id for gpu in gpus.gpu_peaks())
    similar = next((known for known in ids if name and known.startswith(name)), None) or nearest(name, ids)
    number = f"{count}x" if count > 1 else ""
    own = "; --gpu-memory-gib and --gpu-bf16-tflops describe any other GPU" if where == "--gpus" else ""
    return UserError(
        what=f"{text!r} names no known GPU",
        where=where,
        why="the form is COUNTxGPU; known GPUs: " + ", ".join(ids),
        fix=f"{where} {number}{similar}: did you mean that?{own[1:]}" if similar else f"{where} 8xh100-80gb{own}",
    )
