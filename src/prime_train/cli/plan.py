"""Tells what `run` would do, without doing it: directory, checkpoint, command, environment. Writes nothing."""

from __future__ import annotations

import os
import shlex
import sys
from typing import TYPE_CHECKING

from prime_train.backends import bundled, environment
from prime_train.checkpoints import layout
from prime_train.cli.render import labelled
from prime_train.rundir import RunDir
from prime_train.spec import RunSpec
from prime_train.supervise.lock import holder
from prime_train.supervise.prepare import absolute
from prime_train.supervise.process import usable_cores
from prime_train.views.status import fold_events

if TYPE_CHECKING:
    from prime_train.supervise.prepare import Resume


def text(run: RunSpec, run_dir: RunDir, resume: Resume) -> str:
    """The plan of the next attempt, for people."""
    run = absolute(run, run_dir)
    state = fold_events(run_dir)
    attempt = state.attempt_number + 1
    step = _resume_step(run_dir, resume, state.unreadable)
    host = environment.Host(os.environ, usable_cores(), "PID:START_TICKS")
    launch = bundled.plan(run, run_dir, attempt, step)
    lines = [
        ("directory", f"{run_dir.path} ({'exists' if run_dir.path.exists() else 'is made'})"),
        ("attempt", f"{attempt}, from {f'the checkpoint of step {step:,}' if step else 'the beginning'}"),
        ("steps", f"to step {run.run.max_steps:,}, {run.tokens_per_step:,} tokens each"),
        ("command", shlex.join(launch.argv)),
        ("working dir", str(launch.cwd)),
        ("log", str(launch.log)),
    ]
    held_by = holder(run_dir)
    if held_by is not None:
        lines.insert(0, ("held", f"by process {held_by.identity.pid} on {held_by.host}: it would be refused"))
    hidden = environment.secrets(os.environ)
    for variable in (*environment.plan(run, run_dir, attempt, host), *launch.variables):
        value = environment.redact(variable.value, hidden)
        lines.append(("environment", f"{variable.name}={value}   # {variable.reason}"))
    return labelled(f"{run.run.name}: the plan, nothing was started or written", lines, sys.stdout)


def _resume_step(run_dir: RunDir, resume: Resume, unreadable: tuple[int, ...]) -> int:
    """The step the next attempt starts from; 0 = the beginning."""
    if isinstance(resume, int):
        return resume
    found = (c.step for c in layout.scan(run_dir.checkpoints) if c.complete and c.step not in unreadable)
    return 0 if resume == "never" else next(found, 0)
