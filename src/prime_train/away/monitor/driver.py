"""Reads and starts what a poll asks for: GitHub, `prime-train status`, `sky jobs`, `prime-train run`. Decides nothing.

Other commands run as processes with a deadline. Their output is bounded, and secrets in it are masked.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from prime_train.away.monitor.decide import MonitoredJob
from prime_train.away.monitor.github import Repository
from prime_train.away.monitor.poll import MOST_BYTES, RunStatus, parse_queue, parse_status
from prime_train.core.errors import ExitCode, UserError
from prime_train.core.python_child import own_command
from prime_train.core.redaction import own_secrets, redact

_COMMAND = tuple(own_command())
_GITHUB_TOKENS = frozenset(("GITHUB_TOKEN", "GH_TOKEN"))  # no child needs them
_TAIL = 400  # characters of a failed command's output that are shown


@dataclass(frozen=True, slots=True)
class Watched:
    """The run that is watched, and the options of its start.

    `wandb` is ENTITY/PROJECT/ID. `bucket` holds its checkpoints. `run --spot` names a bucket by user and machine, and a
    runner is another machine.
    """

    config: str
    name: str
    wandb: str
    cloud: str = "auto"
    bucket: str | None = None
    max_usd_per_hour: float | None = None


class Deadlines(NamedTuple):
    """Seconds that a command may take. The job of the workflow may take 60 minutes."""

    status_s: float = 600.0
    queue_s: float = 300.0
    launch_s: float = 1800.0


_DEADLINES = Deadlines()


@dataclass(frozen=True, slots=True)
class PollDriver:
    """The services of a poll. `sky` is the path of SkyPilot's command, `prime_train` this program's."""

    repository: Repository | None
    watched: Watched
    sky: str
    environment: Mapping[str, str]
    prime_train: tuple[str, ...] = _COMMAND
    deadlines: Deadlines = _DEADLINES

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """The answer of GitHub; no issue for a dry run outside of it. Raises UserError if it is out of reach."""
        return [] if self.repository is None else self.repository.ask(method, path, body)

    def cancel(self, job: int) -> str:
        """Cancel a managed job. Returns "" or the reason why it was not cancelled."""
        done = self._run([self.sky, "jobs", "cancel", "--yes", str(job)], self.deadlines.queue_s)
        return "" if done.code == 0 else self._describe(done)

    def read_status(self) -> RunStatus:
        """The exit code of `status` follows from its verdict, so only its document counts."""
        watched = self.watched
        command = [*self.prime_train, "status", "--wandb", watched.wandb, "--config", watched.config, "--json"]
        done = self._run(command, self.deadlines.status_s)
        status = parse_status(done.output)
        if status.verdict == "unknown" and not done.output.strip():
            return status._replace(why=f"prime-train status --wandb: {self._describe(done)}")
        return status._replace(why=redact(status.why, own_secrets(environment=self.environment)))

    def read_queue(self) -> tuple[MonitoredJob, ...] | None:
        """All jobs of all users: the run may have been started by a person, and is watched by a service account."""
        command = [self.sky, "jobs", "queue", "--all", "--all-users", "--output", "json"]
        done = self._run(command, self.deadlines.queue_s)
        return parse_queue(done.output, self.watched.name) if done.code == 0 else None

    def launch(self) -> str:
        """Submit the run, and do not follow it: a managed job needs no client. Returns "" or why it did not start."""
        watched = self.watched
        options = ["--spot", "--cloud", watched.cloud, "--resume", "auto", "--run-name", watched.name]
        if watched.bucket is not None:
            options += ["--bucket", watched.bucket]
        if watched.max_usd_per_hour is not None:
            options += ["--max-usd-per-hour", f"{watched.max_usd_per_hour:g}"]
        command = [*self.prime_train, "run", watched.config, *options, "--yes", "--detach"]
        done = self._run(command, self.deadlines.launch_s)
        return "" if done.code == 0 else self._describe(done)

    def _run(self, command: Sequence[str], deadline_s: float) -> Done:
        kept = {name: value for name, value in self.environment.items() if name not in _GITHUB_TOKENS}
        return run_command(command, deadline_s, kept)

    def _describe(self, done: Done) -> str:
        ended = "it did not end in time" if done.code is None else f"exit code {done.code}"
        tail = redact(done.errors, own_secrets(environment=self.environment)).strip()[-_TAIL:]
        return f"{ended}: {tail}" if tail else ended


class Done(NamedTuple):
    """An ended command. `code` is None if it was killed at its deadline; output beyond MOST_BYTES is left out."""

    code: int | None
    output: str
    errors: str


def run_command(command: Sequence[str], deadline_s: float, environment: Mapping[str, str]) -> Done:
    """Run a command to its end, or kill it and its children at the deadline."""
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        try:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                env=dict(environment),
                start_new_session=True,
            )
        except OSError as error:
            return Done(127, "", f"{command[0]} cannot be started: {error.strerror}")
        try:
            code: int | None = child.wait(deadline_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        texts = []
        for file in (output, errors):
            file.seek(0)
            texts.append(file.read(MOST_BYTES).decode(errors="replace"))
        return Done(code, *texts)


def find_sky(environment: Mapping[str, str]) -> str:
    """The path of SkyPilot's command. Raises UserError if it is missing, or could not see every job.

    A hosted runner is a fresh machine. Without a shared API server its queue is always empty, and every poll would
    start another job beside the live one.
    """
    sky = shutil.which("sky", path=environment.get("PATH"))
    if sky is None:
        what = "the command `sky` is missing"
        why = "the queue of managed jobs shows whether a job of this run is live"
        raise UserError(what, "SkyPilot", why, "pip install skypilot==0.14.1", ExitCode.OUT_OF_REACH)
    if environment.get("RUNNER_ENVIRONMENT") == "github-hosted" and not environment.get("SKYPILOT_API_SERVER_ENDPOINT"):
        what = "SKYPILOT_API_SERVER_ENDPOINT is not set"
        why = "a fresh machine sees only its own jobs: each poll would start another one beside the live one"
        fix = "deploy a SkyPilot API server, and set the secret SKYPILOT_API_SERVER_ENDPOINT to its address"
        raise UserError(what, "SkyPilot on a hosted runner", why, fix, ExitCode.OUT_OF_REACH)
    return sky
