"""Picks the device of this process and its compute type, and copies tensors there and back without a wait of the host.

Never falls back silently.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import cycle
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

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
        what = f"process {local_rank + 1} of this machine has no GPU: {count} are visible"
        fix = f"parallel.processes = {count}, or make more GPUs visible in CUDA_VISIBLE_DEVICES"
        raise UserError(what, "parallel.processes", "each training process needs its own GPU", fix)
    torch.cuda.set_device(local_rank)
    name = torch.cuda.get_device_name(local_rank)
    capable = torch.cuda.get_device_capability(local_rank) >= _BF16_CAPABILITY
    if compute == "bf16" and not capable:
        raise _unsupported(
            f"bf16 on {name}, whose compute capability is below 8.0", "it has no bf16 tensor cores and emulates it"
        )
    peak = gpus.gpu_peak(name)
    flops, bf16 = peak.peak_flops_bf16_dense if peak else None, compute != "fp32" and capable
    return Device(torch.device("cuda", local_rank), name, "bf16" if bf16 else "fp32", flops, bf16, read_behind_steps=1)


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
    return UserError(f"the config requests {what}", "precision.compute", why, 'precision.compute = "auto"')


# A copy from ordinary memory makes the host wait until the GPU has done all its work before it. So the tensors of a
# micro-batch go through one of two pinned buffers, on a stream of their own: the host fills one buffer while the GPU
# reads the other. What a step has measured comes back through pinned memory too, and only who reads it waits.
# Source: CUDA C programming guide, s. 3.2.8, asynchronous concurrent execution. Not measured on a GPU: docs/gpu.md.
def copy_to_device(tensors: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """The tensors on the device; on a CPU they are the same ones. The host does not wait for the copy."""
    if device.type != "cuda":
        return [tensor.to(device) for tensor in tensors]
    return _copies_of(device).copy(tensors)


@dataclass(frozen=True, slots=True)
class HostCopy:
    """A tensor on its way from the device to the host."""

    tensor: Tensor
    copied: torch.cuda.Event | None  # None on a CPU, where nothing has to be copied

    def wait(self) -> Tensor:
        """The tensor on the host. The host waits until the device has computed and copied it."""
        if self.copied is not None:
            self.copied.synchronize()
        return self.tensor


def copy_to_host(tensor: Tensor) -> HostCopy:
    """Start the copy of a tensor, after all that the device's current stream has to do. On a CPU it is the same one."""
    if tensor.device.type != "cuda":
        return HostCopy(tensor, None)
    pinned = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    pinned.copy_(tensor, non_blocking=True)
    return HostCopy(pinned, torch.cuda.current_stream(tensor.device).record_event())


class PinnedBuffer:
    """Pinned memory for the tensors of one micro-batch, and the event after the copy from it."""

    def __init__(self) -> None:
        # An event that was never recorded counts as reached.
        self.copied: torch.cuda.Event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._pinned: list[Tensor] = []

    def fill(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The tensors in pinned memory, when the copy from it before has ended."""
        self.copied.synchronize()
        if [(tensor.shape, tensor.dtype) for tensor in tensors] != [(old.shape, old.dtype) for old in self._pinned]:
            self._pinned = [torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True) for tensor in tensors]
        return [pinned.copy_(tensor) for pinned, tensor in zip(self._pinned, tensors, strict=True)]


class PinnedCopies:
    """Two pinned buffers in turn, and the stream of the copies to one GPU."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._buffers = cycle((PinnedBuffer(), PinnedBuffer()))

    def copy(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        buffer = next(self._buffers)
        pinned = buffer.fill(tensors)
        with torch.cuda.stream(self._stream):
            copied = [tensor.to(self._device, non_blocking=True) for tensor in pinned]
            buffer.copied.record(self._stream)
        computing = torch.cuda.current_stream(self._device)
        computing.wait_event(buffer.copied)
        for tensor in copied:
            tensor.record_stream(computing)  # the allocator may not reuse it while kernels read it
        return copied


@cache
def _copies_of(device: torch.device) -> PinnedCopies:
    return PinnedCopies(device)
