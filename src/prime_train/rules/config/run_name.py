"""A run's name, its directory and its restarts. Pure: the facts are given."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from prime_train.core.findings import Problem, Severity
from prime_train.rules.rule import Problems, facts_rule, known, rule, suggest
from prime_train.spec import RunSpec
from prime_train.spec.answers import prime_rl_of, traits_of

if TYPE_CHECKING:
    from prime_train.facts.facts import Facts


_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"


@rule("RUN001", Severity.ERROR)
def name_is_no_directory(run: RunSpec) -> Problems:
    """run.name must work as the name of a directory, everywhere.

    the name is part of the run directory, of keys in object stores and of shell commands

    1 to 64 letters, digits, dots, dashes and underscores; the first one a letter or a digit.

    Source: POSIX.1-2017, 3.282 (portable file names); Amazon S3, safe characters of object keys.

    Bad:
        [run]
        name = "my run/1"
    Bad:
        [run]
        name = ""
    Good:
        [run]
        name = "my-run_1.5b"
    """
    name = run.run.name
    if re.fullmatch(_NAME, name) or (not name and not traits_of(run).name_is_required):
        return
    usable = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-._")[:64] or "run"
    shown = name if len(name) <= 64 else f"{name[:61]}..."
    yield suggest("run.name", f"{shown!r} cannot name a directory", usable)


@rule("RUN002", Severity.WARNING)
def backoff_above_its_limit(run: RunSpec) -> Problems:
    """backoff_s should not exceed backoff_max_s.

    the limit counts: every restart waits for backoff_max_s, and the wait never doubles

    Source: supervise/core/policy.py (the wait is the smaller of the two).

    Bad:
        [prime_train.restart]
        backoff_s = 120.0
    Good:
        [prime_train.restart]
        backoff_s = 30.0
    """
    restart = run.prime_train.restart
    if restart.backoff_s > restart.backoff_max_s:
        yield suggest(
            "prime_train.restart.backoff_s",
            f"{restart.backoff_s:g} s is more than `prime_train.restart.backoff_max_s` {restart.backoff_max_s:g} s",
            restart.backoff_max_s,
        )


_SHOWN = 6  # names that a message lists


@facts_rule("RUN003", Severity.ERROR, needs=("run_folder",))
def directory_held(run: RunSpec, facts: Facts) -> Problems:
    """No other process may hold the run directory.

    two runs in one directory overwrite each other's checkpoints, so the second one is refused

    Source: supervise/processes/lock.py (flock, dropped by the kernel when its holder dies).

    Bad:
        [facts.run_folder]
        holder = "process 4711 on gpu-7"
    Good:
        [facts.run_folder]
        holder = ""
    """
    folder = known(facts.run_folder)
    if folder.holder and traits_of(run).writes_run_directory:
        name = run.run.name
        yield Problem(
            "run.name",
            f"{folder.path} is held by {folder.holder}",
            fix=f"prime-train status {name} shows it, prime-train stop {name} ends it; or give another `run.name`",
        )


@facts_rule("RUN004", Severity.ERROR, needs=("run_folder",))
def directory_used(run: RunSpec, facts: Facts) -> Problems:
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
    parts = prime_rl_of(run)
    folder = known(facts.run_folder)
    more = len(folder.leftovers) - _SHOWN
    shown = ", ".join(folder.leftovers[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
    if folder.leftovers and traits_of(run).writes_run_directory:
        yield Problem(
            "run.name",
            f"{folder.path} has {shown} in it, and no run of prime-train",
            fix="another `run.name`",
            why="later it is not clear which of the two wrote a file",
            severity=Severity.WARNING,
        )
    elif folder.leftovers and parts.resume is None and run.prime_rl is not None and not parts.launch.clean:
        yield Problem(
            "launch.run_name",
            f"{folder.path} has {shown} in it",
            fix="another `launch.run_name`, or [resume] to continue that run",
        )
