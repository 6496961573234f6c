"""Copies tensors between host and device without a wait of the host. Never computes.

A copy from ordinary memory makes the host wait until the GPU has done all its work before it. So the tensors of a
micro-batch go through one of two pinned buffers, on a stream of their own: the host fills one buffer while the GPU
reads the other, and the copy runs beside the kernels of the micro-batch before. What a step has measured comes back
through pinned memory too, and only who reads it waits. Source: CUDA C programming guide, s. 3.2.8, asynchronous
concurrent execution. Not measured on a GPU: docs/gpu.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import cycle

import torch
from torch import Tensor


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
