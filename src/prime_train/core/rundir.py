"""The paths of all files in a run directory. Creates none of them; standard library only."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import traceback
from dataclasses import dataclass
from pathlib import Path

from prime_train.core import process_id
from prime_train.core.redaction import own_secrets, redact


class _Below:
    """A file or a folder below the run directory."""

    def __init__(self, *names: str) -> None:
        self._names = names

    def __get__(self, run_dir: RunDir, _owner: type[RunDir]) -> Path:
        return run_dir.path.joinpath(*self._names)


@dataclass(frozen=True, slots=True)
class RunDir:
    """The directory of one run. `path` is absolute; the files need not exist."""

    path: Path

    config = _Below("config.toml")  # as the user wrote it
    resolved = _Below("resolved.json")  # the RunSpec as JSON, with all defaults and absolute paths, for the trainer
    facts = _Below("facts.json")
    verdict = _Below("verdict.json")
    events = _Below("events")  # one append-only JSONL file per writer
    snapshot = _Below("events", "snapshot.json")  # the state up to a place in the events; a cache
    metrics = _Below("metrics.jsonl")  # one JSON line per optimizer step, from rank 0 of the trainer
    report = _Below("report.md")
    plots = _Below("plots")
    lock = _Below("lock")  # the live supervisor holds it with flock; its text names the holder
    watches = _Below("watches")  # one log for each watch: the output of its program and its failures
    wandb = _Below("wandb")  # the files of the mirror at W&B (log, lock, position), beside those of W&B itself
    bus = _Below("bus")  # the files of the agent: log, lock, what was sent, answers to commands
    backup = _Below("backup")  # the files of the backup: lock and known hashes
    reported = _Below("reported_checkpoint.json")  # the newest that a script reported through prime_train.live
    slurm = _Below("slurm")  # the script, output and records of the run's job on Slurm
    supervisor_log = _Below("supervisor.log")  # the output of a supervisor that was started with --detach
    checkpoints = _Below("checkpoints")
    final = _Below("final")  # the Hugging Face folder written at the end when checkpoint.final = "hf"
    tokenizer = _Below("tokenizer")  # trained on the data of the run; an export and another run read it
    settings = _Below("settings")  # the plans of changes to a run that trains, one file each
    profile = _Below("profile")  # the traces of the steps that [profile] names
    exports = _Below("exports")  # the folders that `ckpt to-hf` and `ckpt consolidate` write by default
    policy = _Below("policy")  # the config.json with which vLLM starts before the trainer has weights for it
    handover = _Below("handover")  # the weights on their way from the trainer to vLLM, if they are not in shared memory

    def earlier_config(self, number: int) -> Path:
        """A text that config.toml had before another one replaced it, by its number from 1."""
        return self.path / f"config.{number}.toml"

    def checkpoint(self, step: int) -> Path:
        return self.checkpoints / f"step_{step}"

    def attempt(self, attempt: int) -> Path:
        return self.path / "attempts" / f"{attempt:03d}"

    def launch(self, attempt: int, role: str) -> Path:
        return self.attempt(attempt) / f"launch-{role}.json"

    def log(self, attempt: int, role: str) -> Path:
        return self.attempt(attempt) / f"{role}.log"

    def evidence(self, attempt: int) -> Path:
        return self.attempt(attempt) / "evidence"

    def requests(self, attempt: int) -> Path:
        """The folder of requests to the supervisor, such as one to stop. The supervisor creates it."""
        return self.attempt(attempt) / "requests"

    def rank_times(self, attempt: int) -> Path:
        """The folder in which each rank of this machine keeps the times of its latest steps."""
        return self.attempt(attempt) / "times"

    def replicas(self, attempt: int) -> Path:
        """The folder for the files of the replicas of an attempt."""
        return self.attempt(attempt) / "replicas"

    def drained_gpus(self, attempt: int) -> Path:
        """The GPUs without which the replicas of the attempt are to go on."""
        return self.attempt(attempt) / "drained_gpus.json"

    def stop_request(self, attempt: int) -> Path:
        """If this file exists, the trainer saves a checkpoint and exits at the next step boundary.

        Every rank can see a file with any launcher. A signal is not safe, because torchrun's agent kills the workers
        30 s later, even if they have not saved.
        """
        return self.attempt(attempt) / "stop_requested"

    def applied_settings(self, attempt: int) -> Path:
        """The changes of settings that earlier attempts had put in force, with their steps."""
        return self.attempt(attempt) / "applied_settings.json"

    def save_request(self, attempt: int) -> Path:
        """If this file exists, the trainer removes it, and saves a checkpoint after its next step."""
        return self.attempt(attempt) / "save_requested"

    def rendezvous(self, attempt: int) -> Path:
        """The file through which the processes of an attempt find each other."""
        return self.attempt(attempt) / "rendezvous"

    def relative(self, path: Path) -> str:
        """`path` relative to the working directory if it is inside it, else `path` itself."""
        try:
            return str(path.relative_to(Path.cwd()))
        except ValueError:
            return str(path)


def make_folder(path: Path) -> None:
    """Create a folder, and the missing ones above it, for their owner alone. One that exists stays as it is."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    for folder in reversed(missing):
        folder.mkdir(mode=_mode(folder.parent, 0o700), exist_ok=True)
    path.mkdir(exist_ok=True)  # raises if it is no folder


