"""Picks the device of this process and its compute type. Never falls back silently."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from prime_train.core.errors import UserError
from prime_train.registry import gpus

CPUINFO = Path("/proc/cpuinfo")
_BF16_CPU_FLAGS = frozenset({"avx512_bf16", "amx_bf16"})
# Ampere is the first generation with bf16 tensor cores. Source: NVIDIA CUDA programming guide, compute capabilities.
_BF16_CAPABILITY = (8, 0)


@dataclass(frozen=True, slots=True)
class Device:
    torch: torch.device
    name: str  # the vendor's name: "NVIDIA H200", "AMD EPYC 9654"
    compute: Literal["fp32", "bf16"]
    peak_flops: float | None  # bf16 dense; None where the peak is unknown, and on a CPU
    flash_attention: bool = False  # torch.nn.attention.varlen runs here; it has no fp32 and no version for a CPU
    # Steps that the loop may launch before it reads what an earlier one measured. A GPU has a queue, which is empty
    # while the loop waits for the result of the last step in it; a CPU computes a step before its launch returns.
    read_behind_steps: int = 0

    def autocast(self) -> contextlib.AbstractContextManager[None]:
        """Matrix products in bf16 where that is the compute type; weights and reductions stay fp32."""
        return torch.autocast(self.torch.type, torch.bfloat16, enabled=self.compute == "bf16")

    def peak_memory_gib(self) -> float:
        """Peak memory of this process: allocated GPU memory, or on a CPU resident memory."""
        if self.torch.type == "cuda":
            return torch.cuda.max_memory_allocated(self.torch) / 2**30
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # KiB on Linux


def pick(compute: Literal["auto", "fp32", "bf16"], local_rank: int = 0, cpuinfo: Path = CPUINFO) -> Device:
    """The GPU of this local rank, or the CPU on a machine without GPUs. UserError where it cannot do `compute`."""
    if torch.cuda.is_available():
        return _gpu(compute, local_rank)
    name, flags = _read_cpu(cpuinfo)
    if compute == "bf16" and not flags & _BF16_CPU_FLAGS:
        raise _unsupported(
            f"bf16 on {name}, which has neither avx512_bf16 nor amx_bf16",
            "torch emulates bf16 there: a training step takes 5 to 40 times as long as in fp32",
        )
    return Device(torch.device("cpu"), name, "bf16" if compute == "bf16" else "fp32", None)


def _gpu(compute: Literal["auto", "fp32", "bf16"], local_rank: int) -> Device:
    count = torch.cuda.device_count()
    if local_rank >= count:
        raise UserError(
            what=f"process {local_rank + 1} of this machine has no GPU: {count} are visible",
            where="parallel.processes",
            why="each training process needs its own GPU",
            fix=f"parallel.processes = {count}, or make more GPUs visible in CUDA_VISIBLE_DEVICES",
        )
    torch.cuda.set_device(local_rank)
    name = torch.cuda.get_device_name(local_rank)
    capable = torch.cuda.get_device_capability(local_rank) >= _BF16_CAPABILITY
    if compute == "bf16" and not capable:
        raise _unsupported(
            f"bf16 on {name}, whose compute capability is below 8.0", "it has no bf16 tensor cores and emulates it"
        )
    peak = gpus.gpu_peak(name)
    bf16 = compute != "fp32" and capable
    return Device(
        torch.device("cuda", local_rank),
        name,
        "bf16" if bf16 else "fp32",
        peak.peak_flops_bf16_dense if peak else None,
        flash_attention=bf16,
        read_behind_steps=1,
    )


def _read_cpu(cpuinfo: Path) -> tuple[str, frozenset[str]]:
    """Model name and feature flags of the first core; on ARM the flags are under "Features"."""
    name, flags = "CPU", frozenset[str]()
    with contextlib.suppress(OSError):
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").split("\n\n")[0].splitlines():
            key, _, value = line.partition(":")
            match key.strip():
                case "model name":
                    name = value.strip()
                case "flags" | "Features":
                    flags = frozenset(value.split())
    return name, flags


def _unsupported(what: str, why: str) -> UserError:
    return UserError(
        what=f"the config requests {what}",
        where="precision.compute",
        why=why,
        fix='precision.compute = "auto"',
    )
