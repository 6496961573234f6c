"""Reads the profiles of registry/trainers: what is known of a trainer that this package did not write.

A profile has the lines that a trainer prints, where the checkpoints are, how it resumes and stops, and what exit codes
mean. A test compares each line and each file with the examples.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import tomli

from prime_train.core.installation import shipped

LineKind = Literal[
    "step",  # a step is done
    "loss",  # a loss without a step
    "eval",
    "rate",  # tokens per second without a step
    "save_start",
    "save_done",
    "prune",  # the trainer deleted a checkpoint
    "resume",
    "unreadable",  # the checkpoint that it resumes from cannot be loaded
    "fresh",  # it found nothing to resume from
    "start",  # training begins
    "stop",  # it noticed a request to stop, or is ended
    "exit",  # the last line
    "failed",  # a launcher reports that a worker failed
    "warn",
]
FileKind = Literal["jsonl", "csv", "tensorboard", "trainer_state", "torchtitan", "log"]
ResumeHow = Literal["itself", "argument", "variable", "none"]
StopHow = Literal["signal", "file", "none"]
Aside = Literal["rename", "tracker", "none"]
_GROUPS = frozenset(
    ("step", "total", "loss", "grad_norm", "tokens", "tps", "path", "s", "epoch", "code", "signal", "rank", "pid")
)


class TrainerLine(NamedTuple):
    """A line of a trainer's output. `pattern` is searched in a line without colours.

    Groups: step total loss grad_norm tokens tps path s epoch code signal rank pid. `offset` is added to the printed
    step, so that it counts steps that are done. `unit`: what the number counts. `total_is_last`: a progress bar that
    counts steps only where the total is the last step. `per_epoch`: the count starts again in each epoch, the first of
    which has the number `first_epoch`. `decides`: false for a line that other programs print too, so that it alone
    names no trainer.
    """

    kind: LineKind
    pattern: re.Pattern[str]
    examples: tuple[str, ...]
    source: str
    offset: int = 0
    unit: str = "optimizer step"
    total_is_last: bool = False
    per_epoch: bool = False
    first_epoch: int = 0
    decides: bool = True
    note: str = ""


class TrainerFile(NamedTuple):
    """A file with progress. `path` may hold {dir}, the folder of the checkpoints, and * for names that are not known.

    `step`, `total` and `loss` are keys or columns, `loss` in the order in which they are tried; a dot goes into a
    table. A row counts only if it has all keys of `needs`. Each example is the text of a whole file.
    """

    path: str
    kind: FileKind
    source: str
    step: str = "step"
    total: str = ""
    loss: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    examples: tuple[str, ...] = ()
    offset: int = 0
    unit: str = "optimizer step"
    note: str = ""


class SlowPhase(NamedTuple):
    """Work that is slow on purpose: silence of `limit_s` seconds after a line with `pattern` is no hang."""

    name: str
    pattern: re.Pattern[str]
    limit_s: float
    examples: tuple[str, ...]
    source: str


class Recognition(NamedTuple):
    """How a command shows the trainer. Any of the lists is enough.

    `programs` are names of the first word, launchers taken off. `words` match any whole word, the last part of one, or
    the module after -m. `imports` are top-level imports of the script; where `names` is given, one of them must be
    imported too. `formats`: config files among the words, by the names of registry/foreign/recognise.toml.
    """

    programs: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    imports: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    formats: tuple[str, ...] = ()


class CheckpointPlace(NamedTuple):
    """Where the command puts checkpoints: flags, keys of the config file, a variable; else `default`."""

    flags: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    variable: str = ""
    default: str = ""
    below: str = ""  # a folder below that one
    note: str = ""


class ResumeWay(NamedTuple):
    """How the trainer is asked to resume, what it chooses, and what is done with a broken newest checkpoint.

    `template` has {path}, {step} and {dir}.
    """

    how: ResumeHow = "none"
    template: str = ""
    chooses: Literal["highest", "tracker", "named", ""] = ""
    aside: Aside = "none"
    note: str = ""


class StopWay(NamedTuple):
    """How the trainer is asked to stop, and whether it saves before it ends."""

    how: StopHow = "none"
    signal: str = "SIGTERM"
    to: Literal["workers", "launcher"] = "workers"
    file: str = ""
    saves: bool = False
    note: str = ""


class ExitMeaning(NamedTuple):
    """What exit codes mean. `end_line`: a line of kind exit, without a signal of ours, shows that it finished."""

    zero_is_finished: bool = False
    end_line: bool = True
    codes: Mapping[int, str] = {}


class TrainerProfile(NamedTuple):
    """What is known of one trainer. `layouts` are the tables of checkpoints, read by checkpoints/.

    `layout_keys`: an option that is set -> the name of the layout that the checkpoints have then.
    `restarts` and `retention`: the trainer's options for restarts and for deleting checkpoints. `launcher`: it is no
    trainer, and the lines are among those of every trainer. `engine`: other trainers are built on it, and their
    profiles come before it.
    """

    name: str
    title: str
    source: str
    like: str
    before: tuple[str, ...]
    recognise: Recognition
    lines: tuple[TrainerLine, ...]
    files: tuple[TrainerFile, ...]
    phases: tuple[SlowPhase, ...]
    checkpoints: CheckpointPlace
    layout_names: tuple[str, ...]
    layout_keys: Mapping[str, str]
    layouts: tuple[Mapping[str, Any], ...]
    resume: ResumeWay
    stop: StopWay
    exits: ExitMeaning
    restarts: tuple[str, ...]
    retention: tuple[str, ...]
    own_lines: tuple[TrainerLine, ...]  # without those of the profile that it is like
    launcher: bool = False
    engine: bool = False


@cache
def trainer_profiles() -> Mapping[str, TrainerProfile]:
    """Name -> profile, in the order in which they are tried. Raises TypeError or ValueError for a faulty table."""
    tables = _tables()
    return {name: _profile(name, tables) for name in _order(tables)}


def trainer_profile(name: str) -> TrainerProfile:
    """Raises KeyError if no profile has the name."""
    return trainer_profiles()[name]


def launcher_lines() -> tuple[TrainerLine, ...]:
    """The lines of launchers, which stand in the log of any trainer."""
    return tuple(line for profile in trainer_profiles().values() if profile.launcher for line in profile.lines)


def _tables() -> dict[str, dict[str, Any]]:
    paths = sorted(Path(shipped("trainers")).glob("*.toml"))
    return {path.stem: tomli.loads(path.read_text(encoding="utf-8")) for path in paths}


def _order(tables: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The names such that a profile comes before those of `before` and the one that it is like; engines last."""
    ordered: list[str] = []

    def visit(name: str, path: tuple[str, ...]) -> None:
        if name in path:
            raise ValueError(f"registry/trainers: {' before '.join((*path, name))}: no order is possible")
        for other in sorted(tables):
            comes_first = name in tables[other].get("before", ()) or tables[other].get("like") == name
            if comes_first and other not in ordered:
                visit(other, (*path, name))
        if name not in ordered:
            ordered.append(name)

    for name in sorted(tables, key=lambda name: (tables[name].get("engine", False), name)):
        visit(name, ())
    return ordered


