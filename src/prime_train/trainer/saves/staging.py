"""Copies the training state into CPU memory that is kept for the next save. Writes no file.

The memory is kept because page faults take longer than the copy: during a training step, copying 535 MB takes up to
1.9 s into new memory, and 0.04 to 0.07 s into memory that was used before (measured: two cores of an EPYC, torch
2.13). One such memory also limits the cost of saving to one copy of the state.

Pinned memory is reserved in pieces whose sizes are powers of two, because torch's allocator rounds each allocation up
to one (torch 2.13, CachingHostAllocator): 17 GB at once would take 32 GB.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.distributed.tensor import DTensor

from prime_train.trainer.parallel import read_local

State = dict[str, Any]  # nested by name; leaves are tensors or immutable values

_ALIGNMENT = 64  # bytes: a cache line, and more than any dtype needs
_SMALLEST_PIECE = 2**20  # bytes; what is left below it gets one piece, which may be half empty


@dataclass(frozen=True, slots=True)
class CopyPlace:
    """Where the copy of a tensor begins."""

    piece: int
    offset_bytes: int


def plan_places(sizes: Sequence[int], pieces: Sequence[int], *, pinned: bool) -> tuple[list[CopyPlace], list[int]]:
    """A place for each tensor of `sizes` bytes, the same for the same sizes, and the sizes of all pieces."""
    waiting = sorted(range(len(sizes)), key=lambda number: -sizes[number])
    places, reserved = [CopyPlace(0, 0)] * len(sizes), list(pieces)
    piece = 0
    while waiting:
        if piece == len(reserved):
            needed, largest = sum(_aligned(sizes[number]) for number in waiting), _aligned(sizes[waiting[0]])
            reserved.append(_choose_piece(needed, largest) if pinned else needed)
        left, end = [], 0
        for number in waiting:
            if end + _aligned(sizes[number]) <= reserved[piece]:
                places[number] = CopyPlace(piece, end)
                end += _aligned(sizes[number])
            else:
                left.append(number)
        waiting, piece = left, piece + 1
    return places, reserved


def _choose_piece(needed: int, largest: int) -> int:
    """A power of two: the highest that `needed` bytes fill, or the lowest that holds what is left."""
    filled = 1 << max(0, needed.bit_length() - 1)
    if needed > filled and filled >= max(largest, _SMALLEST_PIECE):
        return filled
    return max(1 << max(0, needed - 1).bit_length(), _ALIGNMENT)


class Staging:
    """Memory for one copy of the state, in pieces. Used by one save at a time."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pieces: list[NDArray[np.uint8]] = []

    def reserve(self, state: Mapping[Any, Any]) -> list[CopyPlace]:
        """Reserve memory for the tensors of `state`, and write to it: no page faults later. Returns their places."""
        sizes = [read_local(tensor).nbytes for tensor in tensors(state)]
        pinned = self._device.type == "cuda"
        places, reserved = plan_places(sizes, [piece.nbytes for piece in self._pieces], pinned=pinned)
        for size in reserved[len(self._pieces) :]:
            if pinned:
                self._pieces.append(torch.empty(size, dtype=torch.uint8, pin_memory=True).numpy())
            else:
                self._pieces.append(np.empty(size, np.uint8))
                self._pieces[-1].fill(0)
        return places

    def copy(self, state: State, ready: torch.cuda.Event | None) -> State:
        """`state` copied into the pieces, on a stream of its own behind `ready`; returns when it is complete."""
        places = self.reserve(state)
        if ready is None:
            return self._copy(state, places)
        stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        with torch.cuda.stream(stream):
            stream.wait_event(ready)
            staged = self._copy(state, places)
            stream.synchronize()
        return staged

    def _copy(self, state: State, places: Iterable[CopyPlace]) -> State:
        remaining = iter(places)

        def walk(value: Any) -> Any:
            if isinstance(value, Mapping):
                return {key: walk(inner) for key, inner in value.items()}
            if not isinstance(value, Tensor):
                return value
            copied = self._copy_to(next(remaining), read_local(value))
            # Not from_local, which would move the copy to the device of the mesh.
            if isinstance(value, DTensor):
                return DTensor(copied, value._spec, requires_grad=False)  # type: ignore[no-untyped-call]
            return copied

        result: State = walk(state)
        return result

    def _copy_to(self, place: CopyPlace, source: Tensor) -> Tensor:
        # A tensor from a NumPy slice has only the slice as its storage; DCP would clone a view of a larger storage.
        taken = self._pieces[place.piece][place.offset_bytes : place.offset_bytes + source.nbytes]
        target = torch.from_numpy(taken).view(source.dtype).view(source.shape)
        if source.device.type == "cpu":
            # NumPy copies without the interpreter lock and in this thread only; torch would use its OpenMP threads,
            # which the training step needs.
            np.copyto(taken, source.reshape(-1).view(torch.uint8).numpy())
        else:
            target.copy_(source, non_blocking=True)
        return target


def tensors(state: Mapping[Any, Any]) -> Iterator[Tensor]:
    """The tensors of a nested state, in order."""
    for value in state.values():
        if isinstance(value, Mapping):
            yield from tensors(value)
        elif isinstance(value, Tensor):
            yield value


def size_bytes(state: Mapping[Any, Any]) -> int:
    """Bytes of the tensors that this process holds."""
    return sum(read_local(tensor).nbytes for tensor in tensors(state))


def _aligned(count: int) -> int:
    return -(-count // _ALIGNMENT) * _ALIGNMENT
