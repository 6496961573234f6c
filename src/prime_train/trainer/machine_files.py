"""Moves the files of a checkpoint between machines that share no disk. Judges no checkpoint.

Rank 0 writes the manifest, so every file must be on its machine first: the ranks of other machines write their parts to
their own disk and send them. Before a load, machine 0 sends the whole checkpoint to the other machines. The group
`saving` carries both, in the order of the ranks, so a machine with a fast disk fills no memory of machine 0.
"""

from __future__ import annotations

import json
import re
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from prime_train.checkpoints import layout
from prime_train.core.outside import open_regular
from prime_train.trainer.parallel import World

_CHUNK_BYTES = 16 * 1024**2
_PART = re.compile(r"__(\d+)_\d+\.distcp\Z")  # DCP's name of a file of one rank (torch 2.13)


def collect(folder: Path, world: World) -> None:
    """Send the parts of the other machines to `folder` of machine 0. Every rank calls it. OSError, RuntimeError."""
    if world.machines == 1:
        return
    for rank in range(world.local_size, world.size):
        if world.rank == rank:
            _send_part(folder, world)
        elif world.rank == 0:
            _receive_part(folder, rank, world)
    if world.machine > 0:
        with suppress(OSError):  # the last rank of the machine finds it empty
            folder.rmdir()
        if world.local_rank == 0:
            # Only machine 0 keeps checkpoints: this machine has loaded from its copies.
            for other in folder.parent.iterdir():
                if other != folder and not other.is_symlink():
                    shutil.rmtree(other, ignore_errors=True)


def _send_part(folder: Path, world: World) -> None:
    parts = {path: found for path in folder.iterdir() if (found := _PART.match(path.name))}
    paths = sorted(path for path, found in parts.items() if int(found[1]) == world.rank)
    _send_json([[path.name, path.stat().st_size] for path in paths], 0, world)
    for path in paths:
        _send_file(path, path.stat().st_size, (0,), world)
        path.unlink()


def _receive_part(folder: Path, rank: int, world: World) -> None:
    for name, size_bytes in _receive_json(rank, world):
        found = _PART.match(name)
        if found is None or int(found[1]) != rank:
            raise RuntimeError(f"rank {rank} sent a file named {name!r}")
        _receive_file(folder / name, size_bytes, rank, world)


def hand_out(folder: Path, world: World) -> None:
    """Copy a complete checkpoint from machine 0 into `folder` of the others, its manifest last. Every rank calls it."""
    if world.machines == 1:
        return
    leaders = tuple(range(world.local_size, world.size, world.local_size))
    if world.rank == 0:
        names = [*(entry.name for entry in layout.entries(folder)), layout.MANIFEST]
        listed: list[list[Any]] = [[name, (folder / name).stat().st_size] for name in names]
        for leader in leaders:
            _send_json(listed, leader, world)
        for name, size_bytes in listed:
            _send_file(folder / name, size_bytes, leaders, world)
    elif world.rank in leaders:
        folder.mkdir(parents=True, exist_ok=True)
        for name, size_bytes in _receive_json(0, world):
            if Path(name).name != name:
                raise RuntimeError(f"machine 0 sent a file named {name!r}")
            _receive_file(folder / name, size_bytes, 0, world)
    world.wait()


def _send_file(path: Path, size_bytes: int, ranks: tuple[int, ...], world: World) -> None:
    with open_regular(path) as file:
        for start in range(0, size_bytes, _CHUNK_BYTES):
            chunk = bytearray(file.read(min(_CHUNK_BYTES, size_bytes - start)))
            if len(chunk) != min(_CHUNK_BYTES, size_bytes - start):
                raise RuntimeError(f"{path.name} has become shorter while it was sent")
            for rank in ranks:
                dist.send(torch.frombuffer(chunk, dtype=torch.uint8), rank, group=world.saving)


def _receive_file(path: Path, size_bytes: int, rank: int, world: World) -> None:
    chunk = bytearray(min(_CHUNK_BYTES, size_bytes))
    with open(path, "wb") as file:
        for start in range(0, size_bytes, _CHUNK_BYTES):
            part = memoryview(chunk)[: min(_CHUNK_BYTES, size_bytes - start)]
            dist.recv(torch.frombuffer(part, dtype=torch.uint8), rank, group=world.saving)
            file.write(part)


def _send_json(value: list[list[Any]], rank: int, world: World) -> None:
    data = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
    dist.send(torch.tensor([len(data)]), rank, group=world.saving)
    dist.send(data, rank, group=world.saving)


def _receive_json(rank: int, world: World) -> list[list[Any]]:
    length = torch.zeros(1, dtype=torch.int64)
    dist.recv(length, rank, group=world.saving)
    data = torch.zeros(int(length), dtype=torch.uint8)
    dist.recv(data, rank, group=world.saving)
    return json.loads(bytes(data.tolist()))  # type: ignore[no-any-return]
