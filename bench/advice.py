"""Follows the first advice for 30 runs that do not fit, and compares the result with a grid search.

    python bench/advice.py

Each run gets the first advice until it fits. The grid has every combination of the changes with every micro-batch, over
the same estimator, of the least intrusive kind with which any setting fits. Its sequences are as long as those of the
followed run, because tokens are faster in shorter ones. `slower` is the share of the fastest fitting setting's speed
that the followed run lacks; it is negative where the advice rounds numbers to keep longer sequences.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

import record

from prime_train.estimate.advice import advise_training, trainer_fit, trainer_speed
from prime_train.estimate.candidate_changes import (
    Assignments,
    CandidateChange,
    Kind,
    apply_changes,
    training_changes,
    value_of,
)
from prime_train.estimate.choose_changes import FitOf, SpeedOf
from prime_train.estimate.hardware import hardware_from_name
from prime_train.estimate.model.shape import shape_from_registry
from prime_train.spec import Batch, Data, Parallel, Precision, Run, RunSpec, Source, prime_rl_parts
from prime_train.spec.answers import replace_parts

MOST_STEPS, MOST_SLOWER = 3, 0.10
_PLAIN = RunSpec(run=Run(name="advised", max_steps=10), data=Data(sources=(Source(kind="python-stdlib"),)))
# (model, GPUs, tokens of a sequence, micro-batch)
_CASES = (
    ("Qwen/Qwen3-0.6B", "rtx-4090", 8192, 4),
    ("Qwen/Qwen3-1.7B", "rtx-4090", 8192, 4),
    ("Qwen/Qwen3-1.7B", "a100-40gb", 16384, 8),
    ("Qwen/Qwen3-4B", "h100-80gb", 16384, 4),
    ("Qwen/Qwen3-4B", "2xa100-80gb", 32768, 2),
    ("Qwen/Qwen3-8B", "2xh100-80gb", 8192, 4),
    ("Qwen/Qwen3-8B", "4xa100-80gb", 16384, 8),
    ("meta-llama/Llama-3.2-1B-Instruct", "rtx-5090", 16384, 4),
    ("meta-llama/Llama-3.1-8B-Instruct", "h200", 8192, 8),
    ("Qwen/Qwen3-32B", "8xh100-80gb", 8192, 4),
)

_RUN_TOML = (
    ("Qwen/Qwen3-0.6B", "rtx-4090", 4096, 16),
    ("Qwen/Qwen3-0.6B", "4xrtx-4090", 8192, 8),
    ("Qwen/Qwen3-0.6B", "l40s", 2048, 64),
    ("Qwen/Qwen3-1.7B", "a100-40gb", 1024, 32),
    ("Qwen/Qwen3-1.7B", "2xa100-40gb", 2048, 32),
    ("Qwen/Qwen3-1.7B", "8xrtx-4090", 2048, 12),
    ("Qwen/Qwen3-4B", "4xa100-80gb", 4096, 16),
    ("Qwen/Qwen3-4B", "h200", 4096, 24),
    ("meta-llama/Llama-3.2-1B-Instruct", "rtx-5090", 2048, 16),
    ("meta-llama/Llama-3.1-8B-Instruct", "8xh100-80gb", 4096, 16),
)


class Followed(NamedTuple):
    """One run: steps of advice until it fits (None: never), and the speed over that of the fastest of the grid."""

    name: str
    steps: int | None
    speed: float | None


def cases() -> Iterator[tuple[str, RunSpec, FitOf, SpeedOf]]:
    """Thirty runs: ten of prime-rl's SFT, ten recipes of Hugging Face's trainer, and ten of the bundled trainer."""
    for model, gpus, ctx_tokens, micro_batch in _CASES:
        hardware, shape = hardware_from_name(gpus), shape_from_registry(model)
        assert shape is not None
        count = hardware.gpus
        sft = prime_rl_parts.Finetune(
            ctx_tokens=ctx_tokens, batch_sequences=16 * count, micro_batch_sequences=micro_batch
        )
        recipe = prime_rl_parts.Recipe(
            program="hf",
            gpus=count,
            sharding="fsdp" if count > 1 else "none",
            micro_batch=4 * micro_batch,
            ctx_tokens=ctx_tokens,
            weight_dtype="fp32",
        )
        runs = (
            replace_parts(
                _PLAIN,
                launch=prime_rl_parts.LaunchPart(generation="2026-08"),
                trainer=prime_rl_parts.Trainer(head_chunk_tokens=8192),
                finetune=sft,
                deployment=prime_rl_parts.Deployment(train_gpus=count),
                format="prime-rl",
            ),
            dataclasses.replace(_PLAIN, recipe=recipe, format="recipe"),
        )
        for kind, run in zip(("prime-rl", "hf"), runs, strict=True):
            yield f"{kind} {model} {gpus}", run, trainer_fit(hardware, shape), trainer_speed(hardware, shape)
    for model, gpus, ctx_tokens, micro_batch in _RUN_TOML:
        hardware, shape = hardware_from_name(gpus), shape_from_registry(model)
        assert shape is not None
        run = dataclasses.replace(
            _PLAIN,
            batch=Batch(micro_batch=micro_batch),
            precision=Precision(compute="fp32"),
            parallel=Parallel(processes=hardware.gpus, dp_replicate=hardware.gpus),
            data=dataclasses.replace(_PLAIN.data, ctx_tokens=ctx_tokens),
        )
        yield f"run.toml {model} {gpus}", run, trainer_fit(hardware, shape), trainer_speed(hardware, shape)


def follow(name: str, run: RunSpec, fit_of: FitOf, speed_of: SpeedOf) -> Followed:
    """The run after its first advice, again and again, until it fits or nothing is advised."""
    changed, steps = run, 0
    while not fit_of(changed).fits:
        advice = advise_training(changed, fit_of, speed_of=speed_of)
        if not advice or steps > 2 * MOST_STEPS:
            return Followed(name, None, None)
        changed, steps = apply_changes(changed, advice[0].assignments), steps + 1
    fastest = fastest_of_grid(_with_length(run, changed), fit_of, speed_of)
    return Followed(name, steps, speed_of(changed) / fastest if fastest else None)


def fastest_of_grid(run: RunSpec, fit_of: FitOf, speed_of: SpeedOf) -> float:
    """Tokens per second of the fastest setting that fits, of the least kind that has one; 0 if there is none."""
    changes = list(training_changes(run))
    for kind in Kind:
        options = [
            [(), *_settings(run, change)]
            for change in changes
            if change.kind <= kind and not change.assignments[0][0].endswith("ctx_tokens")
        ]
        speeds = [speed_of(changed) for changed in _settings_that_fit(run, fit_of, options)]
        if speeds:
            return max(speeds)
    return 0.0


def _with_length(run: RunSpec, other: RunSpec) -> RunSpec:
    """The run with the length of sequences of another one."""
    fields = ("finetune.ctx_tokens", "recipe.ctx_tokens", "data.ctx_tokens")
    return apply_changes(run, tuple((field, value) for field in fields if (value := value_of(other, field))))


def _settings(run: RunSpec, change: CandidateChange) -> Iterator[Assignments]:
    """The values of a change: each micro-batch that divides the step, else the one value."""
    if change.least is None:
        yield change.assignments
        return
    (field, top), *rest = change.assignments
    assert isinstance(top, int)
    for value in range(1, top + 1):
        if value != value_of(run, field) and (not change.divides or change.divides % value == 0):
            yield ((field, value), *rest)


def _settings_that_fit(run: RunSpec, fit_of: FitOf, options: list[list[Assignments]]) -> Iterator[RunSpec]:
    for chosen in product(*options):
        changed = apply_changes(run, tuple(pair for assignments in chosen for pair in assignments))
        if fit_of(changed).fits:
            yield changed


def main() -> None:
    found = [follow(*case) for case in cases()]
    for one in found:
        speed = "-" if one.speed is None else f"{one.speed:.3f}"
        print(f"{one.name:55} {one.steps!s:>5} steps {speed:>6} of the fastest")
    steps = [one.steps for one in found if one.steps is not None]
    slower = [1 - one.speed for one in found if one.speed is not None]
    about = {"machine": record.machine(), "commit": record.commit(), "date": time.strftime("%Y-%m-%d", time.gmtime())}
    rows = [
        {"what": "runs that do not fit at first", "n": len(found), "unit": "runs", **about},
        {"what": "fit after the first advice, followed", "n": len(steps), "most": max(steps), "unit": "steps", **about},
        {
            "what": "slower than the fastest fitting setting of a grid",
            "n": len(slower),
            "median": round(statistics.median(slower), 4),
            "worst": round(max(slower), 4),
            "unit": "share of tokens per second",
            **about,
        },
    ]
    record.write("advice", rows)
    failed = [one for one in found if one.steps is None or one.steps > MOST_STEPS or not one.speed]
    failed += [one for one in found if one.speed is not None and one.speed < 1 - MOST_SLOWER]
    if failed:
        raise SystemExit(f"{len(failed)} of {len(found)} miss the bar")


if __name__ == "__main__":
    main()
