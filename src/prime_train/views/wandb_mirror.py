"""Mirrors a run directory to Weights & Biases, as a process of its own: `python -m prime_train.views.wandb_mirror RUN`.

It reads what the run writes anyway and touches nothing else, so that a W&B that is slow, gone or wrong stalls no
training. It ends a while after the run's supervisor has; on a run that is over it sends what was not sent yet.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prime_train.errors import UserError
from prime_train.events import Follower, Record, RunClosed, RunOpened
from prime_train.redaction import secrets
from prime_train.rundir import RunDir
from prime_train.supervise.lock import holder
from prime_train.views import wandb_rows as rows
from prime_train.views import wandb_state as state

if TYPE_CHECKING:
    import wandb

_EVERY_S = 5.0
_LOOK_S = 0.5  # for the end of the run
_WAIT_FOR_SUPERVISOR_S = 30.0  # of a run that is not closed: it may only be about to be taken over
_FINISH_LIMIT_S = 120.0  # for the last values to get out; what is left then stays in the run directory
_LOCK_LIMIT_S = 150.0  # for the mirror of an earlier supervisor to end
_INSTALL = "pip install 'prime-train[wandb]'"
_EXIT_CODES = {"finished": 0, "stopped": 75}
_MARKS = ("PRIME_TRAIN_RUN", "PRIME_TRAIN_SUPERVISOR")


def begin(run_dir: RunDir) -> None:
    """Start a mirror that belongs to nobody: neither a sweep of the run's processes nor its end takes it along.

    Call it before the supervisor becomes the keeper of orphans. Raises OSError where it cannot be started, UserError
    where the package is missing.
    """
    if find_spec("wandb") is None:
        what, where = "the package wandb is not installed", "prime_train.wandb.project"
        raise UserError(what, where, "the run is to be shown there", f"{_INSTALL}, or leave prime_train.wandb out")
    state.folder(run_dir).mkdir(exist_ok=True)
    variables = {name: value for name, value in os.environ.items() if name not in _MARKS}
    with open(state.log(run_dir), "ab") as log:
        command = [sys.executable, "-P", "-m", __name__, str(run_dir.path), "--detach"]
        subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=variables,
            start_new_session=True,
            check=False,
        )


def main() -> int:
    """Mirror the run that is named; 0, or 1 where W&B cannot be used."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("run_dir", type=Path)
    options.add_argument("--detach", action="store_true", help="go on in the background")
    asked = options.parse_args()
    if asked.detach and os.fork():
        return 0
    run_dir = RunDir(asked.run_dir.resolve())
    with _alone(run_dir) as is_alone:
        if not is_alone:
            _say("another mirror of this run does not end")
            return 1
        return _mirror(run_dir)


@contextlib.contextmanager
def _alone(run_dir: RunDir) -> Iterator[bool]:
    """Whether no other process mirrors this run; the one of an earlier supervisor is waited for."""
    state.folder(run_dir).mkdir(exist_ok=True)
    with open(state.lock(run_dir), "ab") as file:
        give_up_s = time.monotonic() + _LOCK_LIMIT_S
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > give_up_s:
                    yield False
                    return
                time.sleep(_LOOK_S)
            else:
                yield True
                return


def _mirror(run_dir: RunDir) -> int:
    if find_spec("wandb") is None:
        _say(f"the package wandb is not installed: {_INSTALL}")
        return 1
    before = dict(os.environ)  # W&B leaves its own marks there
    run = _opened(run_dir, state.load(run_dir))
    if run is None:
        if before.get("WANDB_MODE") == "offline":
            return 1
        # In the same process W&B holds the id of the run that it could not open.
        command = [sys.executable, "-P", "-m", "prime_train.views.wandb_mirror", str(run_dir.path)]
        os.execve(sys.executable, command, before | {"WANDB_MODE": "offline"})
    mirror = _Mirror(run_dir, run)
    exit_code = mirror.follow()
    threading.Timer(_FINISH_LIMIT_S, _give_up).start()
    if exit_code == _EXIT_CODES["stopped"]:
        run.mark_preempting()
    run.finish(exit_code=exit_code)
    os._exit(0)  # the timer is not waited for


def _give_up() -> None:
    _say(f"W&B did not take the last values within {_FINISH_LIMIT_S:g} s; `wandb sync` sends what is in this folder")
    os._exit(1)


