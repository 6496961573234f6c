"""Does the work of `prime-train diagnose`: finds the logs, reads them, has them judged. Prints nothing; reads only."""

from __future__ import annotations

import gzip
import os
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from prime_train.diagnose.cause import Diagnosis, judge
from prime_train.diagnose.match import Scanner
from prime_train.diagnose.scans import Scan
from prime_train.errors import UserError
from prime_train.events import AttemptEnded
from prime_train.events import read as read_events
from prime_train.rundir import RunDir

_CHUNK_BYTES = 1024 * 1024
_GZIP = b"\x1f\x8b"
_LOG = re.compile(
    r"\.(?:log|out|err|txt|stdout|stderr|jsonl?\.log)(?:\.\d+)?(?:\.gz)?$|^(?:dmesg|syslog|kern|messages|stdout|stderr)(?:\.|$)"
)
_NOT_ENTERED = frozenset({"checkpoints", "wandb", "broadcasts", "rollouts", "weights", "node_modules", "__pycache__"})
_ATTEMPT = re.compile(r"^(?:attempt_)?(\d+)$")
_MOST_FILES = 2000

Told = Callable[[int], None]  # how many bytes were read


class _Bytes(Protocol):
    def read1(self, size: int, /) -> bytes: ...


class Judged(NamedTuple):
    """The diagnosis, the logs it is of, and what could not be read."""

    diagnosis: Diagnosis
    scans: tuple[Scan, ...]
    unread: tuple[UserError, ...]

    @property
    def healthy(self) -> bool:
        return self.diagnosis.cause is None and not self.unread


def diagnosed(asked: Sequence[str], told: Told = lambda _size: None) -> Judged:
    """What the logs say together. What cannot be read is told beside; the others are judged all the same."""
    scans: list[Scan] = []
    unread: list[UserError] = []
    seen: set[str] = set()
    for name in asked:
        if name == "-":
            scanner = Scanner("-")
            with open(0, "rb", closefd=False) as piped:
                _read(piped, scanner, told)
            scans.append(scanner.finish())
            continue
        try:
            paths = {os.path.realpath(path): path for path in _logs(name)}
        except UserError as error:
            unread.append(error)
            continue
        for real, path in list(paths.items())[:_MOST_FILES]:
            if real not in seen:
                seen.add(real)
                _scan_file(path, scans, unread, told)
    return Judged(judge(scans), tuple(scans), tuple(unread))


def _logs(name: str) -> Iterator[Path]:
    """The logs that an argument stands for: a file, those of a folder, those of a run's newest attempt."""
    path = Path(name)
    if path.is_dir():
        yield from _of_folder(path)
    elif path.exists() or "/" in name or "." in name:
        yield path
    else:
        yield from _of_folder(_run(name))


def last_failure(asked: Sequence[str]) -> AttemptEnded | None:
    """What the supervisor of a run wrote of its newest attempt, where one run is asked for and that attempt failed.

    A process that was killed leaves no word in its log.
    """
    if len(asked) != 1 or asked[0] == "-":
        return None
    path = Path(asked[0])
    if not path.exists() and "/" not in asked[0]:
        path = _run(asked[0])
    if not path.is_dir():
        return None
    ended = [record.event for record in read_events(RunDir(path).events) if isinstance(record.event, AttemptEnded)]
    return ended[-1] if ended and ended[-1].outcome == "failed" else None


def _run(name: str) -> Path:
    from prime_train.views.runs import find

    return find(name, Path.cwd()).path


def _of_folder(folder: Path) -> Iterator[Path]:
    found = sorted(_walk(_newest_attempt(folder)))
    if not found:
        raise UserError(
            what="there is no log in it",
            where=str(folder),
            why="a log is a file called *.log, *.out, *.err or *.txt, also with .gz",
            fix=f"name the files themselves: prime-train diagnose {folder}/FILE",
        )
    yield from found


def _newest_attempt(folder: Path) -> Path:
    """Of a run, the folder of its newest attempt (prime-rl keeps them in logs/); else the folder itself."""
    for parent in (folder / "attempts", folder / "logs", folder):
        try:
            numbered = {
                int(m[1]): Path(e.path) for e in os.scandir(parent) if e.is_dir() and (m := _ATTEMPT.match(e.name))
            }
        except OSError:
            continue
        if numbered and (parent != folder or folder.name in ("attempts", "logs")):
            return numbered[max(numbered)]
    return folder


def _walk(folder: Path) -> Iterator[Path]:
    def refuse(error: OSError) -> None:
        raise _unreadable(folder, error)

    for root, folders, files in os.walk(folder, onerror=refuse):
        folders[:] = sorted(name for name in folders if name not in _NOT_ENTERED and not name.startswith("."))
        yield from (Path(root, name) for name in files if _LOG.search(name))


def _scan_file(path: Path, scans: list[Scan], unread: list[UserError], told: Told) -> None:
    """Add what the log holds. Of one that breaks off (a cut archive, a disk that fails) what came before counts."""
    try:
        with open(path, "rb") as file:
            scanner = Scanner(str(path), os.fstat(file.fileno()).st_mtime)
            try:
                if file.peek(2)[:2] == _GZIP:
                    with gzip.open(file) as unpacked:
                        _read(unpacked, scanner, told)
                else:
                    _read(file, scanner, told)
            finally:
                scans.append(scanner.finish())
    except (OSError, EOFError, zlib.error) as error:
        unread.append(_unreadable(path, error))


def _read(stream: _Bytes, scanner: Scanner, told: Told) -> None:
    while chunk := stream.read1(_CHUNK_BYTES):
        scanner.feed(chunk)
        told(len(chunk))


def _unreadable(path: Path, error: Exception) -> UserError:
    reason = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
    return UserError(
        what=f"it cannot be read: {reason}",
        where=str(path),
        why="a log that is not read may hold the cause",
        fix=f"check the path and its rights: ls -l {path}",
    )
