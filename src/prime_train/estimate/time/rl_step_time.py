"""Estimates the time of an RL step: rollouts by a roofline, the transfer of weights, idle shares. Pure."""

from __future__ import annotations

from typing import Literal, NamedTuple

from prime_train.estimate.model.shape import ModelShape
from prime_train.estimate.time.rates import links_of
from prime_train.estimate.time.token_flops import adapter_parameters
from prime_train.estimate.values import Hardware, Interval

Slower = Literal["trainer", "inference"]


class Overlap(NamedTuple):
    """One RL step. Idle shares are fractions of the step's time; `bound_by` is the slower side."""

    step_s: Interval
    trainer_idle: Interval
    inference_idle: Interval
    bound_by: Slower


def overlap_of(
    trainer_s: Interval, rollouts_s: Interval, broadcast_s: Interval, async_level: int, shared: bool = False
) -> Overlap:
    """The time of one RL step and the idle share of both sides.

    At `async_level` 0, or on shared GPUs, both sides take turns. From 1 on, inference makes the rollouts of a later
    step while the trainer works: the slower side sets the step time, and each transfer of weights stops both. A level
    above 1 smooths rollouts of uneven length but does not change the mean. Source: PipelineRL, arXiv 2509.19128, s. 2.
    """
    takes_turns = async_level < 1 or shared

    def step(trainer: float, rollouts: float, handover: float) -> float:
        return (trainer + rollouts if takes_turns else max(trainer, rollouts)) + handover

    def idle(own: float, other: float, handover: float) -> float:
        return max(0.0, 1 - (own + handover) / step(own, other, handover))

    fast, typical, slow = (tuple(part) for part in zip(trainer_s, rollouts_s, broadcast_s, strict=True))
    trainer_fast = (trainer_s.low, rollouts_s.high, broadcast_s.typical)
    trainer_slow = (trainer_s.high, rollouts_s.low, broadcast_s.typical)
    return Overlap(
        step_s=Interval(step(*fast), step(*typical), step(*slow)),
        trainer_idle=Interval(idle(*trainer_slow), idle(*typical), idle(*trainer_fast)),
        inference_idle=Interval(
            *(idle(rollouts, trainer, wait) for trainer, rollouts, wait in (trainer_fast, typical, trainer_slow))
        ),
        bound_by="trainer" if trainer_s.typical >= rollouts_s.typical else "inference",
    )


Way = Literal["filesystem", "nccl"]

_WEIGHT_BYTES = 2  # weights are sent in bf16
# Bytes per second from the gather to the last byte read. prime-rl, Qwen3-4B, all weights, 8 H100: 26.0k tokens/s with
# the transfer and 55.9k without it over 262,144 tokens are 5.4 s for 8.04 GB. Source: prime-rl benchmarks/baselines.
_FILESYSTEM_BYTES_PER_S = Interval(0.5e9, 1.5e9, 3.0e9)  # a network disk; measured; a local NVMe disk
_NCCL_SHARE = Interval(0.1, 0.4, 0.8)  # share of the link, because one GPU sends one layer at a time


def broadcast_s(shape: ModelShape, trainer: Hardware, way: Way = "filesystem", lora_rank: int = 0) -> Interval:
    """Seconds from the end of a step until inference can load the weights. With LoRA only the adapters are sent."""
    size = _WEIGHT_BYTES * (adapter_parameters(shape, lora_rank) if lora_rank else float(shape.parameters))
    rate = _FILESYSTEM_BYTES_PER_S if way == "filesystem" else _NCCL_SHARE.times(links_of(trainer).node)
    return rate.divide(size)
