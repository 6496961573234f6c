"""Writes a checkpoint in the form that other programs read: the child of `ckpt to-hf` and `ckpt consolidate`.

Reads the request as JSON from its input, and prints a JSON object per line: {"phase", "total_bytes"} begins a phase,
{"bytes"} counts in it, and {"result"} or {"error"} is the last. Changes nothing in the checkpoint but its mark of use.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from prime_train.checkpoints import in_use, layout
from prime_train.checkpoints.dcp import UnlikeError
from prime_train.core.errors import UNWRITABLE, ExitCode, UserError, explain_disk_error
from prime_train.core.rundir import RunDir
from prime_train.core.units import format_bytes
from prime_train.core.whole_folder import write_folder
from prime_train.spec.audio import Audio
from prime_train.trainer.attempt import read_run
from prime_train.trainer.build import load_config, load_run_tokenizer
from prime_train.trainer.model import hf
from prime_train.trainer.saves.dcp_reader import SavedTensors
from prime_train.trainer.saves.export import DTYPES, describe, open_rows
from prime_train.trainer.saves.tensor_files import FileTensor, name_file, plan_files, write_files

_ROOM_BYTES = 64 * 2**20  # for config, tokenizer and the file system itself
_ENCODER = "encoder."  # in the checkpoints that a run on audio saves
_REPORT_BYTES = 16 * 2**20  # between two lines of progress


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversionRequest:
    """`to`: "hf" = a Hugging Face folder, "tensors" = the tensors of the checkpoint under their own names."""

    to: str
    run_dir: str
    step: int
    output: str
    dtype: str | None = None  # of "hf"; None = checkpoint.export_dtype
    max_shard_bytes: int = 5 * 10**9
    optimizer: bool = True  # of "tensors": the optimizer's state, too
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class _Plan:
    """The tensor files to write, by stem, and what fills a folder with them and the rest."""

    files: dict[str, list[list[FileTensor]]]
    fill: Callable[[Path], None]

    @property
    def size_bytes(self) -> int:
        return sum(tensor.size_bytes for files in self.files.values() for file in files for tensor in file)

    def names(self) -> list[str]:
        counts = {stem: len(files) for stem, files in self.files.items()}
        return [name_file(stem, number, count) for stem, count in counts.items() for number in range(count)]


def main() -> int:
    request = ConversionRequest(**json.load(sys.stdin))
    try:
        result = convert(request)
    except UserError as error:
        _print({"error": error.parts() | {"exit_code": int(error.exit_code)}})
        return error.exit_code
    _print({"result": result})
    return ExitCode.OK


def convert(request: ConversionRequest) -> dict[str, Any]:
    """Write the folder `request.output`; returns what it holds. A UserError leaves nothing of it."""
    run_dir, output = RunDir(Path(request.run_dir)), Path(request.output)
    folder = run_dir.checkpoint(request.step)
    if user := in_use.marked_by(folder):
        raise _busy(folder, f"{user} uses it")
    with _in_use(folder):
        _check(folder, hashes=not request.dry_run)
        entries = layout.entries(folder)
        try:
            saved = SavedTensors(folder)
            plan = _plan_hf(request, run_dir, saved) if request.to == "hf" else _plan_tensors(request, saved)
            _check_room(output, plan.size_bytes)
            if not request.dry_run:
                _print({"phase": "writing", "total_bytes": plan.size_bytes})
                with _alone_in(output.parent), write_folder(output, replaces=False) as beside:
                    plan.fill(beside)
                    if layout.entries(folder) != entries:
                        raise _busy(folder, "another process has packed or restored it meanwhile")
        except FileExistsError as error:
            raise _exists(output) from error
        except OSError as error:
            if error.errno not in UNWRITABLE:
                raise
            found = explain_disk_error(error.errno or 0, output.parent)
            raise UserError(found.what, str(output), found.why, found.fix, ExitCode.OUT_OF_REACH) from error
        except (UnlikeError, ValueError) as error:
            raise _unusable(folder, str(error)) from error
    return {
        "step": request.step,
        "path": request.output,
        "files": plan.names(),
        "tensors": sum(len(file) for files in plan.files.values() for file in files),
        "tensor_bytes": plan.size_bytes,
    }


def _plan_hf(request: ConversionRequest, run_dir: RunDir, saved: SavedTensors) -> _Plan:
    run = read_run(run_dir)
    if run.audio is not None:
        return _plan_encoder(run.audio, DTYPES[request.dtype or run.checkpoint.export_dtype], saved)
    tokenizer = load_run_tokenizer(run, run_dir)
    config = load_config(run, tokenizer)
    described = replace(describe(run, tokenizer), max_shard_bytes=request.max_shard_bytes)
    if request.dtype is not None:
        described = replace(described, dtype=DTYPES[request.dtype])
    tensors = hf.list_tensors(config, described.dtype)
    rows = open_rows(run, config, saved)
    done = _Progress()

    def counted(name: str, start: int, stop: int) -> Tensor | None:
        piece = rows(name, start, stop)
        done.add(0 if piece is None else piece.numel() * described.dtype.itemsize)
        return piece

    return _Plan(
        {hf.STEM: plan_files(tensors, described.max_shard_bytes)},
        lambda folder: hf.write_content(folder, config, counted, described),
    )


def _plan_encoder(audio: Audio, dtype: torch.dtype, saved: SavedTensors) -> _Plan:
    """An encoder in one file, because it is small."""
    from prime_train.trainer.audio.learning.encoder_folder import WEIGHTS, write_encoder

    tensors = [one._replace(dtype=dtype) for one in saved.list_tensors(f"model.{_ENCODER}")]

    def fill(folder: Path) -> None:
        names = [f"{_ENCODER}{one.name}" for one in tensors]
        write_encoder(folder, {name: saved.load(f"model.{name}") for name in names}, audio, dtype)

    return _Plan({Path(WEIGHTS).stem: [tensors]}, fill)


def _plan_tensors(request: ConversionRequest, saved: SavedTensors) -> _Plan:
    stems = ("model", "optimizer") if request.optimizer else ("model",)
    found = {stem: saved.list_tensors(f"{stem}.") for stem in stems}
    files = {stem: plan_files(tensors, request.max_shard_bytes) for stem, tensors in found.items()}
    done = _Progress()

    def pieces(stem: str) -> Iterator[Tensor]:
        for tensor in found[stem]:
            yield saved.load(f"{stem}.{tensor.name}")
            done.add(tensor.size_bytes)

    def fill(folder: Path) -> None:
        for stem, planned in files.items():
            write_files(folder, stem, planned, pieces(stem))
        position = {name: json.loads(saved.load_text(name)) for name in saved.list_texts()}
        (folder / "training.json").write_text(json.dumps({"version": 1, "step": request.step} | position, indent=1))

    return _Plan(files, fill)


class _Progress:
    """Prints the number of bytes from time to time."""

    def __init__(self) -> None:
        self._pending_bytes = 0

    def add(self, done_bytes: int) -> None:
        self._pending_bytes += done_bytes
        if self._pending_bytes >= _REPORT_BYTES:
            _print({"bytes": self._pending_bytes})
            self._pending_bytes = 0


def _print(line: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


@contextmanager
def _in_use(folder: Path) -> Iterator[None]:
    """Protect the checkpoint from deletion and packing. One on a read-only disk cannot change and needs no mark."""
    with ExitStack() as marked:
        with suppress(OSError):
            marked.enter_context(in_use.using(folder))
        yield


@contextmanager
def _alone_in(parent: Path) -> Iterator[None]:
    """Let one process at a time write folders below `parent`. The kernel drops the lock with the process."""
    parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise UserError(
            what="another process writes a folder there",
            where=str(parent),
            why="both could write the same files",
            fix="wait for its end, or choose another folder with --output",
            exit_code=ExitCode.OUT_OF_REACH,
        ) from None
    finally:
        os.close(descriptor)


def _check(folder: Path, *, hashes: bool) -> None:
    """UserError where the checkpoint is incomplete or, with `hashes`, not as it was saved. Reads every byte then."""
    done = _Progress()
    if hashes:
        _print({"phase": "checking", "total_bytes": layout.inspect(folder).size_bytes})
    problem = layout.problem(folder, on_read=done.add if hashes else None)
    if problem:
        raise _unusable(folder, problem)


def _check_room(output: Path, needed_bytes: int) -> None:
    if os.path.lexists(output):
        raise _exists(output)
    parent = next(folder for folder in output.parents if folder.is_dir())
    free_bytes = shutil.disk_usage(parent).free
    if free_bytes < needed_bytes + _ROOM_BYTES:
        raise UserError(
            what=f"it needs {format_bytes(needed_bytes)} and the disk has {format_bytes(free_bytes)} free",
            where=str(output),
            why="nothing is written, because the folder would not be complete",
            fix="free space, or choose another disk with --output, or half the size with --dtype bf16",
            exit_code=ExitCode.OUT_OF_REACH,
        )


def _exists(output: Path) -> UserError:
    fix = "delete or rename it, or choose another folder with --output"
    return UserError("it exists already", str(output), "a folder that exists is never replaced", fix)


def _busy(folder: Path, what: str) -> UserError:
    return UserError(
        what=what,
        where=str(folder),
        why="its files change while they are read",
        fix="repeat the command in a while, or choose another checkpoint with --step",
        exit_code=ExitCode.OUT_OF_REACH,
    )


def _unusable(folder: Path, problem: str) -> UserError:
    return UserError(
        what=f"{folder.name} cannot be read: {problem}",
        where=str(folder),
        why="only a complete checkpoint whose bytes are as they were saved has the weights of its step",
        fix="choose another one with --step: prime-train ckpt list shows them, ckpt verify checks them",
        exit_code=ExitCode.FINDINGS,
    )


if __name__ == "__main__":
    torch.set_num_threads(1)  # it copies, and computes nothing
    sys.exit(main())
