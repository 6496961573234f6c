"""Traces that a run would never write. Pure."""

from __future__ import annotations

from prime_train.core.findings import Problem, Severity
from prime_train.rules.rule import Problems, rule, suggest
from prime_train.spec import RunSpec


@rule("PRF001", Severity.WARNING)
def traced_steps_beyond_the_end(run: RunSpec) -> Problems:
    """profile.steps must be steps of the run.

    a step that the run does not take is never traced

    Source: trainer/loops/step_spans.py (a trace belongs to one step).

    Bad:
        [profile]
        steps = [20, 100000000]
    Good:
        [profile]
        steps = [20, 21]
    """
    beyond = [step for step in run.profile.steps if step > run.run.max_steps]
    if not beyond:
        return
    left = [step for step in run.profile.steps if step <= run.run.max_steps]
    yield suggest("profile.steps", f"step {beyond[0]} comes after `run.max_steps` {run.run.max_steps}", left)


@rule("PRF002", Severity.WARNING)
def memory_of_no_step(run: RunSpec) -> Problems:
    """profile.memory_snapshot needs profile.steps.

    the memory of the traced steps is recorded, and no step is traced

    Source: trainer/loops/step_spans.py (memory is recorded during the steps of profile.steps).

    Bad:
        [profile]
        memory_snapshot = true
    Good:
        [profile]
        memory_snapshot = true
        steps = [20]
    """
    if run.profile.memory_snapshot and not run.profile.steps:
        yield Problem("profile.memory_snapshot", "no step is traced", fix="profile.steps = [20]")
