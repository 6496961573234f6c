"""Starts `prime-train run -- COMMAND` in a folder, writes its config, and waits for what it does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from prime_train.core.rundir import RunDir
from prime_train.toml.document import to_toml
from tests.unit.cli.commands import PROGRAM, clean_environment, prime_train, wait_until

TORCHRUN = str(Path(sys.executable).with_name("torchrun"))


class Supervised:
    """A supervisor of a command, as a process of its own."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.folder = folder
        given = [str(PROGRAM), "run", "--no-validate", *arguments]
        self.process = subprocess.Popen(
            given, cwd=folder, env=clean_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    @property
    def run_dir(self) -> RunDir:
        """The only run of the folder."""
        wait_until(lambda: self.process.poll() is not None or any((self.folder / "runs").glob("*/events")))
        (path,) = (self.folder / "runs").iterdir()
        return RunDir(path.resolve())

    def await_text(self, text: str, attempt: int = 1) -> None:
        """Wait until the log of an attempt has the text."""
        log = self.run_dir.log(attempt, "trainer")
        wait_until(
            lambda: self.process.poll() is not None or (log.exists() and text in log.read_text(errors="replace"))
        )
        assert self.process.poll() is None, self.process.communicate()

    def await_end(self) -> tuple[int, str]:
        """(exit code, standard error)."""
        _, err = self.process.communicate(timeout=240)
        return self.process.returncode, err

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate()


def read_json(folder: Path, *arguments: str) -> Any:
    at = arguments.index("--") if "--" in arguments else len(arguments)
    done = prime_train(*arguments[:at], "--json", *arguments[at:], cwd=folder)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def kill_rank(folder: Path, rank: int) -> None:
    os.kill(int((folder / f"rank{rank}.pid").read_text()), signal.SIGKILL)


def list_marked(run_dir: RunDir) -> list[int]:
    """The processes that have the mark of the run in their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                environment = (entry / "environ").read_bytes()
            except OSError:
                continue
            if f"PRIME_TRAIN_RUN={run_dir.path}".encode() in environment.split(b"\0"):
                found.append(int(entry.name))
    return found


def write_config(name: str, argv: Sequence[str], **tables: Mapping[str, Any]) -> str:
    """The run.toml of a command whose lines are `step 1 loss 0.5`.

    `tables`: more tables by their names, with _ for the point before the last part: command_resume, prime_train_backup.
    """
    run, command = tables.pop("run", {}), tables.pop("command", {})
    first: dict[str, Mapping[str, Any]] = {
        "run": {"name": name, "kind": "command", **run},
        "command": {"argv": list(argv), **command},
        "command_progress": {"log": r"^step (?P<step>\d+) loss (?P<loss>\S+)"},
    }
    lines = []
    for table, values in (first | tables).items():
        lines.append(f"[{'.'.join(table.rsplit('_', 1)) if '_' in table else table}]")
        lines += [f"{key} = {to_toml(value)}" for key, value in values.items()]
    return "\n".join(lines) + "\n"
