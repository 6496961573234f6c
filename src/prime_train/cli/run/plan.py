"""`prime-train run --dry-run`: the plan of the next attempt as text. Starts and writes nothing."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence

from prime_train.checkpoints.layout import SavedCheckpoint
from prime_train.cli.terminal.render import labelled
from prime_train.core.redaction import own_secrets, redact
from prime_train.core.rundir import RunDir
from prime_train.programs.base import absolute
from prime_train.spec import ENDLESS_STEPS, RunSpec
from prime_train.spec.answers import global_batch, policy_of, tokens_per_step
from prime_train.supervise.launch import environment
from prime_train.supervise.launch.program import Host, Launch, Needs, Program
from prime_train.supervise.launch.run_directory import Resume
from prime_train.views.run.status import fold_events

Line = tuple[str, str]


def plan_text(run: RunSpec, run_dir: RunDir, resume: Resume, program: Program) -> str:
    """The plan of the next attempt. Secrets are masked."""
    run = absolute(run, run_dir)
    state = fold_events(run_dir)
    attempt = state.attempt_number + 1
    step = _resume_step(program.checkpoints(run, run_dir), resume, state.unreadable)
    lines = [
        ("directory", f"{run_dir.path} ({'exists' if run_dir.path.exists() else 'is made'})"),
        ("attempt", f"{attempt}, from {f'the checkpoint of step {step:,}' if step else 'the beginning'}"),
        ("steps", _steps(run)),
        *program.plan_lines(run, step),
    ]
    host = environment.read_host("PID:START_TICKS")
    for launch in program.plan(run, run_dir, attempt, step):
        lines += _launch(launch, program.environment(launch.role, run, run_dir, attempt, host), run_dir, host)
    hidden = own_secrets((run.prime_train.alerts.webhook_env,))
    redacted = [(label, redact(words, hidden)) for label, words in lines]
    return labelled(f"{run.run.name}: the plan, nothing was started or written", redacted, sys.stdout)


def _launch(launch: Launch, needs: Needs, run_dir: RunDir, host: Host) -> Iterator[Line]:
    """One process tree of the attempt: its command, its environment, and the reason for each variable."""
    yield "command", shlex.join(launch.argv)
    yield "working dir", str(launch.cwd)
    yield "log", str(launch.log)
    for variable in (*environment.plan(needs, run_dir, host), *launch.variables):
        yield "environment", f"{variable.name}={variable.value}   # {variable.reason}"
    for line in environment.describe_environment(needs, host):
        value = "" if line.how == "left out" else f"{' ' if line.how == 'limit' else '='}{line.value}"
        yield line.how, f"{line.name}{value}   # {line.reason}"


def _steps(run: RunSpec) -> str:
    if run.run.max_steps >= ENDLESS_STEPS:
        return "without an end: the config sets no max_steps"
    each = f", {tokens_per_step(run):,} tokens each" if run.data.sources else ""
    policy = policy_of(run)
    if policy is not None:
        each = f", {global_batch(run):,} rollouts each, in groups of {policy.group_size}"
    return f"to step {run.run.max_steps:,}{each}"


def _resume_step(checkpoints: Sequence[SavedCheckpoint], resume: Resume, unreadable: tuple[int, ...]) -> int:
    """The step the next attempt starts from; 0 = the beginning."""
    if isinstance(resume, int):
        return resume
    found = (c.step for c in checkpoints if c.complete and c.step not in unreadable)
    return 0 if resume == "never" else next(found, 0)
