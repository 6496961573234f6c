"""A server and a training that one script starts: whether they can get the same GPU. Judges the parts of a script."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from prime_train.config.foreign.values import ForeignPart, PartialValues, roots_of
from prime_train.config.parsed_config import Fault, Reading
from prime_train.core.findings import Severity
from prime_train.rules.rule import file_rule

_SERVER = "vllm-serve"
_MOST_SHARED = 0.8  # of a GPU for the server; the rest holds no training
_DEFAULT = 0.9  # registry/vllm_arguments.json
_NOTHING: Mapping[str, Any] = {}


@file_rule("VLS008", Severity.WARNING)
def server_beside_a_training(reading: Reading) -> Iterator[Fault]:
    """A server and a training of one script need GPUs of their own.

    vLLM takes 0.9 of each GPU that it sees, so one of the two runs out of memory

    A script that starts the training first is not judged: its server may begin when the training has ended.

    Source: trl#2688; registry/vllm_arguments.json.

    Bad:
        # file job.sh
        vllm serve Qwen/Qwen3-8B --port 8000 &
        accelerate launch --num_processes 4 train.py --per_device_train_batch_size 2 --output_dir out --bf16 True
    Good:
        # file job.sh
        CUDA_VISIBLE_DEVICES=0 vllm serve Qwen/Qwen3-8B --port 8000 &
        export CUDA_VISIBLE_DEVICES=1,2,3
        accelerate launch --num_processes 3 train.py --per_device_train_batch_size 2 --output_dir out --bf16 True
    """
    parts = reading.foreign or ()
    for server in parts:
        if server.format == _SERVER and _takes_most(server) and _sees_all(server, parts):
            for training in parts:
                if training.format == "launch" and training.start > server.start and _trains_on_all(training, parts):
                    what = "a server and a training are started by one script, and nothing parts their GPUs"
                    fix = "CUDA_VISIBLE_DEVICES=0 in front of the server, and the others for the training"
                    yield Fault("VLS008", (*server.at, "model"), what, fix, document=server.document)
                    return


def _takes_most(server: ForeignPart) -> bool:
    if isinstance(server.values, PartialValues) and server.values.is_partial:
        return False
    share = server.values.get("gpu_memory_utilization", _DEFAULT)
    return isinstance(share, int | float) and share >= _MOST_SHARED


def _launch_of(part: ForeignPart, parts: tuple[ForeignPart, ...]) -> Mapping[str, Any]:
    return roots_of(parts, part.start).get("LAUNCH", _NOTHING)


def _sees_all(part: ForeignPart, parts: tuple[ForeignPart, ...]) -> bool:
    """Whether a start gets the GPUs of the script's own machine, without a choice among them."""
    launch = _launch_of(part, parts)
    return bool(launch) and "devices" not in launch and not launch.get("everywhere")


def _trains_on_all(launch: ForeignPart, parts: tuple[ForeignPart, ...]) -> bool:
    formats = {part.format for part in parts if part.start == launch.start}
    return (
        _sees_all(launch, parts) and _SERVER not in formats and launch.values.get("kind") in ("torchrun", "accelerate")
    )
