"""Learning-rate schedules that do not fit into the run. Pure."""

from __future__ import annotations

from prime_train.core.findings import Problem, Severity
from prime_train.rules.rule import Problems, must_agree, rule, suggest, unused
from prime_train.spec import ENDLESS_STEPS, RunSpec
from prime_train.spec.answers import global_batch, policy_of, prime_rl_of, sequences_in_step

_TRACE_STEPS = 10

_YEARS_OF_STEPS = 50_000_000


@rule("SCH001", Severity.WARNING)
def schedule_longer_than_run(run: RunSpec) -> Problems:
    """Warm-up, decay and the growth of the batch must fit into max_steps.

    the rate would not reach its peak, or the run would end before the decay does

    Source: spec/run.py; spec, RunSpec.sequences_of.

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
    Bad:
        [batch]
        start_batch = 8
        global_batch = 64
        ramp_steps = 5000
    Good:
        [schedule]
        kind = "wsd"
        warmup_steps = 100
        decay_steps = 200
    """
    schedule, max_steps = run.schedule, run.run.max_steps
    if schedule.warmup_steps >= max_steps:
        yield suggest(
            "schedule.warmup_steps",
            f"a warm-up of {schedule.warmup_steps} steps fills all of `run.max_steps` {max_steps}",
            max_steps // 10,
        )
    elif schedule.kind == "wsd":
        decay_steps = schedule.decay_steps if schedule.decay_steps is not None else round(0.2 * max_steps)
        if schedule.warmup_steps + decay_steps > max_steps:
            yield suggest(
                "schedule.decay_steps",
                f"`schedule.warmup_steps` {schedule.warmup_steps} + {decay_steps} steps of decay are more than "
                f"`run.max_steps` {max_steps}",
                max_steps - schedule.warmup_steps,
            )
    reached = sequences_in_step(run, max_steps)
    if reached < global_batch(run) and policy_of(run) is None:
        yield suggest(
            "batch.ramp_steps",
            f"{run.batch.ramp_steps} steps: the batch has {reached} of {global_batch(run)} sequences at "
            f"`run.max_steps` {max_steps}",
            max(1, max_steps // 10),
            why="the run would end before its batch has its full size",
        )


@rule("SCH002", Severity.WARNING)
def decay_without_wsd(run: RunSpec) -> Problems:
    """decay_steps has an effect only in a warmup-stable-decay schedule.

    a cosine decays from the end of the warm-up to the end of the run; a constant rate never does

    Source: spec/run.py; warm-up, stable, decay: arXiv 2404.06395, s. 4.

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
        why, fix = f'`schedule.kind` is "{run.schedule.kind}"', 'take it out, or schedule.kind = "wsd"'
        yield unused("schedule.decay_steps", run.schedule.decay_steps, why, fix)


@rule("SCH003", Severity.WARNING)
def no_last_step(run: RunSpec) -> Problems:
    """A run should have a last step.

    without one it runs and costs money until it is stopped by hand; the final checkpoint is never written

    Source: prime-rl, max_steps (unset: no end).

    Bad (prime-rl 2026-08):
        max_steps = "-"
    Good (prime-rl 2026-08):
        max_steps = 200
    """
    if prime_rl_of(run).trainer is not None and run.run.max_steps >= ENDLESS_STEPS:
        yield Problem("run.max_steps", "no last step is set", fix="for example `run.max_steps` = 1000")


@rule("SCH006", Severity.WARNING)
def steps_given_in_tokens(run: RunSpec) -> Problems:
    """Steps are optimizer steps, not tokens.

    at one second per step such a run takes years; a warm-up or an interval of that length never ends

    Source: fifty million seconds are a year and a half.

    Bad:
        [run]
        max_steps = 10_000_000_000
        [checkpoint]
        interval_steps = 500
    Bad (prime-rl 2026-08 sft):
        max_steps = 2_000_000_000
    Good (prime-rl 2026-08 sft):
        max_steps = 20_000
    """
    steps = {
        "run.max_steps": None if run.run.max_steps == ENDLESS_STEPS else run.run.max_steps,
        "schedule.warmup_steps": run.schedule.warmup_steps,
        "checkpoint.interval_steps": run.checkpoint.interval_steps,
    }
    for at, count in steps.items():
        if count is not None and count >= _YEARS_OF_STEPS:
            yield Problem(at, f"{count} steps: is it a number of tokens?", fix="divide it by the tokens of a batch")


@rule("SCH004", Severity.ERROR)
def step_counts_disagree(run: RunSpec) -> Problems:
    """Trainer and orchestrator must take the same number of steps.

    one waits for the other for ever: prime-rl refuses two numbers

    Source: prime-rl's validator on max_steps.

    Bad (prime-rl 2026-08):
        [trainer]
        max_steps = 200
        [orchestrator]
        max_steps = 100
    Good (prime-rl 2026-08):
        max_steps = 200
    """
    yield from must_agree(run, "rollout.max_steps", "trainer.max_steps")


@rule("SCH005", Severity.ERROR)
def trace_of_a_long_run(run: RunSpec) -> Problems:
    """A profiler trace is for fewer than 10 steps.

    a trace grows by gigabytes a step: prime-rl refuses more

    Source: prime-rl's validator on trace_path.

    Bad (prime-rl 2026-08):
        [trainer]
        trace_path = "trace"
    Good (prime-rl 2026-08):
        max_steps = 5
        [ckpt]
        interval = 2
        [trainer]
        trace_path = "trace"
    """
    parts = prime_rl_of(run)
    if parts.trainer is not None and parts.trainer.trace_path and run.run.max_steps >= _TRACE_STEPS:
        yield suggest(
            "trainer.trace_path",
            f"a trace, and `run.max_steps` is {run.run.max_steps}"
            if run.run.max_steps < ENDLESS_STEPS
            else "a trace, and no last step",
            None,
            fix="take it out, or `run.max_steps` = 5",
        )
