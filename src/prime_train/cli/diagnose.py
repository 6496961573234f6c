"""`prime-train diagnose`: the one root cause in any logs. Reads only."""

from __future__ import annotations

import errno
import os
import re
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from prime_train.cli.terminal.options import AsJson, NoColor
from prime_train.cli.terminal.render import fit_terminal, json_text, message, painter
from prime_train.core import outside
from prime_train.core.errors import ExitCode, UserError
from prime_train.core.outside import OutsideError, unpack
from prime_train.core.redaction import own_secrets, redact
from prime_train.diagnose.cause import Diagnosis, judge
from prime_train.diagnose.hits import Scan
from prime_train.diagnose.log_scanner import Scanner
from prime_train.views import diagnosis as view
from prime_train.views.run.attempt_history import AttemptHistory, add_history, read_history
from prime_train.views.run.runs import find

_CHUNK_BYTES = 1024 * 1024
_GZIP = b"\x1f\x8b"
_LOG = re.compile(
    r"\.(?:log|out|err|txt|stdout|stderr|jsonl?\.log)(?:\.\d+)?(?:\.gz)?$|^(?:dmesg|syslog|kern|messages|stdout|stderr)(?:\.|$)"
)
_FOLDERS_SKIPPED = frozenset(
    {"checkpoints", "wandb", "broadcasts", "rollouts", "weights", "node_modules", "__pycache__"}
)
_ATTEMPT = re.compile(r"^(?:attempt_)?(\d+)$")
_MAX_FILES = 2000

_CountBytes = Callable[[int], None]  # called with the size of each chunk that was read


def diagnose(
    logs: Annotated[
        list[str],
        typer.Argument(
            metavar="LOG...", help="Log files (.gz too), folders, a run or its directory, or - for standard input."
        ),
    ],
    as_json: AsJson = False,
    _no_color: NoColor = False,
) -> None:
    """The root cause in any log files: class, line, why, fix.

    The root cause is the first failure in time over all logs, so the logs should be those of one run. For a run, the
    logs of its newest attempt and the events of all are read. Exit code 0: the work was completed without a failure,
    1: a cause was found, 2: a log is unreadable, 4: a log holds neither a known failure nor a report that the work was
    completed.

    Examples:

      prime-train diagnose trainer.log orchestrator.log inference.log

      prime-train diagnose outputs/rl --json | jq .cause

      dmesg | prime-train diagnose - trainer.log
    """
    with _show_progress() as count:
        result = diagnose_logs(logs, count)
    history = AttemptHistory() if result.unread else read_history(logs)
    result = result._replace(diagnosis=add_history(result.diagnosis, history))
    names = [scan.name for scan in result.scans]
    hidden = own_secrets()
    if as_json:
        typer.echo(json_text(view.as_json(result.diagnosis, names, result.unread, history.ended)))
    elif names:
        text = view.text(result.diagnosis, len(names), painter(sys.stdout), history.failed_before)
        typer.echo(fit_terminal(redact(text, hidden), sys.stdout))
    for error in result.unread:
        typer.echo(message(error, sys.stderr), err=True)
    if result.diagnosis.cause is not None:
        raise typer.Exit(ExitCode.FINDINGS)
    if (newest := history.newest) is not None and newest.outcome == "failed":
        lines = view.attempt_lines(newest, painter(sys.stderr))
        typer.echo(redact("its supervisor reports:\n" + "\n".join(lines), hidden), err=True)
        raise typer.Exit(ExitCode.FINDINGS)
    if history.is_going and history.failed_before:
        raise typer.Exit(ExitCode.FINDINGS)
    if result.unread:
        raise typer.Exit(ExitCode.USAGE)
    if not result.diagnosis.is_healthy:
        raise typer.Exit(ExitCode.OUT_OF_REACH)


