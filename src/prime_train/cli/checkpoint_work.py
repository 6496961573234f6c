"""What the commands that work on checkpoints share: the run held alone, the folders, a bar, what became of each."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from prime_train.checkpoints.layout import Checkpoint
    from prime_train.rundir import RunDir
    from prime_train.views.checkpoint_work import Worked

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h


def worked(found: "Checkpoint", work: "Callable[[Path], None]") -> "Worked":
    """Pack or restore one checkpoint; a damaged one is a result, so that the others are still done."""
    from prime_train.checkpoints import archive, packing_plan
    from prime_train.views.checkpoint_work import Worked

    began = time.perf_counter()
    try:
        work(found.path)
    except archive.DamagedError as error:
        return Worked(found.step, packing_plan.measure(found.path), problem=f"broken: {error}")
    took_s = time.perf_counter() - began
    return Worked(found.step, packing_plan.measure(found.path), took_s, lossy=packing_plan.is_lossy(found.path))


def complete(run_dir: "RunDir", step: int | None) -> "list[Checkpoint]":
    """The complete checkpoints, newest first; only that of `step` where it is named, UserError where it is not one."""
    from prime_train.checkpoints.layout import scan
    from prime_train.errors import UserError
    from prime_train.views.checkpoints import only

    if step is None:
        return [found for found in scan(run_dir.checkpoints) if found.complete]
    found = only(run_dir, step)
    if found.problem:
        raise UserError(
            what=f"the checkpoint of step {step} is not complete: {found.problem}",
            where=str(found.path),
            why="only what was saved whole is packed or restored",
            fix=f"prime-train ckpt list {run_dir.path.name}",
        )
    return [found]


def keep_freed_memory() -> None:
    """Let glibc keep what is freed: to fault it in again took a tenth of the CPU time (mallopt(3))."""
    import ctypes

    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    if mallopt is not None:
        mallopt(_M_TRIM_THRESHOLD, 2**28)
        mallopt(_M_MMAP_THRESHOLD, 2**25)


@contextmanager
def alone(run_dir: "RunDir") -> "Iterator[None]":
    """Hold the run: no trainer writes, deletes or loads its checkpoints meanwhile. UserError where one is alive."""
    from prime_train.errors import UserError
    from prime_train.supervise.lock import held, holder

    if found := holder(run_dir):
        raise UserError(
            what=f"the run is held by process {found.identity.pid} on {found.host}",
            where=str(run_dir.lock),
            why="its trainer writes, deletes and loads these checkpoints",
            fix=f"wait for its end, or `prime-train stop {run_dir.path.name}`",
        )
    with held(run_dir):
        yield


@contextmanager
def progress(size_bytes: int, label: str) -> "Iterator[Callable[[int], None]]":
    """A bar on a terminal, nothing elsewhere. The value is told how many bytes were worked on."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    with typer.progressbar(length=size_bytes, label=label, file=sys.stderr) as bar:
        yield bar.update
