"""Names the files in which the replicas of a run show that they live and find each other. Reads none but the address.

Both sides need them: the trainer, and the processes that connect the machines of a run.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from prime_train.core import outside

LIGHTHOUSE = "lighthouse"  # the file with the address; another one after a lighthouse was lost
SIGN_BYTES = 257  # of a sign with the end of its line


def sign_path(folder: Path, replica: int) -> Path:
    return folder / f"replica-{replica}.json"


def read_lighthouse(folder: Path) -> str:
    """The address of the lighthouse. Raises OSError, ValueError."""
    return outside.read_text(folder / LIGHTHOUSE, outside.MARK_BYTES, folder).strip()


def find_port(folder: Path) -> int | None:
    """The port of the lighthouse; None before there is one."""
    with suppress(OSError, ValueError):
        return urlsplit(read_lighthouse(folder)).port
    return None
