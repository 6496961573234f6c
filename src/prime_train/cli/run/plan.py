"""`prime-train run --dry-run`: the plan of the next attempt, as a document and as text. Starts and writes nothing."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from prime_train.checkpoints.layout import SavedCheckpoint
from prime_train.cli.terminal.render import labelled
from prime_train.core.redaction import own_secrets, redact, redact_all
from prime_train.core.rundir import RunDir
from prime_train.programs.base import absolute
from prime_train.spec import ENDLESS_STEPS, RunSpec
from prime_train.spec.answers import global_batch, policy_of, tokens_per_step
from prime_train.supervise.launch import environment
from prime_train.supervise.launch.program import Host, Launch, Needs, Program
from prime_train.supervise.launch.run_directory import Resume
from prime_train.views.run.status import fold_events


def plan_document(
    run: RunSpec, run_dir: RunDir, resume: Resume, program: Program, *, may_start: bool
) -> dict[str, Any]:
    """The plan of the next attempt, as `--json` prints it. Secrets are masked. `may_start`: see Host."""
    run = absolute(run, run_dir)
    state = fold_events(run_dir)
    attempt = state.attempt_number + 1
    step = _resume_step(program.checkpoints(run, run_dir), resume, state.unreadable)
    host = replace(environment.read_host("PID:START_TICKS"), may_start=may_start)
    hidden = own_secrets((run.prime_train.alerts.webhook_env,))
    launches = program.plan(run, run_dir, attempt, step)
    document = {
        "version": 1,
        "run": run.run.name,
        "directory": str(run_dir.path),
        "directory_exists": run_dir.path.exists(),
        "attempt": attempt,
        "resume_step": step,
        "knows_step": program.knows_checkpoints(run, run_dir),
        "steps": _steps(run),
        "program": [{"label": label, "text": text} for label, text in program.plan_lines(run, step)],
        "processes": [
            _launch(launch, program.environment(launch.role, run, run_dir, attempt, host), run_dir, host)
            for launch in launches
        ],
    }
    return dict(redact_all(document, hidden))


def _launch(launch: Launch, needs: Needs, run_dir: RunDir, host: Host) -> dict[str, Any]:
    """One process tree of the attempt: its command, its environment, and the reason for each variable."""
    variables = (*environment.plan(needs, run_dir, host), *launch.variables)
    return {
        "role": launch.role,
        "argv": list(launch.argv),
        "working_dir": str(launch.cwd),
        "log": str(launch.log),
        "environment": [
            {"name": variable.name, "value": _mask(variable.name, variable.value), "reason": variable.reason}
            for variable in variables
        ],
        "notes": [
            {"how": note.how, "name": note.name, "value": _mask(note.name, note.value), "reason": note.reason}
            for note in environment.describe_environment(needs, host)
        ],
    }


def _mask(name: str, value: str) -> str:
    """The value, masked if it is a secret by the name of its variable: such a form spans both."""
    return redact(f"{name}={value}").removeprefix(f"{name}=")


def plan_text(document: dict[str, Any]) -> str:
    """The plan as lines for a reader."""
    step = document["resume_step"]
    origin = f"the checkpoint of step {step:,}" if step else "the beginning"
    origin = origin if step or document["knows_step"] else "a step that is not known"
    lines = [
        ("directory", f"{document['directory']} ({'exists' if document['directory_exists'] else 'is made'})"),
        ("attempt", f"{document['attempt']}, from {origin}"),
        ("steps", document["steps"]),
        *((line["label"], line["text"]) for line in document["program"]),
    ]
    for process in document["processes"]:
        lines += _process_lines(process)
    masked = [(label, redact(text)) for label, text in lines]
    return labelled(f"{document['run']}: the plan, nothing was started or written", masked, sys.stdout)


def _process_lines(process: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield "command", shlex.join(process["argv"])
    yield "working dir", process["working_dir"]
    yield "log", process["log"]
    for variable in process["environment"]:
        yield "environment", f"{variable['name']}={variable['value']}   # {variable['reason']}"
    for note in process["notes"]:
        value = "" if note["how"] == "left out" else f"{' ' if note['how'] == 'limit' else '='}{note['value']}"
        yield note["how"], f"{note['name']}{value}   # {note['reason']}"


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
