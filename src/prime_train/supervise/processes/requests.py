"""Requests to the supervisor of a run: files in attempts/N/requests, and signals. Writes and reads them, acts on none.

A file is one JSON object with version, kind, the supervisor that it is for, an id and a body. The supervisor
removes each file that it takes, so a file that is still there has not been read, and the writer may withdraw it. A
request with an id is answered by an event RequestAnswered with that id, and a second request with the same id changes
nothing: a writer that saw no answer may repeat its request.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import time
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from queue import SimpleQueue
from types import MappingProxyType
from typing import Any, NamedTuple

from prime_train.core import outside
from prime_train.core.errors import ExitCode, UserError
from prime_train.core.outside import MARK_BYTES
from prime_train.core.process_id import Holder, Identity, signal_checked
from prime_train.core.rundir import RunDir, write_atomic
from prime_train.events.record import TRANSIENT
from prime_train.supervise.processes.lock import find_holder

VERSION = 1
STOP_REQUESTED = "stop_requested"
SETTINGS_REQUESTED = "settings_requested"  # other values of settings, while the run trains
COMMAND_REQUESTED = "command_requested"  # something to do once: a checkpoint, a pause, a test of a GPU
KINDS = (STOP_REQUESTED, SETTINGS_REQUESTED, COMMAND_REQUESTED)
_KEYS = frozenset({"version", "kind", "supervisor"})
_MORE_KEYS = frozenset({"id", "body"})
REQUEST_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,100}\.json")
_MOST_FILES = 1000  # that one look visits
_MOST_REFUSALS = 100  # of one supervisor; a folder with more is not read any further
# SIGUSR1 and SIGUSR2 are the notices of schedulers (sbatch --signal), SIGXCPU that of a limit on CPU time. The default
# action of each would end this process without a save.
STOP_SIGNALS = (*(signal.SIGINT, signal.SIGTERM, signal.SIGHUP), *(signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU))
ANSWER_S = 5.0  # a supervisor looks for requests about twice per second
_POLL_S = 0.05


class Request(NamedTuple):
    """A request that a supervisor has taken. The values in the body are not checked yet."""

    kind: str
    id: str = ""  # unique; "" = without an answer
    body: Mapping[str, Any] = MappingProxyType({})


class RequestRefusal(NamedTuple):
    """A file that is no request, and why."""

    path: str  # below attempts/
    why: str


def write_request(
    folder: Path, kind: str, supervisor: Identity, request_id: str = "", body: Mapping[str, Any] | None = None
) -> Path:
    """Write a request into the folder of an attempt. Returns its file. Raises OSError.

    `body`: JSON-able. The file has at most `MARK_BYTES`; a longer one is refused.
    """
    path = folder / f"{kind}-{os.getpid()}-{os.urandom(4).hex()}.json"
    content = {"version": VERSION, "kind": kind, "supervisor": str(supervisor)}
    more = {"id": request_id, "body": dict(body or {})} if request_id else {}
    write_atomic(path, json.dumps(content | more))
    return path


class RequestReader:
    """Takes the requests for one supervisor. A file that is refused stays where it is and is named once."""

    def __init__(self, run_dir: RunDir, supervisor: Identity) -> None:
        self._run_dir = run_dir
        self._supervisor = supervisor
        self._refused: set[str] = set()

    def take(self, attempt: int) -> Iterator[Request | RequestRefusal]:
        """The requests since the last call, to the newest attempt and to the one before it.

        A writer may have read the number of an attempt just before the next one began.
        """
        for number in (attempt - 1, attempt):
            if number > 0:
                yield from self._take_from(self._run_dir.requests(number))

    def _take_from(self, folder: Path) -> Iterator[Request | RequestRefusal]:
        # Without a folder there is no request. An error that passes leaves the files for the next look.
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            stack.callback(os.close, descriptor)
            with os.scandir(descriptor) as entries:
                names = sorted(entry.name for entry in islice(entries, _MOST_FILES))
            for name in names:
                shown = f"{folder.parent.name}/requests/{name if _PLAIN_NAME.fullmatch(name) else ascii(name)[:100]}"
                is_temporary = name.startswith(".")  # a writer renames it when it is complete
                if is_temporary or shown in self._refused:
                    continue
                if len(self._refused) >= _MOST_REFUSALS:
                    return
                try:
                    # Removed before it is acted on, so a writer can withdraw only what was not read.
                    request = self._read(folder / name)
                    os.unlink(name, dir_fd=descriptor)
                except FileNotFoundError:  # its writer has withdrawn it
                    continue
                except (OSError, ValueError) as error:
                    if getattr(error, "errno", None) in TRANSIENT:  # the next look tries again
                        continue
                    self._refused.add(shown)
                    yield RequestRefusal(shown, (getattr(error, "strerror", None) or str(error))[:200])
                else:
                    yield request

    def _read(self, path: Path) -> Request:
        """A request. Raises ValueError for one that is not to this supervisor, and OSError."""
        if not _PLAIN_NAME.fullmatch(path.name):
            raise ValueError("its name is not made of letters, digits, - and _, with .json at its end")
        found: Any = outside.read_json(path, MARK_BYTES, within=self._run_dir.path)
        if not isinstance(found, dict) or found.keys() - _MORE_KEYS != _KEYS:
            raise ValueError(f"it is no object with the keys {', '.join(sorted(_KEYS))}")
        if found["version"] != VERSION or found["kind"] not in KINDS:
            raise ValueError(f"it is no request of version {VERSION} with a kind of {', '.join(KINDS)}")
        if found["supervisor"] != str(self._supervisor):
            raise ValueError(f"it is for another supervisor than {self._supervisor}")
        request_id, body = found.get("id", ""), found.get("body", {})
        if not isinstance(request_id, str) or (request_id and not REQUEST_ID.fullmatch(request_id)):
            raise ValueError("its id is not made of up to 64 letters, digits, - and _")
        if not isinstance(body, dict):
            raise ValueError("its body is no object")
        return Request(found["kind"], request_id, body)


def require_supervisor(run_dir: RunDir) -> Holder:
    """The supervisor that reads requests. Raises UserError where there is none on this machine."""
    found = find_holder(run_dir)
    if found is None:
        fix = f"start it again, or look at it with `prime-train status {run_dir.path.name}`"
        raise UserError("no supervisor runs it", str(run_dir.path), "only a run that is supervised takes requests", fix)
    if not found.here:
        what, fix = (
            f"its supervisor is process {found.identity.pid} on {found.host}",
            f"give the command on {found.host}",
        )
        why = "a request is a file that a supervisor of this machine reads"
        raise UserError(what, str(run_dir.lock), why, fix, ExitCode.OUT_OF_REACH)
    return found


def request_stop(run_dir: RunDir, attempt: int = 0, request_id: str = "") -> Holder:
    """Request a checkpoint and the end of the run. Returns the supervisor. Raises UserError if that is not possible.

    `attempt`: the newest one; 0 if there is none. A supervisor without a folder of requests, or one that reads none
    within `ANSWER_S`, gets SIGTERM. `request_id`: a file with it is acted on once; "" makes each call a request of its
    own, and a second one ends the run at once.
    """
    found = require_supervisor(run_dir)
    try:
        if not _request_by_file(run_dir, attempt, found, request_id):
            _signal(run_dir, found, signal.SIGTERM, signal.SIGCONT)
    except PermissionError:
        what = f"process {found.identity.pid} belongs to another user"
        fix = f"sudo kill -TERM {found.identity.pid}"
        raise UserError(what, str(run_dir.lock), "only its owner may signal it", fix, ExitCode.OUT_OF_REACH) from None
    return found


def _request_by_file(run_dir: RunDir, attempt: int, holder: Holder, request_id: str) -> bool:
    """Whether the supervisor has read a request. Raises PermissionError if it belongs to another user."""
    folder = run_dir.requests(attempt)
    if folder.is_symlink() or not folder.is_dir():
        return False
    try:
        request = write_request(folder, STOP_REQUESTED, holder.identity, request_id)
    except OSError:
        return False
    try:
        _signal(run_dir, holder, signal.SIGCONT)
        until_s = time.monotonic() + ANSWER_S
        while request.exists() and holder.identity.alive and time.monotonic() < until_s:
            time.sleep(_POLL_S)
    finally:
        is_read = not _withdraw(request)
    return is_read


def _withdraw(request: Path) -> bool:
    """Remove a request, so that no later supervisor finds it. Returns whether it was still there."""
    try:
        request.unlink()
    except OSError as error:
        return not isinstance(error, FileNotFoundError)
    return True


def _signal(run_dir: RunDir, holder: Holder, *numbers: signal.Signals) -> None:
    """Signal the supervisor if it still holds the run.

    SIGCONT wakes a process that Ctrl-Z stopped, which reads no file and handles no other signal.
    """
    signal_checked(holder.identity.pid, lambda: find_holder(run_dir) == holder, *numbers)


@contextlib.contextmanager
def signals_into(inbox: SimpleQueue[object]) -> Iterator[None]:
    """Put the signals that request a stop into the inbox.

    A signal handler may call SimpleQueue.put, but not Queue.put. A signal that was ignored before stays ignored (SIGHUP
    under nohup), except SIGINT and SIGTERM.
    """
    always = (signal.SIGINT, signal.SIGTERM)
    names = [one for one in STOP_SIGNALS if one in always or signal.getsignal(one) is not signal.SIG_IGN]
    before = {name: signal.signal(name, lambda number, _: inbox.put(signal.Signals(number))) for name in names}
    try:
        yield
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)
