"""Mirrors a run directory to Weights & Biases in a separate process: `python -m prime_train.views.wandb_mirror RUN`.

The mirror only reads the files that the run writes, so a slow or failing W&B never delays the training. The mirror ends
shortly after the supervisor. For a run that is over it sends what was not sent yet. It keeps in the run directory how
far it has sent. It continues one run over machines, whose id is in WANDB_RUN_ID or SKYPILOT_TASK_ID.
"""

from __future__ import annotations

import json
import os
import re
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from importlib.util import find_spec
from secrets import token_hex
from typing import TYPE_CHECKING, Any

from prime_train.core import outside
from prime_train.core.errors import UserError
from prime_train.core.installation import install_command
from prime_train.core.outside import RECORD_BYTES, OutsideError
from prime_train.core.python_child import own_module
from prime_train.core.redaction import own_secrets, redact, redact_all
from prime_train.core.rundir import RunDir, make_folder, write_atomic
from prime_train.events import AlarmRaised, Follower, Record, RunClosed, RunOpened
from prime_train.supervise.processes.beside import enter_background, hold_alone, start_beside
from prime_train.supervise.processes.lock import find_holder
from prime_train.views import wandb_rows
from prime_train.views.run.logs import LineTail

if TYPE_CHECKING:
    import wandb

_RUN_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_EVERY_S = 5.0
_POLL_S = 0.5  # between checks for the end of the run
_WAIT_FOR_SUPERVISOR_S = 30.0  # after which a run without supervisor counts as killed; another may take over until then
_FINISH_LIMIT_S = 120.0  # to send the last values; unsent values stay in the run directory
_LOCK_LIMIT_S = 150.0  # to wait for the end of an earlier supervisor's mirror
_EXIT_CODES = {"finished": 0, "stopped": 75}


@dataclass(frozen=True, slots=True)
class Mirrored:
    """What was sent of a run. `read`: writer -> number of its last event that was sent."""

    run_id: str
    last_step: int = 0
    read: dict[str, int] = field(default_factory=dict)

    def has(self, record: Record) -> bool:
        return record.seq <= self.read.get(record.writer, -1)

    def with_records(self, records: list[Record], last_step: int) -> Mirrored:
        return Mirrored(self.run_id, last_step, self.read | {record.writer: record.seq for record in records})


def choose_run_id(environment: Mapping[str, str], run_name: str) -> str:
    """The id of a run at W&B that was not mirrored from this directory yet.

    A recovered job of a cloud has an empty directory on another machine, and must continue the same run there. So the
    id is WANDB_RUN_ID if it is set, else it comes from the id that SkyPilot keeps over all recoveries of a job.
    """
    given = environment.get("WANDB_RUN_ID", "")
    if _RUN_ID.fullmatch(given):
        return given
    task = environment.get("SKYPILOT_TASK_ID")
    return sha256(f"{task}\n{run_name}".encode()).hexdigest()[:12] if task else token_hex(6)


def load_position(run_dir: RunDir, environment: Mapping[str, str]) -> Mirrored:
    """The stored state; the state of a run without any if there is none or it cannot be read."""
    try:
        raw = outside.read_json(run_dir.wandb / "mirror.json", RECORD_BYTES, within=run_dir.path)
        return Mirrored(str(raw["run_id"]), int(raw["last_step"]), {str(k): int(v) for k, v in raw["read"].items()})
    except (FileNotFoundError, OutsideError, ValueError, KeyError, TypeError, AttributeError):
        return Mirrored(choose_run_id(environment, run_dir.path.name))


def save_position(run_dir: RunDir, mirrored: Mirrored) -> None:
    make_folder(run_dir.wandb)
    write_atomic(run_dir.wandb / "mirror.json", json.dumps(asdict(mirrored)))


def start(run_dir: RunDir) -> None:
    """Starts a mirror that outlives the run: it is not one of the processes that the supervisor ends.

    Call it before the supervisor becomes the subreaper of its descendants. Raises OSError if the mirror cannot be
    started, UserError if the package is missing.
    """
    if find_spec("wandb") is None:
        what, why = "the package wandb is not installed", "the config asks for a mirror of the run at W&B"
        fix = f"{install_command('wandb')}, or remove prime_train.wandb"
        raise UserError(what, "prime_train.wandb.project", why, fix)
    start_beside(__name__, run_dir, run_dir.wandb / "mirror.log")  # with the output of W&B


def main() -> int:
    """Mirrors the run named on the command line. Returns 0, or 1 if W&B cannot be used."""
    run_dir = enter_background(__doc__)
    if run_dir is None:
        return 0
    # W&B takes the address of the server that gets the key from wandb/settings in the working directory, which may be
    # a folder from elsewhere. Source: wandb 0.31, wandb_setup.py.
    os.chdir("/")
    # Waits for the mirror of an earlier supervisor to end.
    with hold_alone(run_dir.wandb / "mirror.lock", _LOCK_LIMIT_S) as is_locked:
        if not is_locked:
            _log(f"another mirror of this run did not end within {_LOCK_LIMIT_S:g} s")
            return 1
        return _mirror(run_dir)


def _mirror(run_dir: RunDir) -> int:
    if find_spec("wandb") is None:
        _log(f"the package wandb is not installed: {install_command('wandb')}")
        return 1
    environment = dict(os.environ)  # wandb.init changes os.environ
    run = _open_run(run_dir, load_position(run_dir, environment))
    if run is None:
        if environment.get("WANDB_MODE") == "offline":
            return 1
        # A new process is needed because W&B keeps the id of the run that it failed to open.
        command = own_module("prime_train.views.wandb_mirror", str(run_dir.path))
        os.execve(sys.executable, command, environment | {"WANDB_MODE": "offline"})
    mirror = _Mirror(run_dir, run)
    exit_code = mirror.follow()
    run.summary.update(wandb_rows.describe_end(exit_code))
    threading.Timer(_FINISH_LIMIT_S, _give_up).start()
    if exit_code == _EXIT_CODES["stopped"]:
        run.mark_preempting()
    run.finish(exit_code=exit_code)
    os._exit(0)  # sys.exit would wait for the timer


