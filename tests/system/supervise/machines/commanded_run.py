"""A run on two machines that a test gives commands: two folders and two addresses, of loopback or of networks."""

import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from prime_train.core.errors import ExitCode
from prime_train.events import LaunchAsked, Progress
from prime_train.views.run.status import fold_events
from tests.drills.networks import Networks
from tests.unit.cli.commands import prime_train, wait_until
from tests.unit.supervise.machines import hosts

Kind = TypeVar("Kind")
_NEVER = ("checkpoint.interval_steps=100000", "eval.interval_steps=100000")
LENGTH = (*hosts.set_processes(2), "run.max_steps=100000", *_NEVER)
_NEVER_FORKED = 99  # an attempt: the server of the forks would start trainers in its own network


@dataclass
class CommandedRun:
    """Each machine may be started again. `networks`: those of the machines; None for loopback."""

    root: Path
    stack: ExitStack
    settings: tuple[str, ...]
    networks: Networks | None = None
    port: int = field(default_factory=hosts.free_port)

    def start(self, rank: int) -> subprocess.Popen[str]:
        settings, networks = (*self.settings, "parallel.machines=2"), self.networks
        if networks is None:
            return self.stack.enter_context(hosts.machine(self.root, rank, self.port, *settings))
        machine = hosts.machine(
            self.root,
            rank,
            self.port,
            *settings,
            addresses=f"{networks.address(0)},{networks.address(1)}",
            within=networks.enter(rank),
            secret="the secret of two machines",
            fork_from_attempt=_NEVER_FORKED,
        )
        return self.stack.enter_context(machine)

    def give(self, *words: str) -> subprocess.CompletedProcess[str]:
        """A command on machine 0."""
        return prime_train(*words, cwd=self.root / "0")

    def do(self, *words: str) -> str:
        """The output of a command that succeeds."""
        done = self.give(*words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def events(self, kind: type[Kind]) -> list[Kind]:
        return [event for event in hosts.read_events(hosts.run_dir(self.root)) if isinstance(event, kind)]

    def await_step(self, attempt: int) -> int:
        """A step that the attempt has made."""
        wait_until(lambda: self._newest_step(attempt) > 0)
        return self._newest_step(attempt)

    def _newest_step(self, attempt: int) -> int:
        return max((one.step for one in self.events(Progress) if one.attempt == attempt), default=0)

    def resume_steps(self) -> list[int]:
        return [one.resume_step for one in self.events(LaunchAsked)]

    def newest_complete(self) -> int:
        return fold_events(hosts.run_dir(self.root)).newest_complete

    def is_paused(self) -> bool:
        state = fold_events(hosts.run_dir(self.root))
        return state.state == "paused" and not state.commands

    def end(self, *machines: subprocess.Popen[str], code: int = ExitCode.RESUMABLE) -> str:
        """The output of machines that end by themselves."""
        output = "\n".join(one.communicate(timeout=hosts.LIMIT_S)[0] for one in machines)
        assert [one.returncode for one in machines] == [code] * len(machines), output
        return output

    def stop(self, *machines: subprocess.Popen[str]) -> None:
        """End the run by a signal to the first machine."""
        machines[0].send_signal(signal.SIGTERM)
        self.end(*machines)


@contextmanager
def run_at(root: Path, *settings: str, networks: Networks | None = None) -> Iterator[CommandedRun]:
    hosts.write(root)
    with ExitStack() as stack:
        yield CommandedRun(root, stack, (*LENGTH, *settings), networks)
