"""The checkpoint of DeepSpeed that a training resumes from: how many processes wrote it. Reads names of files only."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from prime_train.config.foreign.follow import exists, find_folder
from prime_train.config.foreign.values import ForeignPart
from prime_train.config.parsed_config import Fault, Reading
from prime_train.core.findings import Severity
from prime_train.rules.rule import file_rule
from prime_train.toml.document import value_at

# ruff: noqa: PTH118 - paths are texts here

_SHARD = re.compile(r"(?:bf16_|fp16_)?zero_pp_rank_\d+_mp_rank_00_optim_states\.pt")
_MOST_NAMES = 100_000
_KEYS = ("resume_from_checkpoint", "load_checkpoint", "resume")


@file_rule("DSP014", Severity.WARNING)
def resumes_on_other_gpus(reading: Reading) -> Iterator[Fault]:
    """A training under ZeRO resumes on as many GPUs as its checkpoint was written by.

    DeepSpeed refuses the states of the optimizer: each process would load the part of one that is not there

    A checkpoint is judged if its folder is there and the number of GPUs is known.

    Source: deepspeed/runtime/engine.py, _get_all_zero_checkpoints; DeepSpeed#5405; DeepSpeed#2898.

    Bad:
        # file job.sh
        torchrun --nproc_per_node 2 train.py --model_name_or_path m --per_device_train_batch_size 1 --output_dir out \\
            --bf16 True --deepspeed ds.json --resume_from_checkpoint out/checkpoint-10
        # file ds.json
        {"zero_optimization": {"stage": 2}, "bf16": {"enabled": true}, "train_micro_batch_size_per_gpu": "auto"}
        # file out/checkpoint-10/global_step10/bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt
        states
    Good:
        # file job.sh
        torchrun --nproc_per_node 1 train.py --model_name_or_path m --per_device_train_batch_size 1 --output_dir out \\
            --bf16 True --deepspeed ds.json --resume_from_checkpoint out/checkpoint-10
        # file ds.json
        {"zero_optimization": {"stage": 2}, "bf16": {"enabled": true}, "train_micro_batch_size_per_gpu": "auto"}
        # file out/checkpoint-10/global_step10/bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt
        states
    """
    parts = reading.foreign or ()
    if not any(isinstance(part.values.get(key), str) for part in parts for key in _KEYS):
        return
    from prime_train.config.foreign.recipe.draft import to_recipe  # here, because few files resume

    universal = [
        value_at(part.values, ("checkpoint", "load_universal")) for part in parts if part.format == "deepspeed"
    ]
    draft = to_recipe(parts)
    gpus = None if draft is None else draft.recipe.gpus
    if draft is None or not gpus or not universal or any(value not in (None, False) for value in universal):
        return
    if draft.recipe.tensor_parallel or draft.recipe.pipeline_parallel or draft.recipe.context_parallel:
        return  # then a state belongs to a group of GPUs
    for part in parts:
        for key in _KEYS:
            named = part.values.get(key)
            written = _count_shards(named, part) if isinstance(named, str) and not part.moved else 0
            if written and written != gpus:
                what = f"{written} processes wrote {named}, and {gpus} resume from it"
                fix = f"{written} GPUs, or a universal checkpoint: ds_to_universal.py and load_universal"
                yield Fault("DSP014", (*part.at, key), what, fix, document=part.document)


def _count_shards(name: str, part: ForeignPart) -> int:
    """The processes whose states are in a checkpoint's newest step; 0 if it is not there or not of ZeRO."""
    folder = find_folder(name, part.document.path) if exists(name, part.document.path) else None
    steps = [] if folder is None else [each for each in _names(folder) if re.fullmatch(r"global_step\d{1,9}", each)]
    if folder is None or not steps:
        return 0
    newest = max(steps, key=lambda step: int(step.removeprefix("global_step")))
    return sum(_SHARD.fullmatch(each) is not None for each in _names(os.path.join(folder, newest)))


def _names(folder: str) -> list[str]:
    """The names in a folder; none if it cannot be read or has too many."""
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry, _ in zip(entries, range(_MOST_NAMES), strict=False)]
    except OSError:
        return []
