"""Paths that lead out of the project, to another machine, or to a place that does not last. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from prime_train.core.findings import Problem, Severity
from prime_train.rules.rule import Problems, facts_rule, known, rule
from prime_train.spec import RunSpec
from prime_train.spec.answers import prime_rl_of

if TYPE_CHECKING:
    from prime_train.facts.facts import Facts

_OTHER_SYSTEM = r"/Users/|[A-Za-z]:[\\/]|\\\\"
_MOUNT_PARENTS = ("/", "/home", "/mnt", "/media", "/srv")
_VOLATILE = r"/tmp(?:/|$)|/dev/shm(?:/|$)|/var/tmp(?:/|$)"


@rule("PTH001", Severity.WARNING)
def path_of_another_machine(run: RunSpec) -> Problems:
    """A path must be valid on the machine that trains.

    /Users and drive letters belong to a laptop: on the training machine the folder is created empty, or not found

    Source: Filesystem Hierarchy Standard 3.0.

    Bad:
        [run]
        dir = "/Users/ada/runs"
    Bad (prime-rl 2026-08):
        output_dir = "C:/runs/outputs"
    Good (prime-rl 2026-08):
        output_dir = "outputs"
    """
    for at, path in _paths(run):
        if re.match(_OTHER_SYSTEM, path):
            yield Problem(at, f"{path} is not a path of a Linux machine", fix="a path relative to the project")


@rule("PTH002", Severity.WARNING)
def output_is_volatile(run: RunSpec) -> Problems:
    """Output should go to a place that lasts.

    /tmp is emptied at a restart and /dev/shm is memory: the checkpoints are gone when they are needed

    Source: Filesystem Hierarchy Standard 3.0, s. 3.18; Linux, tmpfs(5).

    Bad:
        [run]
        dir = "/tmp/runs"
    Bad (prime-rl 2026-08):
        output_dir = "/dev/shm/outputs"
    Good:
        [run]
        dir = "/data/runs"
    """
    for at, path in _outputs(run):
        if re.match(_VOLATILE, path):
            yield Problem(at, f"{path} does not outlast the machine", fix="a folder on a disk that stays")


@rule("PTH003", Severity.WARNING)
def path_not_expanded(run: RunSpec) -> Problems:
    """~ and $VARIABLES are not expanded in a config.

    only a shell expands them, and no shell reads a config: a folder with exactly that name is created

    The ~ of `run.dir` is expanded by prime-train.

    Source: Python, pathlib (expanduser is never called by itself).

    Bad:
        [run]
        dir = "$SCRATCH/runs"
    Bad (prime-rl 2026-08):
        output_dir = "~/outputs"
    Bad (prime-rl 2026-08):
        output_dir = "$SCRATCH/outputs"
    Good:
        [run]
        dir = "~/runs"
    Good (prime-rl 2026-08):
        output_dir = "/scratch/outputs"
    """
    for at, path in _outputs(run):
        literal = r"\$\{?\w" if at == "run.dir" else r"~|\$\{?\w"
        if re.match(literal, path):
            yield Problem(at, f"{path} is used literally", fix="write the path out, or set it on the command line")


@rule("PTH004", Severity.NOTE)
def path_outside_the_project(run: RunSpec) -> Problems:
    """A path with .. leads out of the project.

    it depends on the working directory, and a copy of the project elsewhere does not have the folder

    Source: path_resolution(7).

    Bad (prime-rl 2026-08):
        output_dir = "../outputs"
    Good (prime-rl 2026-08):
        output_dir = "outputs"
    """
    for at, path in _paths(run):
        if ".." in re.split(r"[\\/]", path):
            yield Problem(at, f"{path} leads out of the project", fix="a path below the project, or an absolute one")


@facts_rule("PTH005", Severity.WARNING, needs=("save_dir",))
def output_on_a_disk_that_is_not_here(run: RunSpec, facts: Facts) -> Problems:
    """The disk or the home directory for the output should exist on this machine.

    the folder is created on the root disk instead: the output is not where it is expected, and the root disk fills up

    Source: Filesystem Hierarchy Standard 3.0, s. 3.8 and 3.12 (homes and mount points).

    Bad:
        [run]
        dir = "/home/ada/runs"
        [facts.save_dir]
        path = "/home/ada/runs/example"
        existing = "/home"
    Bad (prime-rl 2026-08):
        output_dir = "/scratch/outputs"
        [facts.save_dir]
        path = "/scratch/outputs/example"
        existing = "/"
    Good:
        [run]
        dir = "/home/ada/runs"
        [facts.save_dir]
        path = "/home/ada/runs/example"
        existing = "/home/ada"
    """
    folder = known(facts.save_dir)
    existing = str(folder.existing)
    if folder.refusal or existing not in _MOUNT_PARENTS:  # rule DSK002
        return
    for at, path in _outputs(run):
        if path.startswith("/") and folder.path.is_relative_to(path):
            yield Problem(
                at, f"this machine has {existing}, but no {path}", fix="mount it, or use a folder that exists"
            )


def _outputs(run: RunSpec) -> Iterator[tuple[str, str]]:
    """(RunSpec field, path) of each folder that the run writes to."""
    parts = prime_rl_of(run)
    paths = {
        "run.dir": run.run.dir,
        "launch.output_dir": parts.launch.output_dir,
        "saving.output_dir": parts.saving.output_dir if parts.saving is not None else None,
    }
    yield from ((at, path) for at, path in paths.items() if path is not None)


def _paths(run: RunSpec) -> Iterator[tuple[str, str]]:
    """(RunSpec field, path) of each path that the run writes or reads."""
    parts = prime_rl_of(run)
    yield from _outputs(run)
    paths = {
        "model.path": run.model.path,
        "tokenizer.path": run.tokenizer.path,
        **{f"data.sources.{number}.path": source.path for number, source in enumerate(run.data.sources)},
        "trainer.model_name": parts.trainer.model_name if parts.trainer is not None else None,
        "finetune.data_name": parts.finetune.data_name if parts.finetune is not None else None,
    }
    yield from ((at, path) for at, path in paths.items() if path is not None)
