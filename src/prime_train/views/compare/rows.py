"""Reads the runs of a folder into rows: state, config, last metrics. A damaged run is a row with its reason."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, get_args, get_type_hints

from prime_train.config.differences import Difference
from prime_train.core.errors import ExitCode, UserError
from prime_train.core.outside import RECORD_BYTES, read_json
from prime_train.core.rundir import RunDir
from prime_train.estimate.values import Interval
from prime_train.events.record import describe
from prime_train.spec.prime_rl_parts import PrimeRl
from prime_train.supervise.core.journal import read_state
from prime_train.supervise.processes.lock import find_holder
from prime_train.supervise.services.used_gpus import find_gpus
from prime_train.supervise.services.wandb_links import find_link
from prime_train.supervise.watches.cost.spent import usd_so_far
from prime_train.views.compare.ends import Best, read_ends
from prime_train.views.run.runs import RUNS, is_run

UNREADABLE = "unreadable"
# For all runs together: so much is searched in a tenth of a second. Each run has at least a few pages.
_ALL_ENDS_BYTES, _LEAST_END_BYTES, _MOST_END_BYTES = 16 << 20, 16 << 10, 4 << 20
_NAMES = ("run.name", "run.dir")  # they differ between any two runs
_MODELS = ("model.path", "prime_rl.trainer.model_name", "recipe.model_name", "inference.model", "command.trainer")

Config = Mapping[str, Any]  # the object in resolved.json


class RunRow(NamedTuple):
    """One run. None: not known, or the run has none."""

    path: Path
    name: str
    state: str
    reason: str = ""  # why it cannot be read, what is damaged, or how its job is
    is_over: bool = False
    is_held_here: bool = False  # a supervisor on this machine has it
    seen_s: float | None = None  # of its last event
    kind: str | None = None
    model: str | None = None
    began_s: float | None = None
    step: int | None = None
    max_steps: int | None = None  # None for a run without an end
    metric: str | None = None  # "reward", else "loss": what `best` and `last` are
    best: Best | None = None
    last: float | None = None
    held_out: float | None = None
    tokens_per_s: float | None = None
    usd: Interval | None = None
    wandb: str | None = None
    config: Config = {}  # noqa: RUF012 - never changed
    changed: tuple[Difference, ...] | None = None  # against the run before with the same kind; None for the first

    @property
    def is_open(self) -> bool:
        """Whether a job elsewhere may change its state."""
        return not (self.is_over or self.is_held_here or self.state == UNREADABLE)


def folder_of_runs(given: Path) -> Path:
    """`given`/runs if there is one, else `given` itself."""
    return given / RUNS if (given / RUNS).is_dir() else given


def read_rows(folder: Path, now_s: float, *, may_be_empty: bool = False) -> list[RunRow]:
    """Every run in a folder, ordered by start.

    Raises UserError for a folder without runs unless it may be empty, OSError for one that may not be listed.
    """
    try:
        with os.scandir(folder) as entries:
            paths = sorted(Path(entry.path) for entry in entries if entry.is_dir() and _may_be_run(Path(entry.path)))
    except (FileNotFoundError, NotADirectoryError) as error:
        fix = "cd to the folder where runs are started, or name one: prime-train runs FOLDER"
        raise UserError("there is no such folder", str(folder), (error.strerror or "").lower(), fix) from None
    if not paths and may_be_empty:
        return []
    if not paths:
        fix = "start one with `prime-train run`, or name another folder: prime-train runs FOLDER"
        raise UserError("no run is in it", str(folder), "a run is a folder with events/ or resolved.json", fix)
    limit_bytes = min(_MOST_END_BYTES, max(_LEAST_END_BYTES, _ALL_ENDS_BYTES // len(paths)))
    rows = [read_row(path, now_s, limit_bytes) for path in paths]
    rows.sort(key=lambda row: (row.began_s is None, row.began_s or 0.0, row.name))
    return list(_with_changes(rows))


def _may_be_run(path: Path) -> bool:
    try:
        return is_run(path)
    except OSError:  # it has a row with the reason
        return True


def read_row(path: Path, now_s: float, limit_bytes: int) -> RunRow:
    """One run. Reads at most `limit_bytes` from its metrics."""
    run_dir = RunDir(path)
    try:
        state, damage = read_state(run_dir)
        config, fault = _read_config(run_dir)
        holder = find_holder(run_dir)
        ends = read_ends(run_dir, limit_bytes)
        link = find_link(run_dir, config)
        gpus = find_gpus(run_dir, state.started, config)
    except UserError as error:
        return RunRow(path, path.name, UNREADABLE, f"{error.what}: {error.why}")
    except OSError as error:  # it belongs to another user, or is on a disk that does not answer
        return RunRow(path, path.name, UNREADABLE, (error.strerror or str(error)).lower())
    is_supervised = holder is not None
    word = state.state if state.closed or is_supervised else "died" if state.first_opened_s else "not started"
    has_reward = state.reward is not None or ends.highest_reward is not None
    return RunRow(
        path=path,
        name=path.name,  # by which every command finds it; in a copy the events have the original name
        state=word,
        reason="; ".join(part for part in (describe(damage), fault) if part),
        is_over=state.closed,
        is_held_here=holder is not None and holder.here,
        seen_s=state.last_event_s,
        kind=_text(config, "run.kind"),
        model=_model(config),
        began_s=state.first_opened_s,
        step=state.step,
        max_steps=None if state.is_endless or not state.max_steps else state.max_steps,
        metric="reward" if has_reward else "loss" if state.loss is not None or ends.lowest_loss else None,
        best=ends.highest_reward if has_reward else ends.lowest_loss,
        last=state.reward if has_reward else state.loss,
        held_out=state.last_validation.loss if state.last_validation else None,
        tokens_per_s=ends.tokens_per_s if state.tokens_per_s is None else state.tokens_per_s,
        usd=usd_so_far(state, gpus, now_s if is_supervised else None),
        wandb=link,
        config=config,
    )


def _read_config(run_dir: RunDir) -> tuple[Config, str]:
    """The object in resolved.json, and why it is empty."""
    try:
        found = read_json(run_dir.resolved, RECORD_BYTES, run_dir.path)
    except FileNotFoundError:
        return {}, "it has no resolved.json"
    except (OSError, ValueError) as error:
        return {}, f"its resolved.json cannot be read: {getattr(error, 'strerror', None) or error}"
    return (_rename_keys(found), "") if isinstance(found, dict) else ({}, "its resolved.json is no object")


def _rename_keys(config: Config) -> dict[str, Any]:
    """The document with run.toml's keys in the place of the fields that have another name."""
    found = dict(config)
    if found.get("format") == "run.toml":
        found["inference"] = found.pop("server", None)  # which `inference` is computed from
    if isinstance(saved := found.get("checkpoint"), dict):
        found["checkpoint"] = {"async" if name == "async_save" else name: value for name, value in saved.items()}
    return found


