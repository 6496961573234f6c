"""[command]: a trainer that prime-train did not write, as a command line, and what is known of it.

An empty value stands for that of the profile of the trainer, and without a profile for "not known".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from prime_train.spec.annotations import Doc, MinLen, Positive


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressSource:
    """[command.progress]: where the steps and losses of the trainer are read from."""

    log: Annotated[
        str,
        Doc("Regular expression for a line of output, with (?P<step>...) and perhaps (?P<loss>...), (?P<total>...)."),
    ] = ""
    file: Annotated[
        str,
        Doc("JSONL or CSV file, folder of TensorBoard events or trainer_state.json, relative to cwd; read by content."),
    ] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSource:
    """[command.checkpoints]: where the trainer saves, and what is kept."""

    dir: Annotated[str, Doc("Folder of the checkpoints, relative to cwd.")] = ""
    layout: Annotated[
        str,
        Doc("Layout by the name that `prime-train trainers show` lists; without one no checkpoint counts as complete."),
    ] = ""
    keep_last: Annotated[
        Positive | None,
        Doc("Newest complete checkpoints to keep, in a known layout; unset = all, as long as the disk has room."),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeRequest:
    """[command.resume]: how the trainer is asked to go on from a checkpoint."""

    how: Annotated[
        Literal["", "itself", "argument", "variable", "none"],
        Doc(
            "`itself` = it finds its newest checkpoint; `argument` = `template` is added to argv; `variable` = "
            "`template` is added to the environment; `none` = each start begins at step 0."
        ),
    ] = ""
    template: Annotated[
        str, Doc("`--resume={path}`, or for a variable `NAME={path}`; {path} is the checkpoint and {step} its step.")
    ] = ""
    aside: Annotated[
        Literal["", "rename", "tracker", "none"],
        Doc("What is done before a start with newer checkpoints that are broken: renamed, or the tracker rewritten."),
    ] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRequest:
    """[command.stop]: how the trainer is asked to save and end. prime_train.stop_grace_s is the time for it."""

    how: Annotated[
        Literal["", "signal", "file", "none"],
        Doc("`signal`; `file` = `file` is created; `none` = it is ended after its next checkpoint."),
    ] = ""
    signal: Annotated[Literal["", "SIGTERM", "SIGINT", "SIGUSR1", "SIGUSR2", "SIGHUP"], Doc("The signal.")] = ""
    to: Annotated[
        Literal["", "workers", "launcher"],
        Doc("`workers` = the processes that torchrun and the like have started, which then have the whole grace."),
    ] = ""
    file: Annotated[str, Doc("The file, relative to cwd.")] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitMeanings:
    """[command.exits]: exit codes that mean something."""

    finished: Annotated[tuple[int, ...], Doc("Exit codes of a run that is over.")] = ()
    failed: Annotated[tuple[int, ...], Doc("Exit codes after which another try would fail the same way.")] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredSetting:
    """[[command.settings]]: a number that `prime-train set` changes, and that the script takes by live.settings()."""

    name: Annotated[str, Doc("Its name, for example `lr`.")]
    value: Annotated[float | None, Doc("What the script begins with; shown, and no more.")] = None
    min: Annotated[float | None, Doc("The least value.")] = None
    max: Annotated[float | None, Doc("The largest value.")] = None
    whole: Annotated[bool, Doc("Only whole numbers, such as a batch size.")] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandSpec:
    """[command]: the command line of a run with run.kind = "command"."""

    argv: Annotated[tuple[str, ...], MinLen(1), Doc("The program and its arguments; no shell reads them.")]
    cwd: Annotated[str, Doc("Its working directory, relative to that of prime-train.")] = "."
    env: Annotated[tuple[str, ...], Doc("NAME=value for its environment. A secret is exported instead.")] = ()
    python: Annotated[
        str, Doc("Interpreter whose folder comes first on its PATH: that of `python`, torchrun and accelerate.")
    ] = ""
    processes: Annotated[Positive, Doc("Training processes on this machine.")] = 1
    trainer: Annotated[str, Doc("Profile of the trainer (`prime-train trainers list`); unset = no profile.")] = ""
    terminal: Annotated[bool, Doc("Start it on a terminal, because it is silent in a pipe.")] = False
    live: Annotated[bool, Doc("Add the callbacks of prime_train.live to trainers that take them.")] = True
    progress: Annotated[ProgressSource, Doc("Where steps and losses are read from.")] = ProgressSource()
    checkpoints: Annotated[CheckpointSource, Doc("Where it saves.")] = CheckpointSource()
    resume: Annotated[ResumeRequest, Doc("How it goes on from a checkpoint.")] = ResumeRequest()
    stop: Annotated[StopRequest, Doc("How it is stopped.")] = StopRequest()
    settings: Annotated[tuple[DeclaredSetting, ...], Doc("Numbers that change while the script trains.")] = ()
    exits: Annotated[ExitMeanings, Doc("What its exit codes mean.")] = ExitMeanings()
