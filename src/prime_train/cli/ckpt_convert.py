"""`prime-train ckpt to-hf` and `ckpt consolidate`: a checkpoint in the form that other programs read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from prime_train.checkpoints.layout import SavedCheckpoint
from prime_train.cli.terminal.child import run_child
from prime_train.cli.terminal.options import AsJson, NoColor, RunName
from prime_train.cli.terminal.output import print_json
from prime_train.core.errors import UserError
from prime_train.core.rundir import RunDir
from prime_train.core.units import format_bytes
from prime_train.programs import recorded
from prime_train.spec.answers import trains
from prime_train.supervise.processes.lock import check_folders
from prime_train.views.run import checkpoints
from prime_train.views.run.runs import find
from prime_train.views.run.status import fold_events

_CHILD = "prime_train.trainer.saves.convert_checkpoint"
_GB = 10**9
Step = Annotated[
    int | None,
    typer.Option("--step", metavar="N", min=1, help="The checkpoint of this step. Default: the newest complete one."),
]
Output = Annotated[
    Path | None,
    typer.Option("--output", metavar="DIR", help="The new folder. Default: RUN/exports/...", show_default=False),
]
MaxShardGb = Annotated[float, typer.Option("--max-shard-gb", min=0.001, help="Largest file, in 10^9 bytes.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be written; write nothing.")]


def to_hf(
    run: RunName,
    step: Step = None,
    dtype: Annotated[
        Literal["bf16", "fp32"] | None,
        typer.Option("--dtype", help="Type of the exported weights. Default: checkpoint.export_dtype."),
    ] = None,
    max_shard_gb: MaxShardGb = 5.0,
    output: Output = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    _no_color: NoColor = False,
) -> None:
    """Write a Hugging Face folder from any complete checkpoint, also of a run that is live, stopped or failed.

    The folder is that of checkpoint.final = "hf", byte for byte. The checkpoint may be sharded or packed: its bytes are
    compared with their SHA-256, and its files stay as they are. Needs memory for the largest tensor.

    Examples:

      prime-train ckpt to-hf quickstart

      prime-train ckpt to-hf quickstart --step 500 --dtype bf16 --output ./model
    """
    name = f"hf-step_{{step}}{f'-{dtype}' if dtype else ''}"
    request = {"to": "hf", "dtype": dtype, "max_shard_bytes": round(max_shard_gb * _GB), "dry_run": dry_run}
    _convert(request | _place(run, step, output, name), as_json=as_json)


def consolidate(
    run: RunName,
    step: Step = None,
    optimizer: Annotated[
        bool, typer.Option("--optimizer/--model-only", help="With or without the optimizer's state.")
    ] = True,
    max_shard_gb: MaxShardGb = 5.0,
    output: Output = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    _no_color: NoColor = False,
) -> None:
    """Write the tensors of a checkpoint whole, as safetensors, for programs that do not read torch's sharded format.

    A resume never needs it: a run continues from its checkpoints on any number of processes.

    Examples:

      prime-train ckpt consolidate quickstart --model-only

      prime-train ckpt consolidate quickstart --step 500 --output ./tensors
    """
    name = f"tensors-step_{{step}}{'' if optimizer else '-model'}"
    size_bytes = round(max_shard_gb * _GB)
    request = {"to": "tensors", "optimizer": optimizer, "max_shard_bytes": size_bytes, "dry_run": dry_run}
    _convert(request | _place(run, step, output, name), as_json=as_json)


def _place(run: str, step: int | None, output: Path | None, name: str) -> dict[str, Any]:
    """The checkpoint to read and the folder to write: `output`, else `name` with the step. Raises UserError."""
    run_dir = find(run, Path.cwd())
    chosen = _choose(run_dir, step)
    folder = output or run_dir.exports / name.format(step=chosen.step)
    if folder.is_relative_to(run_dir.path):
        check_folders(run_dir)
    return {"run_dir": str(run_dir.path), "step": chosen.step, "output": str(folder.expanduser().absolute())}


def _convert(request: dict[str, Any], *, as_json: bool) -> None:
    result = run_child(_CHILD, request)
    if as_json:
        document = {"version": 1, "run": Path(request["run_dir"]).name, "dry_run": request["dry_run"]} | result
        print_json(document)
        return
    files = f"{len(result['files'])} file{'s' * (len(result['files']) > 1)}"
    size = format_bytes(result["tensor_bytes"])
    would = "would be" if request["dry_run"] else "are"
    typer.echo(f"{result['tensors']} tensors of step {result['step']}, {size} in {files}, {would} in {result['path']}")


def _choose(run_dir: RunDir, step: int | None) -> SavedCheckpoint:
    """The checkpoint of `step`, or the newest one that a resume would load. Raises UserError."""
    program, run = recorded(run_dir)
    if not program.keeps_hashes or not trains(run):
        raise UserError(
            what=f"the checkpoints of {program.title} are not converted",
            where=str(run_dir.path),
            why="only the bundled trainer's have a manifest with the hash of every file",
            fix="take the trainer's own export: prime-rl has weights/step_N, a script has save_pretrained",
        )
    if step is not None:
        chosen = checkpoints.find_checkpoint(run_dir, step)
        if chosen.problem:
            raise _incomplete(run_dir, f"the checkpoint of step {step} is not complete: {chosen.problem}")
        return chosen
    unreadable = fold_events(run_dir).unreadable
    found = [one for one in checkpoints.saved(run_dir) if one.complete and one.step not in unreadable]
    if not found:
        raise _incomplete(run_dir, "the run has no complete checkpoint")
    return found[0]


def _incomplete(run_dir: RunDir, what: str) -> UserError:
    return UserError(
        what=what,
        where=str(run_dir.checkpoints),
        why="only a complete checkpoint has all weights of its step",
        fix=f"prime-train ckpt list {run_dir.path.name} shows what there is",
    )
