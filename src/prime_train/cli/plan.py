"""Shows the plan of `run --dry-run`: directory, checkpoint, commands, environment. Starts and writes nothing."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from prime_train.backends import bundled, environment, prime_rl
from prime_train.backends.backend import Backend
from prime_train.backends.launch import Launch
from prime_train.checkpoints.layout import Checkpoint
from prime_train.cli.render import labelled
from prime_train.document import to_toml
from prime_train.rundir import RunDir
from prime_train.spec import ENDLESS_STEPS, RunSpec
from prime_train.supervise import surroundings
from prime_train.supervise.lock import holder
from prime_train.supervise.prepare import absolute
from prime_train.views.status import fold_events

if TYPE_CHECKING:
    from prime_train.supervise.prepare import Resume

Line = tuple[str, str]


def text(run: RunSpec, run_dir: RunDir, resume: Resume, backend: Backend = bundled.BACKEND) -> str:
    """The plan of the next attempt. Secrets are masked."""
    run = absolute(run, run_dir)
    state = fold_events(run_dir)
    attempt = state.attempt_number + 1
    step = _resume_step(backend.checkpoints(run, run_dir), resume, state.unreadable)
    lines = [
        ("directory", f"{run_dir.path} ({'exists' if run_dir.path.exists() else 'is made'})"),
        ("attempt", f"{attempt}, from {f'the checkpoint of step {step:,}' if step else 'the beginning'}"),
        ("steps", _steps(run)),
        *_of_prime_rl(backend, run, step),
    ]
    held_by = holder(run_dir)
    if held_by is not None:
        lines.insert(0, ("held", f"by process {held_by.identity.pid} on {held_by.host}: `run` would be refused"))
    host = surroundings.host(run, "PID:START_TICKS")
    for launch in backend.plan(run, run_dir, attempt, step):
        lines += _launch(launch, run, run_dir, attempt, host)
    hidden = environment.secrets(os.environ, (run.prime_train.alerts.webhook_env,))
    redacted = [(label, environment.redact(words, hidden)) for label, words in lines]
    return labelled(f"{run.run.name}: the plan, nothing was started or written", redacted, sys.stdout)


def _launch(launch: Launch, run: RunSpec, run_dir: RunDir, attempt: int, host: environment.Host) -> Iterator[Line]:
    """One process tree of the attempt: its command, its environment, and the reason for each variable."""
    yield "command", shlex.join(launch.argv)
    yield "working dir", str(launch.cwd)
    yield "log", str(launch.log)
    for variable in (*environment.plan(launch.role, run, run_dir, attempt, host), *launch.variables):
        yield "environment", f"{variable.name}={variable.value}   # {variable.reason}"
    for line in environment.told(launch.role, run, run_dir, attempt, host):
        value = "" if line.how == "left out" else f"{' ' if line.how == 'limit' else '='}{line.value}"
        yield line.how, f"{line.name}{value}   # {line.reason}"


def _steps(run: RunSpec) -> str:
    if run.run.max_steps >= ENDLESS_STEPS:
        return "without an end: the config sets no max_steps"
    tokens = f", {run.tokens_per_step:,} tokens each" if run.is_native else ""
    return f"to step {run.run.max_steps:,}{tokens}"


def _of_prime_rl(backend: Backend, run: RunSpec, step: int) -> Iterator[Line]:
    """The folder that prime-rl writes to, and the keys that are set in its copy of the config."""
    if not isinstance(backend, prime_rl.PrimeRl):
        return
    yield "prime-rl writes", str(prime_rl.folder(run))
    for setting in backend.settings(run, step):
        change = f"{setting.key} = {to_toml(setting.value)}" if setting.value is not None else f"without {setting.key}"
        yield "set in a copy", f"{change}   # {setting.reason}"
    yield "when it stops", f"SIGTERM to the launcher, which saves nothing; {run.prime_train.stop_grace_s:g} s to end"


def _resume_step(checkpoints: Sequence[Checkpoint], resume: Resume, unreadable: tuple[int, ...]) -> int:
    """The step the next attempt starts from; 0 = the beginning."""
    if isinstance(resume, int):
        return resume
    found = (c.step for c in checkpoints if c.complete and c.step not in unreadable)
    return 0 if resume == "never" else next(found, 0)
