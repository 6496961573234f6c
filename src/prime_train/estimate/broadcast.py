"""Estimates how long the trainer's weights take to reach inference after an RL step. Pure."""

from __future__ import annotations

from typing import Literal

from prime_train.estimate.shape import ModelShape
from prime_train.estimate.throughput_rates import links_of
from prime_train.estimate.values import Hardware, Interval
from prime_train.estimate.work_shape import adapter_parameters

Way = Literal["filesystem", "nccl"]

_WEIGHT_BYTES = 2  # weights are sent in bf16
# Bytes per second from the gather to the last byte read. prime-rl, Qwen3-4B, all weights, 8 H100: 26.0k tokens/s with
# the transfer and 55.9k without it over 262,144 tokens are 5.4 s for 8.04 GB. Source: prime-rl benchmarks/baselines.
_FILESYSTEM_BYTES_PER_S = Interval(0.5e9, 1.5e9, 3.0e9)  # a network disk; measured; a local NVMe disk
_NCCL_SHARE = Interval(0.1, 0.4, 0.8)  # share of the link, because one GPU sends one layer at a time


def broadcast_s(
    shape: ModelShape, trainer: Hardware, way: Way = "filesystem", lora_rank: int = 0, one_machine: bool = True
) -> Interval:
    """Seconds from the end of a step until inference can load the weights. With LoRA only the adapters are sent."""
    size = _WEIGHT_BYTES * (adapter_parameters(shape, lora_rank) if lora_rank else float(shape.parameters))
    if way == "filesystem":
        rate = _FILESYSTEM_BYTES_PER_S
    else:
        links = links_of(trainer)
        rate = _NCCL_SHARE.times(links.node if one_machine else links.network)
    return Interval(size / rate.high, size / rate.typical, size / rate.low)
