"""Finds the GPUs by which a run costs: those that rank 0 reported, or that were seen before. Writes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from prime_train.core.outside import RECORD_BYTES, read_json, read_text
from prime_train.core.rundir import RunDir
from prime_train.events import TrainerStarted

if TYPE_CHECKING:
    from prime_train.spec import RunSpec


class UsedGpus(NamedTuple):
    """The GPUs of a run, on all machines: the name of their type, and how many."""

    device: str
    number: int


def find_gpus(
    run_dir: RunDir, started: TrainerStarted | None, config: Mapping[str, Any], run: RunSpec | None = None
) -> UsedGpus | None:
    """What rank 0 reported, else the GPUs that were seen before the start of another program; None if not known.

    `started`: by rank 0, if it has reported. `config`: the document of resolved.json. `run`: its RunSpec, where the
    caller has it.
    """
    if started is not None:
        is_served = config.get("server") or config.get("inference")
        return None if is_served else UsedGpus(started.device, started.world_size)
    if not (config.get("command") or config.get("prime_rl") or config.get("launch")):
        return None
    with suppress(OSError, ValueError, KeyError, TypeError):
        seen = [str(gpu["name"]) for gpu in read_json(run_dir.facts, RECORD_BYTES, run_dir.path)["gpus"]["devices"]]
        count = _count_gpus(run or _read_run(run_dir), len(seen)) if len(set(seen)) == 1 else None
        return None if count is None else UsedGpus(seen[0], count)
    return None


def _read_run(run_dir: RunDir) -> RunSpec:
    from prime_train.spec import from_json  # here, because pydantic is for runs of other programs alone

    return from_json(read_text(run_dir.resolved, RECORD_BYTES, run_dir.path))


def _count_gpus(run: RunSpec, seen: int) -> int | None:
    """The GPUs of the config, on all machines; None if which of those that were seen are used is not in it."""
    from prime_train.spec.answers import prime_rl_of, server_gpus, shares_gpus, train_gpus

    if run.command is not None:  # one process may use any number of GPUs
        return seen * run.parallel.machines if run.command.processes == seen else None
    trained, served = train_gpus(run), server_gpus(run)
    if trained is None:
        return seen if seen == 1 else None
    deployment = prime_rl_of(run).deployment
    if deployment is not None and shares_gpus(run):
        return len({*(deployment.train_gpu_ids or ()), *(deployment.infer_gpu_ids or ())})
    return trained + served
