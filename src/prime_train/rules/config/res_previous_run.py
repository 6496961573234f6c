"""The checkpoints of a previous run that this run resumes from. Pure: the facts are given."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prime_train.config.prime_rl.schema import features_of
from prime_train.core.findings import Problem, Severity
from prime_train.rules.rule import Problems, facts_rule, known
from prime_train.spec import RunSpec
from prime_train.spec.answers import prime_rl_of, traits_of

if TYPE_CHECKING:
    from prime_train.facts.facts import Facts, RunFolder

_SHOWN = 6  # steps that a message lists


@facts_rule("RES009", Severity.ERROR, needs=("run_folder",))
def nothing_to_resume(run: RunSpec, facts: Facts) -> Problems:
    """The checkpoint to resume from must exist and be complete.

    prime-rl takes the newest folder by its name, complete or not, and fails when it loads an incomplete one

    A folder is complete if it has the .metadata that torch writes last and, in 2026-08, the orchestrator's progress.pt.
    If the latest checkpoint is requested and there is none, it is a warning, because prime-rl starts from scratch.

    Source: prime-rl pull request 1825 (a half-written checkpoint is chosen on resume); prime-rl 2026-08,
    "No checkpoints found in ... Starting from scratch", "Orchestrator checkpoint not found at".

    Bad (prime-rl 2026-08):
        [resume]
        step = 100
        [facts.run_folder]
        checkpoints = [{step = 50, path = "outputs/example/checkpoints/step_50"}]
    Bad (prime-rl 2026-08):
        [resume]
        [facts.run_folder]
        checkpoints = [{step = 50, path = "checkpoints/step_50", problem = "no .metadata: the save did not finish"}]
    Bad (prime-rl 2026-08):
        [resume]
        [facts.run_folder]
        checkpoints = []
    Bad (prime-rl 2026-08):
        [resume]
        dir = "outputs/first/checkpoints/step_50"
        [facts.run_folder]
        target = {step = 50, path = "outputs/first/checkpoints/step_50", problem = "there is no such folder"}
    Good (prime-rl 2026-08):
        [resume]
        step = 100
        [facts.run_folder]
        checkpoints = [{step = 100, path = "outputs/example/checkpoints/step_100"}]
    """
    resume, folder = prime_rl_of(run).resume, known(facts.run_folder)
    if resume is None:
        return
    if resume.dir is not None:
        if folder.target is not None and folder.target.problem:
            yield Problem(
                "resume.dir", f"{folder.target.path}: {folder.target.problem}", fix="choose a complete step_N folder"
            )
    elif not _is_unnamed(run):
        yield from _check_step(resume.step, folder)


def _check_step(step: int | None, folder: RunFolder) -> Problems:
    wanted = folder.checkpoints[:1] if step in (None, -1) else [c for c in folder.checkpoints if c.step == step]
    complete = [item.step for item in folder.checkpoints if not item.problem]
    patch = {"resume.step": complete[0]} if complete else {}
    if wanted and not wanted[0].problem:
        return
    if wanted:
        what = f"step {wanted[0].step} in {folder.path}: {wanted[0].problem}"
        yield Problem("resume.step", what, fix="" if patch else "start without [resume]", patch=patch)
    elif step in (None, -1):
        yield Problem(
            "resume.step",
            f"there is no checkpoint in {folder.path}",
            fix="set the name and output directory of the previous run, or start without [resume]",
            why="prime-rl starts from scratch, with only a warning",
            severity=Severity.WARNING,
        )
    else:
        others = f"; complete steps: {', '.join(map(str, complete[:_SHOWN]))}" if complete else ""
        what = f"there is no step {step} in {folder.path}{others}"
        yield Problem("resume.step", what, fix="" if patch else "start without [resume]", patch=patch)


def _is_unnamed(run: RunSpec) -> bool:
    """Whether the run directory gets a random name at the start; RES001 reports that."""
    launch = prime_rl_of(run).launch
    return run.prime_rl is not None and features_of(run).names_runs and not (launch.run_name or launch.run_dir)


@facts_rule("RES010", Severity.WARNING, needs=("run_folder",))
def where_it_goes_on(run: RunSpec, facts: Facts) -> Problems:
    """A run that is started again should have a complete checkpoint, and steps left to train.

    the run resumes from the newest complete checkpoint: without one, the training so far is lost

    If only the newest checkpoint is incomplete, it is a note: the run resumes from the one before.

    Source: checkpoints/layout.py (COMPLETE.json is written last, and names every file with its size).

    Bad:
        [facts.run_folder]
        checkpoints = [{step = 300, path = "runs/example/checkpoints/step_300", problem = "no COMPLETE.json"}]
    Bad:
        [facts.run_folder]
        checkpoints = [
            {step = 300, path = "runs/example/checkpoints/step_300", problem = "no COMPLETE.json"},
            {step = 200, path = "runs/example/checkpoints/step_200"},
        ]
    Bad:
        [facts.run_folder]
        checkpoints = [{step = 1000, path = "runs/example/checkpoints/step_1000"}]
    Good:
        [facts.run_folder]
        checkpoints = [{step = 300, path = "runs/example/checkpoints/step_300"}]
    """
    found = known(facts.run_folder).checkpoints
    if not traits_of(run).writes_run_directory or not found:
        return
    newest = found[0]
    complete = next((item for item in found if not item.problem), None)
    if complete is None:
        yield Problem(
            "run.name",
            f"none of the {len(found)} checkpoints in {newest.path.parent} is complete; step {newest.step}: "
            f"{newest.problem}",
            fix=f"prime-train ckpt verify {run.run.name}, or another `run.name` to start from the first step",
        )
    elif complete.step >= run.run.max_steps:
        yield Problem(
            "run.max_steps",
            f"step {complete.step} is saved, and `run.max_steps` is {run.run.max_steps}",
            fix="raise `run.max_steps` to train on, or another `run.name` to start again",
            why="nothing is left to train",
        )
    elif newest.problem:
        yield Problem(
            "run.name",
            f"step {newest.step} is not complete ({newest.problem})",
            fix=f"nothing: the run resumes from step {complete.step}",
            why="the steps after that are trained again",
            severity=Severity.NOTE,
        )