def _give_up() -> None:
    _log(f"W&B did not accept the last values within {_FINISH_LIMIT_S:g} s; to send them: wandb sync, in this folder")
    os._exit(1)


def _open_run(run_dir: RunDir, mirrored: Mirrored) -> wandb.Run | None:
    """The run at W&B, continued under the id it had; None if there is no login or no connection."""
    import wandb

    config = wandb_rows.config(_resolved(run_dir), own_secrets())
    settings = _settings(config)
    try:
        run = wandb.init(
            **settings,
            name=str(config.get("run", {}).get("name") or run_dir.path.name),
            id=mirrored.run_id,
            resume="allow",
            dir=str(run_dir.path),
            config=config,
            settings=wandb.Settings(console="off", disable_git=True, disable_code=True, save_code=False),
        )
    except wandb.Error as error:
        _log(f"W&B ({settings['mode']}): {error}; the values are kept for `wandb sync`")
        return None
    if run.resumed and not mirrored.read:  # another machine has logged the steps before
        mirrored = Mirrored(mirrored.run_id, max(mirrored.last_step, run.step - 1))
    save_position(run_dir, mirrored)
    return run


def _resolved(run_dir: RunDir) -> str:
    """The text of resolved.json; "{}" if it cannot be read."""
    try:
        return outside.read_text(run_dir.resolved, RECORD_BYTES, run_dir.path)
    except (OSError, ValueError):
        return "{}"


def _settings(config: dict[str, Any]) -> dict[str, Any]:
    """The values of [prime_train.wandb]; WANDB_* of the environment for those it lacks."""
    table = config.get("prime_train", {}).get("wandb") or {}
    return {
        "project": table.get("project") or os.environ.get("WANDB_PROJECT") or "prime-train",
        "entity": table.get("entity") or os.environ.get("WANDB_ENTITY"),
        "mode": os.environ.get("WANDB_MODE") or table.get("mode") or "online",
    }


class _Mirror:
    """Follows the events and the metrics, and logs new values."""

    def __init__(self, run_dir: RunDir, run: wandb.Run) -> None:
        self._run_dir = run_dir
        self._run = run
        self._mirrored = load_position(run_dir, os.environ)
        self._hidden = own_secrets()
        self._events = Follower(run_dir.events)
        self._metrics = LineTail(run_dir.metrics)
        # The events of an earlier machine are not here, so its totals come from W&B.
        is_continued = run.resumed and not self._mirrored.read
        self._counts = wandb_rows.read_counts(dict(run.summary)) if is_continued else wandb_rows.Counts()
        self._closed: RunClosed | None = None

    def follow(self) -> int:
        """Sends new values until the run is over. Returns the exit code for W&B."""
        unheld_s: float | None = None
        while True:
            held = find_holder(self._run_dir) is not None  # checked first, so that the last events are sent below
            self.send()
            if not held:
                unheld_s = unheld_s or time.monotonic()
                if self._closed is not None:
                    return _EXIT_CODES.get(self._closed.state, self._closed.exit_code or 1)
                if time.monotonic() - unheld_s > _WAIT_FOR_SUPERVISOR_S:
                    return 255  # the supervisor was killed and no other one took over
            else:
                unheld_s = None
            self._pause()

    def _pause(self) -> None:
        until_s = time.monotonic() + _EVERY_S
        while time.monotonic() < until_s and find_holder(self._run_dir) is not None:
            time.sleep(_POLL_S)
        if find_holder(self._run_dir) is None:
            time.sleep(_POLL_S)

    def send(self) -> None:
        """Logs new values and saves the position."""
        records = self._events.poll()
        metrics = wandb_rows.of_metrics(self._metrics.more()[1])
        last = self._mirrored.last_step
        step = max((row.step for row in metrics), default=last)
        others = [row for record in records if (row := self._row_of(record, max(step, last))) is not None]
        fresh = wandb_rows.merge(metrics, others, last)
        for row in fresh:
            self._run.log(row.values, step=row.step)
        if records or fresh:
            newest = max((row.step for row in fresh), default=last)
            self._mirrored = self._mirrored.with_records(records, max(last, newest))
            save_position(self._run_dir, self._mirrored)

    def _row_of(self, record: Record, step: int) -> wandb_rows.WandbRow | None:
        """Counts the event and sends its alert. Returns its row, or None if it has none or was sent before."""
        if isinstance(record.event, (RunOpened, RunClosed)):
            self._closed = record.event if isinstance(record.event, RunClosed) else None
        self._counts, row, note = wandb_rows.of_event(record.event, self._counts, step)
        if self._mirrored.has(record):
            return None
        if isinstance(record.event, AlarmRaised) and record.event.answer == "leave":
            self._run.mark_preempting()  # the machine may be gone before the end of the run can be sent
        if described := wandb_rows.describe(record.event):
            self._run.summary.update(redact_all(described, self._hidden))
        if note is not None:  # the events may be those of a version that masked less
            title, text = (redact(part, self._hidden) for part in (note.title, note.text))
            self._run.alert(title=title[:120], text=text, level=note.level)
        return row


def _log(text: str) -> None:
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {text}\n")


if __name__ == "__main__":
    sys.exit(main())
