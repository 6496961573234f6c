"""Run as a program: writes for a moment to a new file in the folder named, and prints {"bytes_per_s": ...}.

It is a program of its own because a network disk that does not answer holds whoever writes to it.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time

_CHUNK_BYTES = 8 * 2**20
_CHUNKS = 32  # 256 MiB: past what a controller's cache takes in at once
_ENOUGH_S = 2.0


def speed(folder: str) -> float:
    """Bytes a second, until they are on the disk. The file has no name: it is gone when this program ends."""
    chunk = os.urandom(_CHUNK_BYTES)  # a file system that compresses would do so with zeros
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        start, written = time.monotonic(), 0
        for _ in range(_CHUNKS):
            written += file.write(chunk)
            os.fsync(file.fileno())
            if time.monotonic() - start >= _ENOUGH_S:
                break
        return written / max(time.monotonic() - start, 1e-6)


if __name__ == "__main__":
    try:
        print(json.dumps({"bytes_per_s": speed(sys.argv[1])}))  # noqa: T201 - the answer
    except OSError as error:
        sys.exit(error.strerror)
