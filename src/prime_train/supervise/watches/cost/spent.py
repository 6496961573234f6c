"""Computes what a run has cost so far: hours times GPUs times prices. Writes nothing.

No price is guessed: who rented which machine is in no run directory, so the cost is an interval over all offers for the
GPU, on demand. It is not known for a card without a price, for a run whose servers had other GPUs, for one whose first
attempts the state does not hold, and for a command that may have used a part of the GPUs.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from prime_train.core.errors import UserError
from prime_train.core.outside import RECORD_BYTES, read_json, read_text
from prime_train.core.rundir import RunDir
from prime_train.estimate.values import Interval
from prime_train.supervise.core.state import State

if TYPE_CHECKING:
    from prime_train.spec import RunSpec


class UsedGpus(NamedTuple):
    """The GPUs of a run, on all machines: the name of their type, and how many."""

    device: str
    number: int


def usd_so_far(state: State, gpus: UsedGpus | None, now_s: float | None) -> Interval | None:
    """USD for all attempts; None if it is not known. `now_s`: when the live attempt ends, None if there is none."""
    hours = worked_hours(state, now_s)
    per_hour = None if gpus is None or hours is None else _usd_per_gpu_hour(gpus.device)
    if gpus is None or hours is None or per_hour is None:
        return None
    gpu_hours = hours * gpus.number
    return Interval(per_hour.low * gpu_hours, per_hour.typical * gpu_hours, per_hour.high * gpu_hours)


def find_gpus(run_dir: RunDir, state: State, config: Mapping[str, Any], run: RunSpec | None = None) -> UsedGpus | None:
    """What rank 0 reported, else the GPUs that were seen before the start of another program; None if not known.

    `config`: the document of resolved.json. `run`: its RunSpec, where the caller has it.
    """
    if state.started is not None:
        is_served = config.get("server") or config.get("inference")
        return None if is_served else UsedGpus(state.started.device, state.started.world_size)
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


def worked_hours(state: State, now_s: float | None) -> float | None:
    """Hours in all attempts, from launch to end; None if one is not known."""
    if not state.attempts or len(state.attempts) != state.attempt_number:
        return None
    hours = 0.0
    for attempt in state.attempts:
        # A supervisor that was killed wrote no end, so the last step is the last sign of its attempt.
        is_last = attempt is state.attempts[-1]
        ended_s = attempt.ended_s or ((now_s or state.progress_s) if is_last else None)
        # When an attempt ended that a later supervisor found dead is not known.
        is_found_dead = attempt.ended_s is not None and attempt.returncode is None
        if attempt.launched_s is None or ended_s is None or is_found_dead:
            return None
        hours += max(0.0, ended_s - attempt.launched_s) / 3600
    return hours


@cache
def _usd_per_gpu_hour(device: str) -> Interval | None:
    """The prices in all offers for a GPU on demand; None for a CPU and for a GPU without an offer."""
    from prime_train.estimate.cost.run_cost import price_interval  # these here, because most runs are on one device
    from prime_train.prices import store
    from prime_train.registry.gpus import gpu_peak

    gpu = gpu_peak(device)
    if gpu is None:
        return None
    try:
        table = store.load(store.today())
    except UserError:  # the user's own table is damaged: `prices show` explains it
        return None
    usd = [price.usd_per_gpu_hour for price in table if price.gpu == gpu.id and not price.spot]
    return price_interval(usd) if usd else None
