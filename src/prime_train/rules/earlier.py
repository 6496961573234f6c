"""Run directories that another process holds or that a previous run has used. Pure: the facts are given."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prime_train.findings import Problem, Severity
from prime_train.rules.base import facts_rule, known
from prime_train.spec import RunSpec

if TYPE_CHECKING:
    from prime_train.facts.facts import Facts

_SHOWN = 6  # names that a message lists


@facts_rule("RUN003", Severity.ERROR, needs=("run_folder",))
def directory_held(run: RunSpec, facts: Facts) -> Iterator[Problem]:
    """No other process may hold the run directory.

    two runs in one directory overwrite each other's checkpoints, so the second one is refused

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

    prime-rl refuses a directory that holds files of a previous run

    For the bundled trainer it is a warning: it writes beside such files, and may mistake their step folders for its
    own.

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
            why="later it is not clear which of the two wrote a file",
            severity=Severity.WARNING,
        )
    elif folder.leftovers and run.resume is None and run.launch is not None and not run.launch.clean:
        yield Problem(
            "launch.run_name",
            f"{folder.path} has {shown} in it",
            fix="another `launch.run_name`, or [resume] to continue that run",
        )
