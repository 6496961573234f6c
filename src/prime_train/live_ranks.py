"""How the ranks of a script stop, save and change at the same step.

Those of one machine agree without a collective: rank 0 writes down a step that no rank has reached. Those of several
machines agree through torch.distributed, which the script has imported. Standard library only, Python 3.9 or later.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from prime_train.live_checkpoint import write_whole
from prime_train.live_report import RankReport


def take(request: Path) -> bool:
    """Whether there is a request. Its file is removed, so that it is met once."""
    try:
        request.unlink()
    except OSError:
        return False
    return True


def saves_with_others(report: RankReport) -> bool:
    """Rank 0 writes down a step that no rank has reached; each rank saves after it, once."""
    # The step of the request before must lie so far back that every rank has passed it.
    ahead_steps = report.choose_last_step() - report.newest
    if report.rank == "0" and report.newest > report.planned_at + ahead_steps and report.save.exists():
        try:
            write_whole(report.save_at, str(report.newest + ahead_steps))
        except OSError:
            return False  # the next step tries again
        report.planned_at = report.newest + ahead_steps
        take(report.save)
    try:
        with report.save_at.open(encoding="utf-8") as file:
            at_step = int(file.read(20))
    except (OSError, ValueError):
        return False
    if at_step <= report.saved_at or report.newest < at_step:
        return False
    report.saved_at = at_step
    return True


def stops_with_others(report: RankReport) -> bool:
    """Rank 0 writes down a step that no rank has reached; each rank stops after it."""
    if report.rank == "0" and report.stop.exists() and not report.stop_at.exists():
        try:
            write_whole(report.stop_at, str(report.choose_last_step()))
        except OSError:
            return False  # the next step tries again; one rank alone never stops, because the others would wait for it
    try:
        with report.stop_at.open(encoding="utf-8") as file:
            return report.newest >= int(file.read(20))
    except (OSError, ValueError):
        return False


def least(version: int, world: str) -> int:
    """The least version of all ranks. A collective, where there are several and torch.distributed connects them."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return version if world == "1" else 0
    on_gpu = torch.distributed.get_backend() == "nccl"
    found = torch.tensor([version], dtype=torch.int64, device="cuda" if on_gpu else "cpu")
    torch.distributed.all_reduce(found, op=torch.distributed.ReduceOp.MIN)
    return int(found.item())


def spans_machines(world: str) -> bool:
    """Whether this machine has a part of the ranks, as torchrun counts them."""
    here = os.environ.get("LOCAL_WORLD_SIZE")
    return here is not None and here != world


def agree(wants: bool) -> bool:
    """Whether any rank wants it. A collective, so all ranks call it at the same step."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return wants
    on_gpu = torch.distributed.get_backend() == "nccl"
    flag = torch.tensor([wants], dtype=torch.int32, device="cuda" if on_gpu else "cpu")
    torch.distributed.all_reduce(flag, op=torch.distributed.ReduceOp.MAX)
    return bool(flag.item())
