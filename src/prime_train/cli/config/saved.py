"""Keeps versions of configs by name, outside of runs. A version is a file that is never replaced."""

from __future__ import annotations

import json
import os
import re
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from prime_train.core import outside
from prime_train.core.errors import ExitCode, UserError
from prime_train.core.installation import data_path
from prime_train.core.outside import RECORD_BYTES
from prime_train.core.rundir import make_folder, open_private, sync, write_all

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_FILE = re.compile(r"([1-9][0-9]{0,5})\.json")


class SavedConfig(NamedTuple):
    """One version. `file`: the name of the file that was saved, whose suffix shows its format."""

    name: str
    number: int
    saved_s: float  # since the epoch
    note: str
    file: str
    text: str

    @property
    def title(self) -> str:
        return f"{self.name}@{self.number}"


def folder() -> Path:
    return Path(data_path("configs"))


def list_names() -> list[str]:
    with suppress(FileNotFoundError):
        return sorted(
            path.name for path in folder().iterdir() if _NAME.fullmatch(path.name) and list_numbers(path.name)
        )
    return []


def list_numbers(name: str) -> list[int]:
    """The numbers of the versions, from the first; none for a name that nothing was saved under."""
    if not _NAME.fullmatch(name):
        return []
    with suppress(FileNotFoundError, NotADirectoryError):
        found = (_FILE.fullmatch(path.name) for path in (folder() / name).iterdir())
        return sorted(int(match[1]) for match in found if match)
    return []


def read(name: str, number: int | None = None) -> SavedConfig:
    """A version of a name; the newest without a number. Raises UserError."""
    numbers = list_numbers(name)
    wanted = number if number is not None else (numbers[-1] if numbers else 0)
    if wanted not in numbers:
        title = name if number is None else f"{name}@{number}"
        why = f"its versions are {', '.join(map(str, numbers))}" if numbers else "nothing was saved under that name"
        raise UserError(f"there is no saved config {title}", title, why, "prime-train config list")
    path = folder() / name / f"{wanted}.json"
    try:
        found = outside.read_json(path, RECORD_BYTES, folder())
        note, file, text = (str(found[key]) for key in ("note", "file", "text"))
        # The name becomes the one that `restore` writes, so it may not lead out of a folder.
        return SavedConfig(name, wanted, float(found["saved_s"]), note, Path(file).name or f"{name}.toml", text)
    except (OSError, ValueError, KeyError, TypeError) as error:
        known = error if isinstance(error, OSError | ValueError) else ValueError("it is no saved config")
        raise outside.as_user_error(
            known, str(path), "delete it, or name another version", ExitCode.OUT_OF_REACH
        ) from None


def save(name: str, file: str, text: str, note: str) -> SavedConfig:
    """Write the next version of a name. Raises UserError for a name that is not plain."""
    if not _NAME.fullmatch(name):
        raise UserError(
            what="the name is not plain",
            where=name[:80] or '""',
            why="it becomes the name of a folder: letters, digits, - _ and . after a letter or digit, at most 64",
            fix="for example: prime-train config save qwen-4b-long rl.toml",
        )
    place = folder() / name
    make_folder(place)
    while True:
        number = max(list_numbers(name), default=0) + 1
        one = SavedConfig(name, number, time.time(), note, file, text)
        content = {"version": 1, "saved_s": one.saved_s, "note": note, "file": file, "text": text}
        with suppress(FileExistsError):  # another command took the number
            _write_once(place / f"{number}.json", json.dumps(content, indent=1, ensure_ascii=False))
            return one


def _write_once(path: Path, content: str) -> None:
    """Write a file that appears complete or not at all. Raises FileExistsError if there is one."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    beside.unlink(missing_ok=True)
    descriptor = open_private(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        write_all(descriptor, content.encode())
        os.fchmod(descriptor, 0o600)
        os.fsync(descriptor)
        path.hardlink_to(beside)  # unlike a rename, it replaces nothing
    finally:
        os.close(descriptor)
        beside.unlink()
    sync(path.parent)
