"""Program: writes to a new file in a folder for up to two seconds, and prints {"bytes_per_s": ...}.

A separate program, because a network disk that does not answer blocks the process that writes to it.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time

_CHUNK_BYTES = 8 * 2**20
_CHUNKS = 32  # 256 MiB: more than the cache of a disk controller
_ENOUGH_S = 2.0


def measure(folder: str) -> float:
    """Bytes per second that reach the disk. The file has no name, so it disappears when this program ends."""
    chunk = os.urandom(_CHUNK_BYTES)  # random, because a file system may compress zeros
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
        print(json.dumps({"bytes_per_s": measure(sys.argv[1])}))  # noqa: T201 - the answer
    except OSError as error:
        sys.exit(error.strerror)
