"""Forty combinations of task, model, GPUs and environment, and a grid search over the estimator for each."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

from prime_train.choose.choose import ChosenConfig, choose
from prime_train.choose.wishes import ChosenData, GpuPlace, Task, Wishes
from prime_train.choose.workload import find_workload
from prime_train.core.errors import UserError
from prime_train.estimate.candidate_changes import Assignments, apply_changes
from prime_train.estimate.estimate import estimate
from prime_train.estimate.hardware import hardware_from_name
from prime_train.estimate.memory.roles import memory_of
from prime_train.estimate.model.shape import shape_from_registry
from prime_train.spec import RunSpec
from prime_train.spec.answers import global_batch, rollouts_of


class Combination(NamedTuple):
    task: Task
    model: str
    gpus: str
    env: str = ""


_SMALL, _MIDDLE, _LARGE = "Qwen/Qwen3-0.6B", "Qwen/Qwen3-4B", "meta-llama/Llama-3.1-8B-Instruct"
COMBINATIONS = (
    Combination("pretrain", _SMALL, "1xrtx-4090"),
    Combination("pretrain", _SMALL, "2xrtx-4090"),
    Combination("pretrain", _SMALL, "1xa100-40gb"),
    Combination("pretrain", "Qwen/Qwen3-1.7B", "1xh100-80gb"),
    Combination("pretrain", "Qwen/Qwen3-1.7B", "8xa100-40gb"),
    Combination("pretrain", _MIDDLE, "8xh100-80gb"),
    Combination("pretrain", _LARGE, "8xh200"),
    Combination("pretrain", "meta-llama/Llama-3.2-1B", "4xl40s"),
    Combination("pretrain", "Qwen/Qwen2.5-0.5B", "8xrtx-4090"),
    Combination("pretrain", "Qwen/Qwen3-30B-A3B", "8xb200"),
    Combination("sft", _SMALL, "1xrtx-3090"),
    Combination("sft", _SMALL, "1xl4"),
    Combination("sft", "Qwen/Qwen3-1.7B", "1xrtx-4090"),
    Combination("sft", _MIDDLE, "1xa100-80gb"),
    Combination("sft", _MIDDLE, "1xh100-80gb"),
    Combination("sft", _MIDDLE, "2xh100-80gb"),
    Combination("sft", _LARGE, "1xh200"),
    Combination("sft", _LARGE, "8xa100-80gb"),
    Combination("sft", _LARGE, "4xh100-80gb"),
    Combination("sft", "Qwen/Qwen3-32B", "8xh100-80gb"),
    Combination("sft", "meta-llama/Llama-3.1-70B-Instruct", "8xh200"),
    Combination("sft", "Qwen/Qwen3-30B-A3B", "8xh100-80gb"),
    Combination("sft", "Qwen/Qwen2.5-7B-Instruct", "2xrtx-6000-ada"),
    Combination("sft", "meta-llama/Llama-3.2-3B-Instruct", "1xl40s"),
    Combination("rl", _SMALL, "1xrtx-4090", "reverse-text"),
    Combination("rl", _SMALL, "1xrtx-3090", "sort-digits"),
    Combination("rl", _SMALL, "1xh100-80gb", "calculator"),
    Combination("rl", _SMALL, "2xrtx-4090", "gsm8k"),
    Combination("rl", "Qwen/Qwen3-1.7B", "1xh100-80gb", "reverse-text"),
    Combination("rl", "Qwen/Qwen3-1.7B", "2xa100-80gb", "wordle"),
    Combination("rl", "Qwen/Qwen3-1.7B", "4xh100-80gb", "hendrycks-math"),
    Combination("rl", _MIDDLE, "1xrtx-4090", "reverse-text"),
    Combination("rl", _MIDDLE, "1xh100-80gb", "reverse-text"),
    Combination("rl", _MIDDLE, "2xh100-80gb", "gsm8k"),
    Combination("rl", _MIDDLE, "8xh100-80gb", "math-python"),
    Combination("rl", _LARGE, "8xh100-80gb", "calculator"),
    Combination("rl", _LARGE, "8xh200", "deepcoder"),
    Combination("rl", "Qwen/Qwen3-8B", "4xh200", "wiki-search"),
    Combination("rl", "Qwen/Qwen3-32B", "8xh200", "gsm8k"),
    Combination("rl", "Qwen/Qwen2.5-1.5B-Instruct", "1xl40s", "reverse-text"),
)


def wish(combination: Combination, **more: object) -> Wishes:
    """The wishes of a combination, with the trainers that `init` tries where no prime-rl is installed."""
    shape = shape_from_registry(combination.model)
    assert shape is not None
    generation = "2026-01" if combination.gpus.startswith("1x") else "2026-08"
    answers: dict[str, object] = {
        "task": combination.task,
        "name": "a-run",
        "model": combination.model,
        "shape": shape,
        "place": GpuPlace(hardware_from_name(combination.gpus)),
        "trainers": ("bundled", generation) if combination.task == "rl" else ("bundled",),
        "data": None if combination.task == "rl" else ChosenData("files", "data/*.jsonl"),
        "workload": find_workload(combination.env) if combination.env else None,
    }
    return Wishes(**answers | more)  # type: ignore[arg-type]


def choose_for(combination: Combination) -> tuple[Wishes, ChosenConfig]:
    wishes = wish(combination)
    return wishes, choose(wishes)


def find_fastest(wishes: Wishes, run: RunSpec, *, is_fine: bool) -> float:
    """Seconds of the fastest step of a grid of layouts and sizes that fit, without head-room, for the same training."""
    hardware, shape = wishes.place.hardware, wishes.shape
    fastest, too_large = float("inf"), set[Assignments]()
    for assignments in _grid(run, hardware.gpus, is_fine):
        changed = apply_changes(run, assignments)
        layout = tuple(one for one in assignments if one[0] != "batch.micro_batch")
        if layout in too_large:  # the micro-batches come in their order, and a larger one frees no memory
            continue
        if not memory_of(changed, hardware, shape)[0].fits:
            too_large.add(layout)
            continue
        try:
            time = estimate(changed, hardware, shape).time
        except UserError:
            continue
        if time is not None and (rollouts_of(run) is None or time.rollouts is not None):
            fastest = min(fastest, time.step_s.typical)
    return fastest


def _grid(run: RunSpec, gpus: int, is_fine: bool) -> Iterator[Assignments]:
    if run.prime_rl is not None:
        yield from _grid_of_prime_rl(gpus)
        return
    shared = [n / 20 for n in (range(3, 18, 2) if is_fine else (4, 8, 12))]
    for trained, served in _splits(run, gpus):
        fractions: list[float] = [0.9] if trained + served <= gpus else shared
        shards = [count for count in range(1, trained + 1) if trained % count == 0]
        each = global_batch(run) // trained
        batches = [size for size in (1, 2, 4, 8, 16, 32, 64) if each % size == 0]
        recomputes = ("none", "selective", "full")
        for shard, recompute, batch in product(shards, recomputes, batches):
            layout: Assignments = (
                ("parallel.processes", trained),
                ("parallel.dp_shard", shard),
                ("model.recompute", recompute),
                ("batch.micro_batch", batch),
            )
            if not served:
                yield layout
                continue
            for fraction in fractions:
                yield (*layout, ("inference.tensor_parallel", served), ("inference.gpu_memory_fraction", fraction))


def _splits(run: RunSpec, gpus: int) -> Iterator[tuple[int, int]]:
    if run.inference is None:
        yield gpus, 0
        return
    for trained, served in product(range(1, gpus + 1), (1, 2, 4, 8)):
        if served <= gpus and global_batch(run) % trained == 0 and (trained + served <= gpus or trained == gpus):
            yield trained, served


def _grid_of_prime_rl(gpus: int) -> Iterator[Assignments]:
    again: list[Assignments] = [(("trainer.activation_checkpointing", value),) for value in (False, True)]
    if gpus == 1:
        yield from ((*one, ("inference.gpu_memory_fraction", n / 100)) for one in again for n in range(20, 80, 2))
        return
    for served, tensor in product(range(1, gpus), (1, 2, 4, 8)):
        if served % tensor == 0:
            split: Assignments = (
                ("deployment.train_gpus", gpus - served),
                ("deployment.infer_gpus", served),
                ("inference.data_parallel", served // tensor),
                ("inference.tensor_parallel", tensor),
            )
            yield from ((*split, *one) for one in again)
