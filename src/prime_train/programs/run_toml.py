"""Opens the run directory of a run.toml, for every program that reads one. Starts and deletes nothing."""

from __future__ import annotations

import os
from dataclasses import asdict, replace
from itertools import chain, count
from pathlib import Path
from typing import Any

from prime_train.checkpoints.step_folders import steps
from prime_train.core.errors import UserError
from prime_train.core.rundir import RunDir
from prime_train.events import read
from prime_train.spec import RunSpec, Source
from prime_train.spec.server import Server
from prime_train.supervise.fold import fold_all
from prime_train.supervise.launch.program import Program
from prime_train.supervise.launch.run_directory import (
    Opened,
    Resume,
    find_newer_checkpoints,
    is_finished,
    make_writable,
    read_run_spec,
    set_aside,
    shrink,
    write_config,
)


def leftovers(run_dir: RunDir) -> tuple[str, ...]:
    """Names in a run directory that no run of prime-train wrote."""
    names = sorted(item.name for item in run_dir.path.iterdir()) if run_dir.path.is_dir() else []
    if run_dir.events.name in names or run_dir.resolved.name in names:
        return ()
    return tuple(name for name in names if name != run_dir.lock.name)


def open_run(text: str, run: RunSpec, run_dir: RunDir, program: Program, resume: Resume = "auto") -> Opened:
    """Create the directory of a run, or go on in it; `text` is the config as written.

    A run without a checkpoint starts from the beginning, and may change in everything: what ended it before its
    first save was often a fault of the config.
    The caller holds the run's lock. Raises UserError where the run cannot go on with this config or
    from that checkpoint; nothing has been changed then.
    """
    make_writable(run_dir)
    run = absolute(run, run_dir)
    before = read_run_spec(run_dir)
    state = fold_all(read(run_dir.events))
    notes: list[str] = []
    begun_with = before
    if state.micro_batch is not None and run.batch.micro_batch > state.micro_batch:
        notes.append(f"micro-batch {state.micro_batch}, not {run.batch.micro_batch}: memory ran out with more")
        run = shrink(run, state.micro_batch)
        if before is not None:  # the supervisor's change, which it may not have lived to write down
            begun_with = shrink(before, state.micro_batch)
    found, places = program.checkpoints(run, run_dir), program.places(run, run_dir)
    if begun_with is not None and found:
        _refuse_changes(begun_with, run, run_dir)
    aside = find_newer_checkpoints(resume, found, run_dir, places.checkpoints[0], hashes=program.keeps_hashes)
    saved = steps(places.checkpoints, places.layout)
    notes += [_set_aside(path) for checkpoint in aside for path in saved[checkpoint.step]]
    write_config(text, run, run_dir, before)
    finished = not aside and is_finished(state, run)
    if finished:
        notes.append(f"{run.run.name} is finished: step {state.step} of {run.run.max_steps}")
    elif before is not None and before.run.max_steps != run.run.max_steps:
        notes.append(f"goes on to step {run.run.max_steps}; it was begun for {before.run.max_steps}")
    return Opened(run, run_dir, state, fresh=not state.attempts, finished=finished, notes=tuple(notes))


def absolute(run: RunSpec, run_dir: RunDir) -> RunSpec:
    """The run with every local path absolute. A name on the Hugging Face hub stays one."""
    sources = tuple(replace(source, path=_source_path(source)) for source in run.data.sources)
    return replace(
        run,
        run=replace(run.run, dir=str(run_dir.path.parent)),
        model=replace(run.model, path=_local(run.model.path)),
        tokenizer=replace(run.tokenizer, path=_local(run.tokenizer.path)),
        data=replace(run.data, sources=sources),
        server=None if run.server is None else _served(run.server),
    )


def _served(server: Server) -> Server:
    """Requests go on to call the model what the config calls it, wherever its folder is."""
    name = server.served_name or server.model
    return replace(server, model=_local(server.model) or server.model, served_name=name)


def _source_path(source: Source) -> str | None:
    """Files are always local, and their path may be a glob that exists as no file."""
    if source.kind == "files" and source.path is not None:
        return os.path.abspath(Path(source.path).expanduser())  # noqa: PTH100 - resolve() would follow links
    return _local(source.path)


def _local(path: str | None) -> str | None:
    if path is None:
        return None
    there = Path(path).expanduser()
    return os.path.abspath(there) if there.exists() else path  # noqa: PTH100 - resolve() would follow links


# --- what may not change between attempts ----------------------------------------------------------

_DATA_ORDER = "it decides which text comes at which step"
_WEIGHTS = "it decides the shape of the weights in the checkpoints"
_FIXED: tuple[tuple[str, str], ...] = (
    ("run.kind", "the checkpoints hold another kind of run"),
    ("run.seed", _DATA_ORDER),
    *(
        (f"model.{name}", _WEIGHTS)
        for name in ("path", "init", "layers", "hidden_size", "heads", "kv_heads", "head_dim")
    ),
    *((f"model.{name}", _WEIGHTS) for name in ("mlp_size", "tie_embeddings", "qk_norm")),
    *((f"model.{name}", "the weights were trained with it") for name in ("rope_theta", "norm_eps")),
    *((f"data.{name}", _DATA_ORDER) for name in ("sources", "sampling_probs", "ctx_tokens", "pack_buffer_docs")),
    *((f"tokenizer.{name}", "the weights were trained on its tokens") for name in ("path", "vocab_size")),
    ("batch.micro_batch", "gradients are summed in its portions, and a resume is exact"),
    ("batch.global_batch", _DATA_ORDER),
    ("eval.held_out_ratio", "text that was trained on would be held out, or the other way round"),
)


def _refuse_changes(before: RunSpec, after: RunSpec, run_dir: RunDir) -> None:
    """Everything that is not listed may change: max_steps, optim, schedule, parallel, checkpoint, eval, prime_train.

    Optimizer settings and the schedule are functions of the step: a change holds from the next attempt on.
    """
    old, new = _flat(before), _flat(after)
    changed = [(name, why) for name, why in _FIXED if old[name] != new[name]]
    if not changed:
        return
    told = "; ".join(f"{name} is {_said(new[name])}, the run was begun with {_said(old[name])}" for name, _ in changed)
    raise UserError(
        what=told,
        where=str(run_dir.config),
        why="; ".join(dict.fromkeys(why for _, why in changed)),
        fix=f"undo the change, or start another run with `--run-name {run_dir.path.name}-2`",
    )


def _flat(run: RunSpec) -> dict[str, Any]:
    """Dotted names to values, two levels deep. The global batch is what the three ways to give it come to."""
    tables: dict[str, Any] = {name: table for name, table in asdict(run).items() if isinstance(table, dict)}
    values = {f"{name}.{key}": value for name, table in tables.items() for key, value in table.items()}
    sources = tuple(", ".join(f"{key} {value!r}" for key, value in _set_keys(source)) for source in run.data.sources)
    return values | {"batch.global_batch": run.global_batch, "data.sources": "; ".join(sources)}


def _set_keys(source: Source) -> list[tuple[str, Any]]:
    return [(key, value) for key, value in asdict(source).items() if value is not None]


def _said(value: Any) -> str:
    return "unset" if value is None else value if isinstance(value, str) else repr(value)


def _set_aside(path: Path) -> str:
    names = chain([f"{path.name}.set_aside"], (f"{path.name}.set_aside.{number}" for number in count(2)))
    return f"{path.name} is newer than the step to resume from: kept as {set_aside(path, names).name}"
