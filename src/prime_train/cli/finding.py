"""Does the work of `prime-train find`: reads config or model, lays the run over the GPUs of each offer, ranks.

Prints nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

from prime_train import registry
from prime_train.cli import estimating
from prime_train.dialects import dialect
from prime_train.errors import ExitCode, UserError
from prime_train.estimate.estimate import estimate
from prime_train.estimate.hardware import hardware_from_entry
from prime_train.estimate.interruptions import shipped_rates
from prime_train.estimate.laid_out import Impossible, layout_settings, relayout, steps_of
from prime_train.estimate.offers import Judge, Judgement, Limits, Ranking, Refusal, rank
from prime_train.estimate.shape import ModelShape
from prime_train.prices.price import Price
from prime_train.spec import RunSpec
from prime_train.units import GIB

# What --model alone stands for: a fine-tuning of common size, in the words of prime-rl's sft.
_FINE_TUNING = """max_steps = 1000

[prime_train]
prime_rl = "2026-08"

[model]
name = "{model}"
seq_len = 4096

[data]
seq_len = 4096
batch_size = 64
micro_batch_size = 1

[ckpt]
interval = 100
"""
FINE_TUNING = "full fine-tuning with prime-rl's sft: 1,000 steps of 64 sequences of 4,096 tokens, a checkpoint each 100"


class Asked(NamedTuple):
    """What the command line asks for: a config, or a model alone."""

    config: str | None
    model: str | None
    limits: Limits
    model_config: str | None = None
    prices: str | None = None
    prime_rl: str | None = None
    offline: bool = False


class Found(NamedTuple):
    """The ranking, what it is of (in short, and in full), and the prices it was made from.

    `key` is what the user's file calls a field of the RunSpec.
    """

    name: str
    title: str
    is_config: bool
    ranking: Ranking
    prices: tuple[Price, ...]
    limits: Limits
    key: Callable[[str], str]


def found(asked: Asked) -> Found:
    """The offers on which the run fits, cheapest first. Raises UserError where a part of it cannot be had."""
    dearest = asked.limits.max_usd_per_hour
    if dearest is not None and not (math.isfinite(dearest) and dearest > 0):
        raise UserError(
            what=f"{dearest:g} USD an hour",
            where="--max-usd-per-hour",
            why="an offer costs more than nothing",
            fix="--max-usd-per-hour 20",
        )
    run, shape, title, key = _run(asked)
    prices = estimating.prices_of(_estimating(asked, ""))
    limits = asked.limits._replace(checkpoint_steps=run.checkpoint.interval_steps)
    name = asked.config or asked.model or title
    ranking = rank(prices, judge_of(run, shape), limits, shipped_rates())
    return Found(name, title, asked.config is not None, ranking, prices, limits, key)


def judge_of(run: RunSpec, shape: ModelShape) -> Judge:
    """Memory and time of the run, laid over so many GPUs of one type."""
    known = {gpu.id: gpu for gpu in registry.gpu_peaks()}

    @cache
    def judge(gpu: str, gpus: int) -> Judgement | Refusal:
        hardware = hardware_from_entry(known[gpu], gpus)
        laid = relayout(run, hardware)
        if isinstance(laid, Impossible):
            return Refusal(laid.why)
        try:
            reckoned = estimate(laid.run, hardware, shape)
        except UserError as error:
            return Refusal(f"{gpu}: {error.what}")
        if reckoned.time is None:
            return Refusal("it trains nothing, so it has no end to pay for")
        fullest = max(role.memory.needed_bytes for role in reckoned.memory.roles)
        steps = steps_of(reckoned.time.steps, laid)
        usable_gib, step_s = hardware.usable_bytes / GIB, reckoned.time.step_s
        return Judgement(reckoned.fits, fullest / GIB, usable_gib, steps, step_s, layout_settings(run, laid))

    return judge


def _run(asked: Asked) -> tuple[RunSpec, ModelShape, str, Callable[[str], str]]:
    """The run, its model, what to call it, and what its file calls the fields of a RunSpec."""
    if (asked.config is None) == (asked.model is None):
        raise UserError(
            what="a config or a model is wanted" if asked.config is None else "both a config and a model are given",
            where="prime-train find",
            why="the offers are looked for on which one run fits",
            fix="prime-train find run.toml, or prime-train find --model Qwen/Qwen3-8B",
        )
    if asked.config is not None:
        reading = estimating.reading_of(asked.config, asked.prime_rl)
        title = path = reading.document.path
    else:
        path, title = "sft.toml", f"{asked.model}: {FINE_TUNING}"
        reading = dialect.read(_FINE_TUNING.format(model=_quotable(asked.model or "")), path)
    run = estimating.run_of(reading)
    if not (run.is_native or run.recipe or run.trainer or run.finetune):
        raise UserError(
            what="it trains nothing",
            where=path,
            why="offers are ranked by the cost of a whole run, and a server has no end to pay for",
            fix=f"prime-train estimate {asked.config} --gpus 8xh100-80gb says on what it fits",
            exit_code=ExitCode.FINDINGS,
        )
    return run, estimating.model_of(run, reading, _estimating(asked, path)), title, reading.key


def _quotable(model: str) -> str:
    if model.strip() and model.isprintable() and not set(model) & set('"\\'):
        return model
    raise UserError(
        what="that is no name of a model",
        where="--model",
        why="a model is an id on the Hugging Face hub or a folder",
        fix="--model Qwen/Qwen3-8B",
    )


def _estimating(asked: Asked, path: str) -> estimating.Asked:
    return estimating.Asked(path, None, asked.model_config, None, asked.prices, asked.prime_rl, asked.offline)
