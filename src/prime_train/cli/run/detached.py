"""`prime-train run --detach`: starts a supervisor in a session of its own, and returns when it has launched the run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, NoReturn

import typer

from prime_train.cli.run.preflight import Command, check_config
from prime_train.cli.terminal.standard_streams import write_note
from prime_train.config.detect import STDIN
from prime_train.core.errors import ExitCode, UserError
from prime_train.core.python_child import own_command
from prime_train.core.rundir import RunDir, make_folder, open_private
from prime_train.events import Follower, LaunchAsked
from prime_train.supervise.processes.lock import refuse_held, unwritable_error

_POLL_S = 0.1
_OPTION = "--detach"
# Not sys.argv[0], which is "-c" in a Python that has called main() itself.
_PROGRAM = own_command()


def run_detached(command: Command, *, as_json: bool) -> ExitCode:
    """Start this command again without --detach, and wait until it launches the run or ends. Raises UserError.

    Its output goes to supervisor.log in the run directory; what it prints before the launch is shown here, too.
    """
    checked = check_config(command, validate=False, unchecked="")
    if checked.spec.parallel.machines > 1:
        raise UserError(
            what="the run is on several machines, and --detach waits for a launch on this one",
            where="--detach",
            why="only machine 0 has the events of a launch",
            fix="without --detach: nohup, srun or SkyPilot start the command on each machine",
        )
    run_dir = checked.run_dir
    refuse_held(run_dir)
    log = run_dir.supervisor_log
    follower = Follower.near_end(run_dir.events, 0)
    try:
        make_folder(run_dir.path)
        begin = log.stat().st_size if log.exists() else 0
        with open(log, "ab", opener=open_private) as output:
            child = _start(command, output)
    except OSError as error:
        raise unwritable_error(error, run_dir) from None
    with log.open("rb") as shown:
        shown.seek(begin)
        try:
            while child.poll() is None and not _has_launched(follower):
                _relay(shown)
                time.sleep(_POLL_S)
        except KeyboardInterrupt:
            child.send_signal(signal.SIGINT)
            raise
        _relay(shown)
    if child.returncode is not None:
        _ended(child.returncode)
    _report(run_dir, child.pid, as_json=as_json)
    return ExitCode.OK


def _start(command: Command, output: IO[bytes]) -> subprocess.Popen[bytes]:
    own = sys.argv[1 : sys.argv.index("--")] if command.words else sys.argv[1:]
    arguments = [argument for argument in own if argument != _OPTION]
    arguments += ["--", *command.words] if command.words else []
    stdin = None if command.config == STDIN else subprocess.DEVNULL
    return subprocess.Popen([*_PROGRAM, *arguments], stdin=stdin, stdout=output, stderr=output, start_new_session=True)


def _has_launched(follower: Follower) -> bool:
    return any(isinstance(record.event, LaunchAsked) for record in follower.poll())


def _relay(shown: IO[bytes]) -> None:
    """Print what the supervisor has printed since the last call."""
    text = shown.read().decode("utf-8", "replace")
    if text:
        sys.stderr.write(text)
        sys.stderr.flush()


def _ended(code: int) -> NoReturn:
    """End as a supervisor that has ended before a launch: with its code, or 128 and the number of its signal."""
    raise typer.Exit(128 - code if code < 0 else code)


def _report(run_dir: RunDir, pid: int, *, as_json: bool) -> None:
    name = run_dir.path.name if run_dir.path.parent == Path.cwd() / "runs" else os.fspath(run_dir.path)
    if as_json:
        document = {"version": 1, "run": run_dir.path.name, "directory": str(run_dir.path), "pid": pid}
        typer.echo(json.dumps(document, indent=1))
        return
    write_note(f"{run_dir.path.name} runs in the background as process {pid}; its output: {run_dir.supervisor_log}")
    for action, words in (("status", "--watch"), ("logs", "--follow"), ("stop", "")):
        write_note(f"  prime-train {action} {name} {words}".rstrip())
