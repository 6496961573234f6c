"""Finds the machines of --gpus: named, found here, or the cheapest on which the whole run fits."""

from __future__ import annotations

import dataclasses
import re
import shutil
from functools import cache
from pathlib import Path

from prime_train.choose.choose import choose
from prime_train.choose.wishes import NO_LIMIT, GpuPlace, Wishes
from prime_train.cli.estimate import inputs
from prime_train.cli.estimate.inputs import EstimateOptions
from prime_train.cli.init.flags import CHEAPEST, HERE, Flags
from prime_train.core.errors import ExitCode, UserError
from prime_train.estimate.cost.offers import Judgement, OfferLimits, rank
from prime_train.estimate.cost.run_cost import shipped_rates
from prime_train.estimate.hardware import hardware_from_name
from prime_train.estimate.relayout import Impossible, work_of_run
from prime_train.estimate.values import Hardware
from prime_train.facts.earlier_saves import find_earlier_saves
from prime_train.prices import store
from prime_train.registry.gpus import gpu_id
from prime_train.views.run.runs import RUNS

_GPUS = re.compile(r"(?:(\d{1,4})x)?(?:(\d{1,4})x)?([A-Za-z].*)")
_MOST_CHEAP_GPUS = 8  # of an offer that is tried for --gpus cheapest


def find_named(flags: Flags) -> GpuPlace | None:
    """The machines of --gpus, named or found here; None for the cheapest. Raises UserError for no GPU."""
    if flags.gpus == CHEAPEST:
        return None
    if flags.gpus in (None, HERE):
        free, saves = shutil.disk_usage(Path.cwd()).free, find_earlier_saves(Path(RUNS))
        return GpuPlace(find_here(), 1, free, flags.per_hour, flags.spot, saves)
    hardware, machines = parse_place(flags.gpus or "")
    return GpuPlace(hardware, machines, interruptions_per_hour=flags.per_hour, is_spot=flags.spot)


def find_here() -> Hardware:
    """The GPUs of this machine. Raises UserError if none answers, or the registry has no such GPU."""
    try:
        return inputs.find_gpus(EstimateOptions(""))
    except UserError as error:
        fix = "--gpus 8xh100-80gb, or others that the run will have; --gpus cheapest finds some"
        raise UserError(error.what, "--gpus here", error.why, fix, error.exit_code) from None


def parse_place(text: str) -> tuple[Hardware, int]:
    """The GPUs of "1xrtx4090", "8xh100-80gb" or "2x8xh100", all of them, and the machines. Raises UserError."""
    found = _GPUS.fullmatch(text.strip())
    if found is None:
        return hardware_from_name(text), 1
    first, second, name = found.groups()
    machines, each = (int(first or 1), int(second)) if second else (1, int(first or 1))
    known = gpu_id(name.replace("-", " ")) or name
    try:
        hardware = hardware_from_name(f"{machines * each}x{name}")
    except UserError:
        hardware = hardware_from_name(f"{machines * each}x{known}")
    return hardware._replace(gpus_per_node=each if machines > 1 else hardware.gpus_per_node), machines


def find_cheapest(wishes: Wishes, flags: Flags) -> tuple[GpuPlace, str]:
    """The GPUs of the offer on which the whole run costs least, sized for each offer as for any other machine."""
    prices = store.load(store.today())

    def judge(gpu: str, count: int) -> Judgement | Impossible:
        hardware = hardware_from_name(f"{count}x{gpu}")
        try:
            chosen = choose(dataclasses.replace(wishes, place=GpuPlace(hardware), budget=NO_LIMIT))
        except UserError as error:
            return Impossible(error.what)
        time, run = chosen.estimate.time, chosen.reading.run
        assert time is not None
        assert run is not None
        need = max(role.memory.need.high for role in chosen.estimate.memory.roles) / 2**30
        work = work_of_run(run)
        return Judgement(chosen.estimate.chance, need, hardware.usable_bytes / 2**30, work, time.step_s)

    ranking = rank(prices, cache(judge), OfferLimits(None, flags.spot, gpus_max=_MOST_CHEAP_GPUS), shipped_rates())
    if not ranking.offers:
        raise UserError(
            what="no offer has GPUs on which it fits" if prices else "the price table is empty",
            where="--gpus cheapest",
            why="; ".join(f"{why} ({count})" for why, count in ranking.left_out[:2]) or "there is nothing to rank",
            fix="a smaller model, --lora, or --gpus with GPUs of yours",
            exit_code=ExitCode.FINDINGS,
        )
    best = ranking.offers[0]
    gpus = f"{best.gpus}x{best.price.gpu}"
    cost = f"{best.cost.usd.typical:.3g} USD ({best.cost.usd.low:.3g} to {best.cost.usd.high:.3g})"
    offer = f"{gpus}{' (spot)' if best.price.spot else ''} at {best.price.cloud}"
    place = GpuPlace(hardware_from_name(gpus), interruptions_per_hour=flags.per_hour, is_spot=best.price.spot)
    return place, f"cheapest: {offer}, {cost} for the whole run"
