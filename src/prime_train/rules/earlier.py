"""What an earlier run left where this one will write, and what this one would go on from. Pure: the facts are given."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prime_train.dialects.prime_rl.features import features_of
from prime_train.findings import Problem, Severity
from prime_train.rules.base import facts_rule, known
from prime_train.spec import RunSpec

if TYPE_CHECKING:
    from prime_train.facts.facts import Facts
    from prime_train.facts.local import RunFolder

_SHOWN = 6  # names or steps that a message lists


@facts_rule("RUN003", Severity.ERROR, needs=("run_folder",))
def directory_held(run: RunSpec, facts: Facts) -> Iterator[Problem]:
    """No other process may hold the run directory.

    two runs in one directory write over each other's checkpoints: the second one is turned away

    Source: supervise/lock.py (flock, dropped by the kernel when its holder dies).

    Bad:
        [facts.run_folder]
        holder = "process 4711 on gpu-7"
    Good:
        [facts.run_folder]
        holder = ""
    """
    folder = known(facts.run_folder)
    if folder.holder and run.writes_run_directory:
        name = run.run.name
        yield Problem(
            "run.name",
            f"{folder.path} is held by {folder.holder}",
            fix=f"prime-train status {name} shows it, prime-train stop {name} ends it; or give another `run.name`",
        )


@facts_rule("RUN004", Severity.ERROR, needs=("run_folder",))
def directory_used(run: RunSpec, facts: Facts) -> Iterator[Problem]:
    """A run that neither resumes nor cleans needs a directory of its own.

    prime-rl refuses a directory with an earlier run's files in it

    The bundled trainer writes beside files that it does not know: a warning, because their step folders may be taken
    for its own.

    Source: prime-rl 2026-08, entrypoints/rl.py ("already contains artifacts from a previous run"); rundir.py.

    Bad (prime-rl 2026-08):
        [facts.run_folder]
        leftovers = ["checkpoints", "logs"]
    Bad:
        [facts.run_folder]
        leftovers = ["checkpoints", "wandb"]
    Good (prime-rl 2026-08):
        [resume]
        step = 100
        [facts.run_folder]
        leftovers = ["checkpoints", "logs"]
        checkpoints = [{step = 100, path = "outputs/example/checkpoints/step_100"}]
    """
    folder = known(facts.run_folder)
    more = len(folder.leftovers) - _SHOWN
    shown = ", ".join(folder.leftovers[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
    if folder.leftovers and run.writes_run_directory:
        yield Problem(
            "run.name",
            f"{folder.path} has {shown} in it, and no run of prime-train",
            fix="another `run.name`",
            why="what a later look finds there may be of either",
            severity=Severity.WARNING,
        )
    elif folder.leftovers and run.resume is None and run.launch is not None and not run.launch.clean:
        yield Problem(
            "launch.run_name",
            f"{folder.path} has {shown} in it",
            fix="another `launch.run_name`, or [resume] to go on with that run",
        )


@facts_rule("RES009", Severity.ERROR, needs=("run_folder",))
def nothing_to_resume(run: RunSpec, facts: Facts) -> Iterator[Problem]:
    """The checkpoint to resume from must be there, and complete.

    prime-rl takes the newest folder by its name, whole or not, and fails when it loads it

    Complete is a folder with the .metadata that torch writes last and, in 2026-08, the orchestrator's progress.pt.
    Where the latest is asked for and there is none, prime-rl starts from scratch: a warning.

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
    resume, folder = run.resume, known(facts.run_folder)
    if resume is None:
        return
    if resume.dir is not None:
        if folder.target is not None and folder.target.problem:
            yield Problem(
                "resume.dir", f"{folder.target.path}: {folder.target.problem}", fix="a complete step_N folder"
            )
    elif not _is_unnamed(run):
        yield from _of_step(resume.step, folder)


def _of_step(step: int | None, folder: RunFolder) -> Iterator[Problem]:
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
            fix="the name and output directory that the run had, or no [resume]",
            why="prime-rl starts from scratch, with no more than a warning",
            severity=Severity.WARNING,
        )
    else:
        there = f"; complete are {', '.join(map(str, complete[:_SHOWN]))}" if complete else ""
        what = f"there is no step {step} in {folder.path}{there}"
        yield Problem("resume.step", what, fix="" if patch else "start without [resume]", patch=patch)


def _is_unnamed(run: RunSpec) -> bool:
    """Whether the run's directory is one that nobody knows before it starts; another rule speaks of that."""
    launch = run.launch
    return launch is not None and features_of(run).names_runs and not (launch.run_name or launch.run_dir)


@facts_rule("RES010", Severity.WARNING, needs=("run_folder",))
def where_it_goes_on(run: RunSpec, facts: Facts) -> Iterator[Problem]:
    """A run that is started again should have a complete checkpoint, and steps left to train.

    it goes on from the newest complete checkpoint: where there is none, what was trained is lost

    A newest checkpoint that is not complete is a note: the run goes on from the one before.

    Source: checkpoints/layout.py (COMPLETE.json is written last, and names every file with its size).

    Bad:
        [facts.run_folder]
        checkpoints = [{step = 300, path = "runs/example/checkpoints/step_300", problem = "no COMPLETE.json"}]
    Bad:
        [[facts.run_folder.checkpoints]]
        step = 300
        path = "runs/example/checkpoints/step_300"
        problem = "no COMPLETE.json"
        [[facts.run_folder.checkpoints]]
        step = 200
        path = "runs/example/checkpoints/step_200"
    Bad:
        [facts.run_folder]
        checkpoints = [{step = 1000, path = "runs/example/checkpoints/step_1000"}]
    Good:
        [facts.run_folder]
        checkpoints = [{step = 300, path = "runs/example/checkpoints/step_300"}]
    """
    found = known(facts.run_folder).checkpoints
    if not run.writes_run_directory or not found:
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
            fix="raise `run.max_steps` to train on, or another `run.name` to start anew",
            why="nothing is left to train",
        )
    elif newest.problem:
        yield Problem(
            "run.name",
            f"step {newest.step} is not complete ({newest.problem})",
            fix=f"nothing: it goes on from step {complete.step}",
            why="what was trained after that is trained again",
            severity=Severity.NOTE,
        )