# --- keys in a config -------------------------------------------------------------------------------


def keys_of(config: Config) -> dict[str, Any]:
    """Dotted keys to values, as `config.differences` names them, for the document itself.

    To make five hundred documents a RunSpec would take longer than everything else together.
    """
    return dict(_flatten(config, ""))


def _flatten(value: Any, key: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, list) and (names := _parts_of_prime_rl().get(key)):
        value = dict(zip(names, value, strict=False))
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _flatten(inner, f"{key}.{name}" if key else name)
    elif isinstance(value, list) and any(isinstance(entry, dict) for entry in value):
        for position, entry in enumerate(value):
            yield from _flatten(entry, f"{key}.{position}")
    else:
        yield key, value


@cache
def _parts_of_prime_rl() -> dict[str, tuple[str, ...]]:
    """The names in each part, which are lists in a resolved.json."""
    hints = get_type_hints(PrimeRl)
    kinds = ((name, kind) for name, hint in hints.items() for kind in (hint, *get_args(hint)))
    return {f"prime_rl.{name}": kind._fields for name, kind in kinds if hasattr(kind, "_fields")}


def _with_changes(rows: Sequence[RunRow]) -> Iterator[RunRow]:
    """The rows with the keys that differ from the run before, by start and with the same kind."""
    before: dict[str | None, RunRow] = {}
    for row in rows:
        if not row.config:
            yield row
            continue
        earlier = before.get(row.kind)
        before[row.kind] = row
        yield row if earlier is None else row._replace(changed=tuple(_differences(earlier.config, row.config)))


def _differences(before: Config, after: Config) -> Iterator[Difference]:
    # Most tables are equal, and two documents are compared much faster than their keys.
    tables = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    old = dict(entry for name in tables if name in before for entry in _flatten(before[name], name))
    new = dict(entry for name in tables if name in after for entry in _flatten(after[name], name))
    for key in {**old, **new}:
        if key not in _NAMES and old.get(key) != new.get(key):
            yield Difference(key, old.get(key), new.get(key))


def _model(config: Config) -> str | None:
    named = next((found for key in _MODELS if (found := _text(config, key))), None)
    model = config.get("model")
    if named or not isinstance(model, dict) or config.get("command") or config.get("prime_rl"):
        return named
    layers, width = model.get("layers"), model.get("hidden_size")
    return f"{layers} x {width}" if layers and width else None


def _text(config: Config, key: str) -> str | None:
    table, _, name = key.partition(".")
    values = config.get(table)
    if isinstance(values, dict) and "." not in name:  # as nearly always
        found = values.get(name)
    else:
        found = dict(_flatten(values, table)).get(key)
    return found if isinstance(found, str) and found else None


def unreadable_error(rows: Sequence[RunRow]) -> UserError | None:
    """The error where no run in a folder can be read; None if one can."""
    if not rows or any(row.state != UNREADABLE for row in rows):
        return None
    first = rows[0]
    fix = f"see `ls -ld {first.path}` and `id`; run the command as the owner of the runs"
    if not first.path.is_dir():  # a run elsewhere, whose record cannot be read
        fix = f"prime-train status {first.name} explains it"
    return UserError("no run in it can be read", str(first.path.parent), first.reason, fix, ExitCode.OUT_OF_REACH)