def _opened(run_dir: RunDir, mirrored: state.Mirrored) -> wandb.Run | None:
    """The run at W&B, gone on with under its id; None for want of a login, or of a way there."""
    import wandb

    resolved = run_dir.resolved.read_text(encoding="utf-8") if run_dir.resolved.is_file() else "{}"
    config = rows.config(resolved, secrets(os.environ))
    asked = _asked(config)
    try:
        run = wandb.init(
            project=asked["project"],
            entity=asked["entity"],
            name=str(config.get("run", {}).get("name") or run_dir.path.name),
            id=mirrored.run_id,
            resume="allow",
            dir=str(run_dir.path),
            config=config,
            mode=asked["mode"],
            settings=wandb.Settings(console="off", disable_git=True, disable_code=True, save_code=False),
        )
    except wandb.Error as error:
        _say(f"W&B ({asked['mode']}): {error}; it is kept for `wandb sync`")
        return None
    state.keep(run_dir, mirrored)
    return run


def _asked(config: dict[str, Any]) -> dict[str, Any]:
    """[prime_train.wandb], with the environment's WANDB_* where it says nothing."""
    table = config.get("prime_train", {}).get("wandb") or {}
    return {
        "project": table.get("project") or os.environ.get("WANDB_PROJECT") or "prime-train",
        "entity": table.get("entity") or os.environ.get("WANDB_ENTITY"),
        "mode": os.environ.get("WANDB_MODE") or table.get("mode") or "online",
    }


class _Mirror:
    """Follows the events and the metrics, and logs what is new."""

    def __init__(self, run_dir: RunDir, run: wandb.Run) -> None:
        self._run_dir = run_dir
        self._run = run
        self._mirrored = state.load(run_dir)
        self._events = Follower(run_dir.events)
        self._metrics = _Lines(run_dir.metrics)
        self._counts = rows.Counts()
        self._closed: RunClosed | None = None

    def follow(self) -> int:
        """Until the run is over; what to tell W&B as its exit code."""
        unheld_s: float | None = None
        while True:
            held = holder(self._run_dir) is not None  # before the reading: what it wrote last is read below
            self.send()
            if not held:
                unheld_s = unheld_s or time.monotonic()
                if self._closed is not None:
                    return _EXIT_CODES.get(self._closed.state, self._closed.exit_code or 1)
                if time.monotonic() - unheld_s > _WAIT_FOR_SUPERVISOR_S:
                    return 255  # killed, with nobody to take over
            else:
                unheld_s = None
            self._pause()

    def _pause(self) -> None:
        until_s = time.monotonic() + _EVERY_S
        while time.monotonic() < until_s and holder(self._run_dir) is not None:
            time.sleep(_LOOK_S)
        if holder(self._run_dir) is None:
            time.sleep(_LOOK_S)

    def send(self) -> None:
        """Log what is new, and keep how far that was."""
        records = self._events.poll()
        metrics = rows.of_metrics(self._metrics.more())
        last = self._mirrored.last_step
        step = max((row.step for row in metrics), default=last)
        others = [row for record in records if (row := self._told(record, max(step, last))) is not None]
        fresh = rows.merged(metrics, others, last)
        for row in fresh:
            self._run.log(row.values, step=row.step)
        if records or fresh:
            newest = max((row.step for row in fresh), default=last)
            self._mirrored = self._mirrored.with_records(records, max(last, newest))
            state.keep(self._run_dir, self._mirrored)

    def _told(self, record: Record, step: int) -> rows.Row | None:
        """Count the event; what to log of it, where that was not done before."""
        if isinstance(record.event, (RunOpened, RunClosed)):
            self._closed = record.event if isinstance(record.event, RunClosed) else None
        self._counts, row, note = rows.of_event(record.event, self._counts, step)
        if self._mirrored.has(record):
            return None
        if note is not None:
            self._run.alert(title=note.title[:120], text=note.text, level=note.level)
        return row


class _Lines:
    """The whole lines of a file that grows, and that a resume replaces by a shorter one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._inode = 0
        self._offset = 0

    def more(self) -> list[bytes]:
        """The lines since the last call; all of them where the file was replaced."""
        try:
            with open(self._path, "rb") as file:
                status = os.fstat(file.fileno())
                if status.st_ino != self._inode or status.st_size < self._offset:
                    self._inode, self._offset = status.st_ino, 0
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return []
        whole = data.rfind(b"\n") + 1
        self._offset += whole
        return data[:whole].split(b"\n")[:-1]


def _say(words: str) -> None:
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {words}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