def _profile(name: str, tables: Mapping[str, Mapping[str, Any]]) -> TrainerProfile:
    """The profile of a table; where it has no table of a kind, that of the profile that it is like."""
    table = dict(tables[name])
    like = table.get("like", "")
    parent = _profile(like, tables) if like else None
    unit = table.get("steps", {}).get("unit", "optimizer step")
    own_lines = tuple(_line(entry, unit) for entry in table.get("line", ()))
    files = tuple(TrainerFile(**{"unit": unit} | _tuples(entry)) for entry in table.get("file", ()))
    phases = tuple(_phase(entry) for entry in table.get("phase", ()))
    place = dict(table.get("checkpoints", {}))
    layout_names = tuple(place.get("layouts", ()))
    exits = dict(table.get("exits", {}))
    exits["codes"] = {int(code): meaning for code, meaning in exits.get("codes", {}).items()}
    own = TrainerProfile(
        name=name,
        title=table["title"],
        source=table["source"],
        like=like,
        before=tuple(table.get("before", ())),
        recognise=Recognition(**_tuples(table.get("recognise", {}))),
        lines=own_lines,
        files=files,
        phases=phases,
        checkpoints=CheckpointPlace(**_tuples(place.get("dir", {}))),
        layout_names=layout_names,
        layout_keys=place.get("layout_keys", {}),
        layouts=tuple(table.get("layout", ())),
        resume=ResumeWay(**table.get("resume", {})),
        stop=StopWay(**table.get("stop", {})),
        exits=ExitMeaning(**exits),
        restarts=tuple(table.get("restarts", {}).get("flags", ())),
        retention=tuple(table.get("retention", {}).get("own", ())),
        own_lines=own_lines,
        launcher=bool(table.get("launcher", False)),
        engine=bool(table.get("engine", False)),
    )
    return own if parent is None else _inherit(own, parent, table)


_SINGLE = ("resume", "stop", "exits")  # a table replaces the one of the parent


def _inherit(own: TrainerProfile, parent: TrainerProfile, table: Mapping[str, Any]) -> TrainerProfile:
    """Lines, files, phases and layouts are added to those of the parent; other tables replace them."""
    place = table.get("checkpoints", {})
    replaced: dict[str, Any] = {field: getattr(parent, field) for field in _SINGLE if field not in table}
    return own._replace(
        lines=own.lines + parent.lines,
        files=own.files + parent.files,
        phases=own.phases + parent.phases,
        layouts=own.layouts + parent.layouts,
        checkpoints=own.checkpoints if "dir" in place else parent.checkpoints,
        layout_names=own.layout_names if "layouts" in place else parent.layout_names,
        restarts=own.restarts if "restarts" in table else parent.restarts,
        retention=own.retention if "retention" in table else parent.retention,
        **replaced,
    )


def _line(entry: Mapping[str, Any], unit: str) -> TrainerLine:
    pattern = re.compile(entry["pattern"])
    unknown = set(pattern.groupindex) - _GROUPS
    if unknown or entry["kind"] not in get_args(LineKind):
        raise ValueError(f"registry/trainers: {entry['pattern']}: unknown {unknown or entry['kind']}")
    return TrainerLine(**{"unit": unit} | _tuples(entry) | {"pattern": pattern})


def _phase(entry: Mapping[str, Any]) -> SlowPhase:
    return SlowPhase(**_tuples(entry) | {"pattern": re.compile(entry["pattern"])})


def _tuples(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The entry with lists as tuples."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()}
