"""Paths that lead out of the project, to another machine, or to where nothing is kept. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from prime_train.findings import Problem, Severity
from prime_train.rules.base import facts_rule, known, rule
from prime_train.spec import RunSpec

if TYPE_CHECKING:
    from prime_train.facts.facts import Facts

_OTHER_SYSTEM = r"/Users/|[A-Za-z]:[\\/]|\\\\"
_WHERE_DISKS_HANG = ("/", "/home", "/mnt", "/media", "/srv")
_VOLATILE = r"/tmp(?:/|$)|/dev/shm(?:/|$)|/var/tmp(?:/|$)"


@rule("PTH001", Severity.WARNING)
def path_of_another_machine(run: RunSpec) -> Iterator[Problem]:
    """A path must be one of the machine that trains.

    /Users and drive letters belong to a laptop: where the run is, the folder is made anew, or not found

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
            yield Problem(at, f"{path} is no path of a Linux machine", fix="a path relative to the project")


@rule("PTH002", Severity.WARNING)
def output_is_volatile(run: RunSpec) -> Iterator[Problem]:
    """Output should not go where it does not last.

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
def path_not_expanded(run: RunSpec) -> Iterator[Problem]:
    """~ and $VARIABLES are not expanded in a config.

    a shell does that, a config file does not pass through one: a folder of that very name is made

    Source: Python, pathlib (expanduser is never called by itself).

    Bad (prime-rl 2026-08):
        output_dir = "~/outputs"
    Bad (prime-rl 2026-08):
        output_dir = "$SCRATCH/outputs"
    Good (prime-rl 2026-08):
        output_dir = "/scratch/outputs"
    """
    for at, path in _outputs(run):
        if re.match(r"~|\$\{?\w", path):
            yield Problem(at, f"{path} is taken as it stands", fix="write the path out, or set it on the command line")


@rule("PTH004", Severity.NOTE)
def path_outside_the_project(run: RunSpec) -> Iterator[Problem]:
    """A path with .. leads out of the project.

    it depends on where the command is started, and a copy of the project elsewhere does not have it

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
def output_on_a_disk_that_is_not_here(run: RunSpec, facts: Facts) -> Iterator[Problem]:
    """The disk or the home that the output goes to should be on this machine.

    the folder is made anew on the root disk: where it was meant to be, nobody finds it, and the root disk fills up

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
    there = str(folder.existing)
    if folder.refusal or there not in _WHERE_DISKS_HANG:  # rule DSK002
        return
    for at, path in _outputs(run):
        if path.startswith("/") and folder.path.is_relative_to(path):
            yield Problem(at, f"of {path} this machine has {there} alone", fix="mount it, or a folder that is here")


def _outputs(run: RunSpec) -> Iterator[tuple[str, str]]:
    """(RunSpec field, path) of what the run writes to."""
    yield "run.dir", run.run.dir
    if run.launch is not None and run.launch.output_dir is not None:
        yield "launch.output_dir", run.launch.output_dir
    if run.saving is not None and run.saving.output_dir is not None:
        yield "saving.output_dir", run.saving.output_dir


def _paths(run: RunSpec) -> Iterator[tuple[str, str]]:
    """(RunSpec field, path) of all that the run writes and reads."""
    yield from _outputs(run)
    if run.model.path is not None:
        yield "model.path", run.model.path
    if run.tokenizer.path is not None:
        yield "tokenizer.path", run.tokenizer.path
    for number, source in enumerate(run.data.sources):
        if source.path is not None:
            yield f"data.sources.{number}.path", source.path
    if run.trainer is not None and run.trainer.model_name is not None:
        yield "trainer.model_name", run.trainer.model_name
    if run.finetune is not None and run.finetune.data_name is not None:
        yield "finetune.data_name", run.finetune.data_name
