"""Finds the run whose weights another run begins with, and gives that run its tokenizer. Reads no checkpoint."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from prime_train.checkpoints import layout
from prime_train.core import outside
from prime_train.core.errors import UserError
from prime_train.core.outside import MODEL_BYTES
from prime_train.core.rundir import RunDir
from prime_train.core.whole_folder import write_folder
from prime_train.spec import RunSpec
from prime_train.supervise.launch.run_directory import read_run_spec


def resolve(run: RunSpec, run_dir: RunDir, earlier: RunSpec | None) -> RunSpec:
    """The run with the directory of `model.init_from`, and with the tokenizer of that run unless the config names one.

    `earlier`: the run as its directory records it. A run that has begun keeps its answers, because the other run may
    be gone by then. Raises UserError.
    """
    name = run.model.init_from
    if name is None:
        return run
    places = [run_dir.path.parent / name, Path(name).expanduser().absolute()]
    if earlier is not None and earlier.model.init_from in {str(place.resolve()) for place in places}:
        return _with(run, str(earlier.model.init_from), earlier.model.init_step, earlier.tokenizer.path)
    found = next((place.resolve() for place in places if RunDir(place).resolved.is_file()), None)
    if found is None:
        raise UserError(
            what=f"there is no run {name!r}",
            where="model.init_from",
            why=f"neither {places[0]} nor {places[1]} is the directory of a run",
            fix="name a run that `prime-train status` lists, or the directory of one",
        )
    if found == run_dir.path:
        raise UserError(
            what="a run cannot begin with its own weights",
            where="model.init_from",
            why="the same name resumes a run from its newest checkpoint",
            fix="give the run another name, or take model.init_from out",
        )
    source = read_run_spec(RunDir(found))
    named = source.tokenizer.path if source is not None else None
    kept = str(run_dir.tokenizer) if RunDir(found).tokenizer.is_dir() else None
    return _with(run, str(found), _choose_step(RunDir(found), run.model.init_step), named or kept)


def _choose_step(source: RunDir, step: int | None) -> int:
    """The step of the checkpoint to begin with. It is chosen once, because the other run may go on."""
    chosen = layout.newest_complete(source.checkpoints) if step is None else layout.inspect(source.checkpoint(step))
    if chosen is None or not chosen.complete:
        which = "no complete checkpoint" if chosen is None else f"no complete checkpoint of step {step}"
        raise UserError(
            what=f"the run {source.path.name} has {which}",
            where="model.init_from" if step is None else "model.init_step",
            why="the weights to begin with are read from one" + (f": {chosen.problem}" if chosen else ""),
            fix=f"prime-train ckpt list {source.path.name} shows what there is",
        )
    return chosen.step


def _with(run: RunSpec, init_from: str, step: int | None, tokenizer: str | None) -> RunSpec:
    model = replace(run.model, init_from=init_from, init_step=run.model.init_step or step)
    return replace(run, model=model, tokenizer=replace(run.tokenizer, path=run.tokenizer.path or tokenizer))


def take_tokenizer(run: RunSpec, run_dir: RunDir) -> None:
    """Copy the trained tokenizer of the other run, so that this one does not need its directory later."""
    if run.model.init_from is None or run.tokenizer.path != str(run_dir.tokenizer):
        return
    source = RunDir(Path(run.model.init_from)).tokenizer
    with write_folder(run_dir.tokenizer, replaces=True) as beside:
        for file in sorted(source.iterdir()):
            (beside / file.name).write_bytes(outside.read_bytes(file, MODEL_BYTES, source))