@contextmanager
def _show_progress() -> Iterator[_CountBytes]:
    """Shows on a terminal how much was read, from 100 MB on. Yields a function that counts bytes."""
    read_bytes = shown_mb = 0

    def count(size_bytes: int) -> None:
        nonlocal read_bytes, shown_mb
        read_bytes += size_bytes
        if sys.stderr.isatty() and read_bytes // 10**8 > shown_mb // 100:
            shown_mb = read_bytes // 10**6
            sys.stderr.write(f"\r{shown_mb} MB read")
            sys.stderr.flush()

    yield count
    if shown_mb:
        sys.stderr.write("\r\x1b[K")


class Diagnosed(NamedTuple):
    """The diagnosis, the logs that were read, and the errors of those that could not be read."""

    diagnosis: Diagnosis
    scans: tuple[Scan, ...]
    unread: tuple[UserError, ...]


def diagnose_logs(names: Sequence[str], count: _CountBytes = lambda _: None) -> Diagnosed:
    """The diagnosis over all logs that the names stand for. An unreadable log does not stop the others."""
    scans: list[Scan] = []
    unread: list[UserError] = []
    seen: set[str] = set()
    for name in names:
        if name == "-":
            scanner = Scanner("-")
            with open(0, "rb", closefd=False) as piped:
                _feed(_pieces(piped), scanner, count)
            scans.append(scanner.finish())
            continue
        try:
            paths = {os.path.realpath(path): path for path in _find_logs(name)}
        except UserError as error:
            unread.append(error)
            continue
        for real, path in list(paths.items())[:_MAX_FILES]:
            if real not in seen:
                seen.add(real)
                _scan_file(path, scans, unread, count)
    return Diagnosed(judge(scans), tuple(scans), tuple(unread))


def _scan_file(path: Path, scans: list[Scan], unread: list[UserError], count: _CountBytes) -> None:
    """Append the scan of a log. If reading fails midway (a cut archive, a failing disk), the part before counts."""
    try:
        with outside.open_regular(path) as file:
            scanner = Scanner(str(path), os.fstat(file.fileno()).st_mtime)
            try:
                _feed(unpack(file, path) if file.peek(2)[:2] == _GZIP else _pieces(file), scanner, count)
            finally:
                scans.append(scanner.finish())
    except (OSError, EOFError, zlib.error) as error:
        unread.append(_unreadable(path, error))


def _pieces(file: BufferedReader) -> Iterator[bytes]:
    while piece := file.read1(_CHUNK_BYTES):
        yield piece


def _feed(pieces: Iterator[bytes], scanner: Scanner, count: _CountBytes) -> None:
    for chunk in pieces:
        scanner.feed(chunk)
        count(len(chunk))


def _unreadable(path: Path, error: Exception) -> UserError:
    if isinstance(error, OutsideError):
        unpacked = "zcat" if error.errno == errno.EFBIG else "cat"
        return outside.as_user_error(error, str(path), f"{unpacked} {path} | prime-train diagnose -")
    reason = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
    return UserError(
        what=f"it cannot be read: {reason}",
        where=str(path),
        why="the cause may be in a log that was not read",
        fix=f"check the path and its permissions: ls -l {path}",
    )


# --- which logs ------------------------------------------------------------------------------------


def _find_logs(name: str) -> Iterator[Path]:
    """The logs that an argument stands for: a file, the logs of a folder, or those of a run's newest attempt."""
    path = Path(name)
    if not path.is_dir() and (path.exists() or "/" in name or "." in name):
        yield path
        return
    folder = path if path.is_dir() else find(name, Path.cwd()).path
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
    """The folder of a run's newest attempt (prime-rl keeps attempts in logs/); the folder itself if it has none."""
    for parent in (folder / "attempts", folder / "logs", folder):
        try:
            numbered = {
                int(m[1]): path for path in parent.iterdir() if (m := _ATTEMPT.match(path.name)) and path.is_dir()
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
        folders[:] = sorted(name for name in folders if name not in _FOLDERS_SKIPPED and not name.startswith("."))
        named = (Path(root, name) for name in files if _LOG.search(name))
        yield from (path for path in named if path.is_file() or not path.exists())  # a pipe or a device is no log
