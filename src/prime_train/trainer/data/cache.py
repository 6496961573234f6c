"""Caches results that are made once from the data: trained tokenizers and tokenised text.

An entry is a folder named by its key. It appears complete or not at all; one process builds it, others wait.
"""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Callable
from pathlib import Path

from prime_train.core.disk_error import explain_disk_error
from prime_train.core.errors import UserError
from prime_train.core.paths import cache_path


def entry(kind: str, key: str, build: Callable[[Path], None]) -> Path:
    """The folder of this entry; `build` fills an empty one where there is none yet."""
    folder = Path(cache_path(kind, key))
    if folder.is_dir():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with open(folder.with_name(f"{key}.lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not folder.is_dir():
                _build(folder, build)
    except OSError as error:
        found = explain_disk_error(error.errno or 0, folder.parent)
        raise UserError(
            what=f"cannot write the cache: {error.strerror}: {found.what}",
            where=str(folder.parent),
            why=f"{found.why}; tokenizers and tokenised text are kept there between runs",
            fix=f"{found.fix}; or set PRIME_TRAIN_CACHE to another directory",
        ) from error
    return folder


def _build(folder: Path, build: Callable[[Path], None]) -> None:
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)  # left by a killed build; the lock excludes a running one
    partial.mkdir()
    try:
        build(partial)
        partial.rename(folder)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
