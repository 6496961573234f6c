"""Computes what a run has cost so far: hours times GPUs times prices. Writes nothing.

No price is guessed: who rented which machine is in no run directory, so the cost is an interval over all offers for the
GPU, on demand. It is not known for a card without a price, for a run whose servers had other GPUs, for one whose first
attempts the state does not hold, and for a command that may have used a part of the GPUs.
"""

from __future__ import annotations

from functools import cache

from prime_train.core.errors import UserError
from prime_train.estimate.values import Interval
from prime_train.supervise.core.state import State
from prime_train.supervise.services.used_gpus import UsedGpus


def usd_so_far(state: State, gpus: UsedGpus | None, now_s: float | None) -> Interval | None:
    """USD for all attempts; None if it is not known. `now_s`: when the live attempt ends, None if there is none."""
    hours = worked_hours(state, now_s)
    per_hour = None if gpus is None or hours is None else _usd_per_gpu_hour(gpus.device)
    if gpus is None or hours is None or per_hour is None:
        return None
    gpu_hours = hours * gpus.number
    return Interval(per_hour.low * gpu_hours, per_hour.typical * gpu_hours, per_hour.high * gpu_hours)


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
