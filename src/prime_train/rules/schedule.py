"""Learning-rate schedules that do not fit into the run. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from prime_train.findings import Problem, Severity
from prime_train.rules.base import rule
from prime_train.spec import RunSpec


@rule("SCH001", Severity.WARNING)
def schedule_longer_than_run(run: RunSpec) -> Iterator[Problem]:
    """Warm-up and decay must fit into max_steps.

    the rate would not reach its peak, or the run would end before the decay does

    Source: trainer/schedule.py.

    Bad:
        [schedule]
        warmup_steps = 1000
    Bad:
        [schedule]
        kind = "wsd"
        warmup_steps = 500
        decay_steps = 600
    Bad:
        [schedule]
        kind = "wsd"
        warmup_steps = 900
    Good:
        [schedule]
        kind = "wsd"
        warmup_steps = 100
        decay_steps = 200
    """
    schedule, max_steps = run.schedule, run.run.max_steps
    if schedule.warmup_steps >= max_steps:
        yield Problem(
            "schedule.warmup_steps",
            f"a warm-up of {schedule.warmup_steps} steps fills all of `run.max_steps` {max_steps}",
            patch={"schedule.warmup_steps": max_steps // 10},
        )
    elif schedule.kind == "wsd":
        decay_steps = schedule.decay_steps if schedule.decay_steps is not None else round(0.2 * max_steps)
        if schedule.warmup_steps + decay_steps > max_steps:
            yield Problem(
                "schedule.decay_steps",
                f"`schedule.warmup_steps` {schedule.warmup_steps} + {decay_steps} steps of decay are more than "
                f"`run.max_steps` {max_steps}",
                patch={"schedule.decay_steps": max_steps - schedule.warmup_steps},
            )


@rule("SCH002", Severity.WARNING)
def decay_without_wsd(run: RunSpec) -> Iterator[Problem]:
    """decay_steps counts only in a warmup-stable-decay schedule.

    a cosine decays from the end of the warm-up to the end of the run; a constant rate never does

    Source: trainer/schedule.py; warm-up, stable, decay: arXiv 2404.06395, s. 4.

    Bad:
        [schedule]
        kind = "cosine"
        decay_steps = 200
    Good:
        [schedule]
        kind = "wsd"
        decay_steps = 200
    """
    if run.schedule.decay_steps is not None and run.schedule.kind != "wsd":
        yield Problem(
            "schedule.decay_steps",
            f'{run.schedule.decay_steps} is not used: `schedule.kind` is "{run.schedule.kind}"',
            fix='take it out, or schedule.kind = "wsd"',
            patch={"schedule.decay_steps": None},
            safe=True,
        )
