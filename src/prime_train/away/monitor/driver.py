"""Reads and starts what a poll asks for: GitHub, `prime-train status`, `sky jobs`, `prime-train run`. Decides nothing.

Other commands run as processes with a deadline. Secrets in their output are masked.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from prime_train.away.monitor.decide import Job
from prime_train.away.monitor.github import Repository
from prime_train.away.monitor.inputs import RunStatus, parse_queue, parse_status
from prime_train.away.sky.commands import QUEUE
from prime_train.core.errors import ExitCode, UserError
from prime_train.core.own_secrets import own_secrets
from prime_train.core.redaction import redact
from prime_train.facts.facts import NotKnown
from prime_train.facts.probe_process import Answer, run_probe

_COMMAND = (sys.executable, "-c", "from prime_train.cli.entry import main; main()")
_GITHUB_TOKENS = frozenset(("GITHUB_TOKEN", "GH_TOKEN"))  # no child needs them
_TAIL = 400  # characters of a failed command's output that are shown


@dataclass(frozen=True, slots=True)
class Watched:
    """The run that is watched, and the options of its start. `wandb` is ENTITY/PROJECT/ID.

    `bucket` holds its checkpoints. `run --spot` names a bucket by user and machine, and a runner is another machine.
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
class Driver:
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
        return self._explain(self._run([self.sky, "jobs", "cancel", "--yes", str(job)], self.deadlines.queue_s))

    def read_status(self) -> RunStatus:
        """The exit code of `status` follows from its verdict, so only its document counts."""
        watched = self.watched
        command = [*self.prime_train, "status", "--wandb", watched.wandb, "--config", watched.config, "--json"]
        answer = self._run(command, self.deadlines.status_s)
        if isinstance(answer, NotKnown) or not answer.out.strip():
            return RunStatus("unknown", f"prime-train status --wandb: {self._explain(answer)}", False, None)
        status = parse_status(answer.out)
        return status._replace(why=redact(status.why, own_secrets(environment=self.environment)))

    def read_queue(self) -> tuple[Job, ...] | None:
        """All jobs of all users: the run may have been started by a person, and is watched by a service account."""
        answer = self._run([self.sky, *QUEUE], self.deadlines.queue_s)
        if isinstance(answer, NotKnown) or answer.code != 0:
            return None
        return parse_queue(answer.out, self.watched.name)

    def launch(self) -> str:
        """Submit the run, and do not follow it: a managed job needs no client. Returns "" or why it did not start."""
        watched = self.watched
        options = ["--spot", "--cloud", watched.cloud, "--resume", "auto", "--run-name", watched.name]
        if watched.bucket is not None:
            options += ["--bucket", watched.bucket]
        if watched.max_usd_per_hour is not None:
            options += ["--max-usd-per-hour", f"{watched.max_usd_per_hour:g}"]
        command = [*self.prime_train, "run", watched.config, *options, "--yes", "--detach"]
        return self._explain(self._run(command, self.deadlines.launch_s))

    def _run(self, command: Sequence[str], deadline_s: float) -> Answer | NotKnown:
        kept = {name: value for name, value in self.environment.items() if name not in _GITHUB_TOKENS}
        return run_probe(command, deadline_s, environment=kept)

    def _explain(self, answer: Answer | NotKnown) -> str:
        """Why a command failed, with secrets masked; "" if it did not."""
        if isinstance(answer, NotKnown):
            return answer.reason
        if answer.code == 0:
            return ""
        tail = redact(answer.err, own_secrets(environment=self.environment)).strip()[-_TAIL:]
        return f"exit code {answer.code}: {tail}" if tail else f"exit code {answer.code}"


def find_sky(environment: Mapping[str, str]) -> str:
    """The path of SkyPilot's command. Raises UserError if it is missing, or could not see every job.

    A hosted runner is a fresh machine. Without a shared API server its queue is always empty, and every poll would
    start another job beside the live one.
    """
    sky = shutil.which("sky", path=environment.get("PATH"))
    if sky is None:
        raise UserError(
            what="the command `sky` is missing",
            where="SkyPilot",
            why="the queue of managed jobs shows whether a job of this run is live",
            fix="pip install skypilot==0.14.1",
            exit_code=ExitCode.OUT_OF_REACH,
        )
    if environment.get("RUNNER_ENVIRONMENT") == "github-hosted" and not environment.get("SKYPILOT_API_SERVER_ENDPOINT"):
        raise UserError(
            what="SKYPILOT_API_SERVER_ENDPOINT is not set",
            where="SkyPilot on a hosted runner",
            why="a fresh machine sees only its own jobs: each poll would start another one beside the live one",
            fix="deploy a SkyPilot API server, and set the secret SKYPILOT_API_SERVER_ENDPOINT to its address",
            exit_code=ExitCode.OUT_OF_REACH,
        )
    return sky
