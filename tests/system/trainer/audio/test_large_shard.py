"""A shard of a gigabyte is never read whole. Its clips are holes in the file; what a process touches is counted."""

from __future__ import annotations

import io
import json
import mmap
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

RATE, SECONDS, ROWS, OF_A_BATCH = 32_000, 60, 288, 16
MIB = 2**20

# Prints the bytes that each process has mapped and has read, and the memory of all, as a line of JSON.
PROGRAM = """
import json, os, sys
import psutil
from prime_train import audio

path = sys.argv[1]

def count_read(pid):
    lines = open(f"/proc/{pid}/io").read().splitlines()
    return int(dict(line.split(": ") for line in lines)["rchar"])

def count_mapped(pid):
    found = [one.rss for one in psutil.Process(pid).memory_maps(grouped=True) if one.path == path]
    return sum(found)

before = count_read(os.getpid())
with audio.batches(path, 4, seed=1, workers=2, threads=2) as source:
    pids = [os.getpid(), *(child.pid for child in psutil.Process().children())]
    rows = [row for _ in range(6) for row in next(source).rows.tolist()]
    found = {
        "rows": source.rows,
        "used": len(set(rows)),
        "mapped": [count_mapped(pid) for pid in pids],
        "read": [count_read(pids[0]) - before, *map(count_read, pids[1:])],
        "pss": sum(psutil.Process(pid).memory_full_info().pss for pid in pids),
        "batches": 3 * 4 * 512 * 128 * 4,
    }
print(json.dumps(found))
"""


class _SinkWithHoles(io.FileIO):
    """A file for Arrow's writer, which writes only the headers in a buffer with clips."""

    def __init__(self, path: Path, clip_bytes: int) -> None:
        super().__init__(path, "w")
        self._clip_bytes = clip_bytes

    def write(self, content: Any) -> int:
        view = memoryview(content).cast("B")
        if len(view) < MIB:
            return super().write(view)
        begin = self.seek(0, io.SEEK_CUR)
        for at in range(0, len(view), self._clip_bytes):
            self.seek(begin + at)
            super().write(view[at : at + 44])
        self.seek(begin + len(view))
        return len(view)


def write_shard(path: Path) -> None:
    """An Arrow stream with WAV clips of a minute. Their samples are zeros, which a hole has without a block."""
    data_bytes = 2 * RATE * SECONDS
    sizes = struct.pack("<HHIIHH", 1, 1, RATE, 2 * RATE, 2, 16)
    header = b"RIFF" + struct.pack("<I", 36 + data_bytes) + b"WAVEfmt " + struct.pack("<I", 16) + sizes
    header += b"data" + struct.pack("<I", data_bytes)
    clip_bytes = len(header) + data_bytes
    values = mmap.mmap(-1, clip_bytes * OF_A_BATCH)
    for row in range(OF_A_BATCH):
        values[row * clip_bytes : row * clip_bytes + len(header)] = header
    offsets = pa.py_buffer((np.arange(OF_A_BATCH + 1) * clip_bytes).astype(np.int32))
    clips = pa.Array.from_buffers(pa.binary(), OF_A_BATCH, [None, offsets, pa.py_buffer(values)])
    names = pa.nulls(OF_A_BATCH, pa.string())
    audio = pa.StructArray.from_arrays([clips, names], ["bytes", "path"])
    batch = pa.record_batch({"audio": audio, "label": pa.array(range(OF_A_BATCH), type=pa.int64())})
    sink = _SinkWithHoles(path, clip_bytes)
    with pa.PythonFile(sink, "w") as file, pa.ipc.new_stream(file, batch.schema) as writer:
        for _ in range(ROWS // OF_A_BATCH):
            writer.write_batch(batch)


def test_a_gigabyte_is_never_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "train.arrow"
    write_shard(path)
    assert path.stat().st_size > 1_000_000_000
    assert path.stat().st_blocks * 512 < 50 * MIB  # holes, so that the test writes little
    command = [sys.executable, "-c", PROGRAM, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["rows"], found["used"]) == (ROWS, 24)
    # A kernel maps up to some MiB around each page that is touched, and a worker has read from twelve clips.
    assert max(found["mapped"]) < 100 * MIB
    assert min(found["mapped"]) > 0
    assert max(found["read"]) < 64 * MIB  # the modules of Python among them
    assert found["pss"] - found["batches"] < (150 + 80 * len(found["mapped"])) * MIB
