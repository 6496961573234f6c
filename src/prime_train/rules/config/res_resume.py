"""Resuming from a checkpoint, and starts that delete the checkpoints to resume from. Pure."""

from __future__ import annotations

from prime_train.config.prime_rl.schema import features_of
from prime_train.core.findings import Problem, Severity
from prime_train.rules.rule import Problems, rule, suggest
from prime_train.spec import RunSpec
from prime_train.spec.answers import prime_rl_of


@rule("RES001", Severity.WARNING)
def resume_without_a_name(run: RunSpec) -> Problems:
    """A run that resumes must have its previous name.

    without a name each launch takes a random one and an empty directory: the run starts from scratch, with only a
    warning

    The name may come from the command line: --run.name.

    Source: prime-rl 2026-08 (run.name defaults to a random one), "No checkpoints found in ... Starting from scratch".

    Bad (prime-rl 2026-08):
        run = "-"
        [resume]
        step = 100
    Good (prime-rl 2026-08):
        [run]
        name = "example"
        [resume]
        step = 100
    """
    parts = prime_rl_of(run)
    if parts.resume is None or parts.resume.dir is not None:
        return
    if parts.launch.run_name is None and parts.launch.run_dir is None and parts.rollout is not None:
        yield Problem("launch.run_name", "the run has no name to resume", fix="`launch.run_name` = its previous name")


@rule("RES002", Severity.ERROR)
def resume_and_clean(run: RunSpec) -> Problems:
    """A run cannot both resume and clean its directory.

    cleaning deletes the checkpoints that the run resumes from

    Source: prime-rl, clean (clean_output_dir until 2026-05) removes the run directory and ckpt.output_dir.

    Bad (prime-rl 2026-08):
        clean = true
        [resume]
        step = 100
    Bad (prime-rl 2026-05):
        clean_output_dir = true
        [ckpt]
        resume_step = 100
    Good (prime-rl 2026-08):
        [resume]
        step = 100
    """
    parts = prime_rl_of(run)
    if parts.resume is None or not parts.launch.clean or features_of(run).cleans_by_default:
        return
    yield suggest("launch.clean", "the run resumes, and deletes its directory first", None, fix="take it out")


@rule("RES003", Severity.ERROR)
def dry_run_and_clean(run: RunSpec) -> Problems:
    """A dry run must not clean.

    prime-rl cleans before it checks for a dry run: the data is deleted, and nothing is trained

    Source: prime-rl 2026-08, entrypoints/rl.py (clean precedes the exit of the dry run).

    Bad (prime-rl 2026-08):
        dry_run = true
        clean = true
    Good (prime-rl 2026-08):
        dry_run = true
    """
    parts = prime_rl_of(run)
    if parts.launch.dry_run and parts.launch.clean and parts.resume is None:
        yield suggest(
            "launch.clean",
            "`launch.dry_run` is true, and the directory is deleted all the same",
            None,
            fix="take it out",
        )


@rule("RES004", Severity.WARNING)
def dry_run_and_resume(run: RunSpec) -> Problems:
    """A dry run that resumes deletes files beyond its step.

    prime-rl removes rollouts and broadcasts beyond the step before it checks for a dry run

    Source: prime-rl 2026-08, entrypoints/rl.py (clean_future_steps precedes the exit of the dry run).

    Bad (prime-rl 2026-08):
        dry_run = true
        [resume]
        step = 100
    Good (prime-rl 2026-08):
        [resume]
        step = 100
    """
    parts = prime_rl_of(run)
    if parts.launch.dry_run and parts.resume is not None and not parts.launch.clean:
        yield Problem(
            "launch.dry_run",
            "the run resumes: rollouts and broadcasts beyond the step are deleted",
            fix="try it with another `launch.output_dir`",
        )


@rule("RES005", Severity.WARNING)
def resume_without_saving(run: RunSpec) -> Problems:
    """A run that resumes should save, too.

    a checkpoint is loaded, and none is ever written again

    Source: prime-rl 2026-08 (resume without [ckpt] loads only).

    Bad (prime-rl 2026-08):
        ckpt = "-"
        [resume]
        step = 100
    Good (prime-rl 2026-08):
        [resume]
        step = 100
    """
    parts = prime_rl_of(run)
    if parts.resume is not None and parts.saving is None and parts.trainer is not None:
        yield Problem(
            "resume.step" if parts.resume.dir is None else "resume.dir",
            "the run resumes and has no [ckpt]",
            fix="for example `checkpoint.interval_steps` = 50",
        )


@rule("RES006", Severity.WARNING)
def resume_at_the_end(run: RunSpec) -> Problems:
    """The step to resume from should be before max_steps.

    max_steps counts from the first start: nothing is left to train

    Source: prime-rl, max_steps (counted from step 0, resumed or not).

    Bad (prime-rl 2026-08):
        [resume]
        step = 200
    Good (prime-rl 2026-08):
        [resume]
        step = 100
    """
    parts = prime_rl_of(run)
    if parts.resume is None or parts.resume.step is None or parts.resume.step < run.run.max_steps:
        return
    yield Problem(
        "resume.step",
        f"{parts.resume.step}, and `run.max_steps` is {run.run.max_steps}",
        fix=f"raise `run.max_steps` beyond {parts.resume.step}",
    )


@rule("RES007", Severity.WARNING)
def state_left_behind(run: RunSpec) -> Problems:
    """A run that resumes should load its optimizer and schedule.

    without the moments the first steps are far too large, and without the schedule the rate warms up again

    Source: Adam, arXiv 1412.6980, s. 3 (moments begin at zero).

    Bad (prime-rl 2026-08):
        [resume]
        step = 100
        [trainer.ckpt]
        skip_optimizer = true
    Good (prime-rl 2026-08):
        [resume]
        step = 100
        [trainer.ckpt]
        skip_optimizer = false
    """
    parts = prime_rl_of(run)
    if parts.resume is None or parts.saving is None:
        return
    for name, what in (("skip_optimizer", "optimizer state"), ("skip_scheduler", "place in the schedule")):
        if getattr(parts.saving, name):
            yield suggest(f"saving.{name}", f"the {what} of the checkpoint is not loaded", None, fix="take it out")


@rule("RES008", Severity.WARNING)
def clean_beyond_the_run(run: RunSpec) -> Problems:
    """clean deletes checkpoints outside the run directory too.

    prime-rl removes all of ckpt.output_dir, with the checkpoints of other runs

    Source: prime-rl 2026-08, entrypoints/rl.py (clean removes ckpt.output_dir, no matter where it is).

    Bad (prime-rl 2026-08):
        clean = true
        [ckpt]
        output_dir = "checkpoints"
    Good (prime-rl 2026-08):
        clean = true
    """
    parts = prime_rl_of(run)
    if not parts.launch.clean or parts.saving is None or parts.resume is not None:
        return
    if parts.saving.output_dir is not None and not parts.launch.dry_run:
        yield Problem(
            "saving.output_dir",
            f"{parts.saving.output_dir} is deleted at the start: `launch.clean` is true",
            fix="take `launch.clean` out, and give the run another name",
        )