def make_own_folder(path: Path) -> None:
    """As `make_folder`; raises PermissionError for a link, and for a folder whose owner could replace what is in it."""
    make_folder(path)
    found = path.lstat()
    if stat.S_ISLNK(found.st_mode) or found.st_uid != os.geteuid():
        kind = "it is a link" if stat.S_ISLNK(found.st_mode) else f"it belongs to the user with the id {found.st_uid}"
        raise PermissionError(errno.EPERM, kind, str(path))


def set_stranger_aside(path: Path) -> Path:
    """Give a link or a file another name, because its own is needed. Returns the new path; its content stays."""
    names = (path.with_name(f"{path.name}.set_aside{suffix}") for suffix in ("", *(f".{n}" for n in range(2, 10**6))))
    target = next(name for name in names if not os.path.lexists(name))
    path.rename(target)
    return target


def open_private(path: Path | str, flags: int) -> int:
    """Open a file that may hold secrets: a new one is for its owner alone. Also the `opener` of `open`.

    A pipe, a link or a folder in the place of a log gets another name: opening a pipe would never return, and a link
    may lead to a file of the user's.
    """
    appends = flags & os.O_APPEND and not flags & os.O_EXCL
    if appends and os.path.lexists(path) and not stat.S_ISREG(os.lstat(path).st_mode):
        set_stranger_aside(Path(path))
    return os.open(path, flags | os.O_CLOEXEC, _mode(Path(path).parent, 0o600))


def _mode(folder: Path, owner: int) -> int:
    """The mode of a new file or folder: `owner`, and the same for the group below a folder with the set-group-ID bit.

    That bit is the usual mark of a folder that a group shares (chmod g+s runs).
    """
    try:
        is_shared = bool(folder.stat().st_mode & stat.S_ISGID)
    except OSError:
        return owner
    return owner | owner >> 3 if is_shared else owner


def write_all(descriptor: int, content: bytes) -> None:
    """Write all of `content`: a network disk or a signal may end a write after a part of it.

    Raises OSError with the name of the file where the disk takes no more; then a part is written.
    """
    left = memoryview(content)
    try:
        while left:
            left = left[os.write(descriptor, left) :]
    except OSError as error:
        name = str(Path(f"/proc/self/fd/{descriptor}").readlink())
        raise OSError(error.errno, os.strerror(error.errno or 0), name) from error


def append_line(path: Path, line: str) -> None:
    """Add a line to a file, whole or not at all, so that the next one is not joined to a half. Raises OSError.

    For a file with one writer.
    """
    descriptor = open_private(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        size_bytes = os.fstat(descriptor).st_size
        try:
            write_all(descriptor, f"{line}\n".encode())
        except OSError:
            os.ftruncate(descriptor, size_bytes)
            raise
    finally:
        os.close(descriptor)


def write_atomic(path: Path, content: str | bytes, *, is_private: bool = True, modified_ns: int | None = None) -> None:
    """Replace a file so that a reader sees either the old content or the whole new content.

    A file that exists keeps its mode, without setuid. A new one is for its owner alone unless it is not `is_private`.
    `modified_ns`: the time of its last change that the file gets, in ns since the epoch; None for the real one.
    A text is written as UTF-8. It may quote a path that is not, whose bytes become \\udcXX.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.unlink(missing_ok=True)  # a link with this name would lead to a file of the user's
        with open(temporary, "xb", opener=open_private if is_private else None) as file:
            with contextlib.suppress(FileNotFoundError):
                os.fchmod(file.fileno(), path.stat().st_mode & 0o777)  # a mark as setuid would pass to this user
            file.write(content.encode("utf-8", "backslashreplace") if isinstance(content, str) else content)
            file.flush()
            if modified_ns is not None:
                os.utime(file.fileno(), ns=(modified_ns, modified_ns))
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync(path.parent)


_TEMPORARY = re.compile(r"\..+\.(\d+)\.tmp\Z")


def remove_temporary(run_dir: RunDir) -> None:
    """Delete the temporary files of `write_atomic` whose writers were killed.

    Call it with the run's lock held. A file of a live process stays: a report may be written without the lock. Follows
    no links.
    """
    _remove_temporary(run_dir.path)
    _remove_temporary(run_dir.plots)
    _remove_temporary(run_dir.settings)
    _remove_temporary(run_dir.profile)
    for parent in (run_dir.checkpoints, run_dir.path / "attempts"):
        for name in _remove_temporary(parent):
            _remove_temporary(parent / name)
            _remove_temporary(parent / name / "requests")


def _remove_temporary(folder: Path) -> list[str]:
    """Delete the temporary files of ended writers in one folder.

    Returns the names of the folders in it. A link is no such folder. A file that cannot be deleted stays, because no
    reader looks at it.
    """
    folders = []
    with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        stack.callback(os.close, descriptor)
        for entry in os.scandir(descriptor):
            found = _TEMPORARY.match(entry.name)
            if found and entry.is_file(follow_symlinks=False) and not process_id.is_running(int(found[1])):
                os.unlink(entry.name, dir_fd=descriptor)
            elif entry.is_dir(follow_symlinks=False):
                folders.append(entry.name)
    return folders


def sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def append_traceback(log: Path, error: Exception) -> None:
    """Append the traceback of an internal error to a log, if the disk has space for it."""
    with contextlib.suppress(OSError):
        make_folder(log.parent)
        with open(log, "a", encoding="utf-8", opener=open_private) as file:
            file.write(redact("".join(traceback.format_exception(error)), own_secrets()))
