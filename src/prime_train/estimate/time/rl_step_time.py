"""Estimates the time of an RL step: rollouts by a roofline, the transfer of weights, idle shares. Pure."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

from prime_train.core.errors import UserError
from prime_train.estimate.model.shape import ModelShape
from prime_train.estimate.time.step_terms import links_of
from prime_train.estimate.time.token_flops import (
    active_expert_parameters,
    adapter_parameters,
    linear_parameters,
    moe_layers,
)
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


Limit = Literal["rollouts", "max_num_seqs", "kv cache"]

# Shares of the data sheet that a server reaches; published values, nothing is fitted.
# Decode: "model bandwidth utilization" of about 60 % on A100 and H100, Databricks, "LLM Inference Performance
# Engineering: Best Practices" (2023). Prefill: half of the peak, the best that linear layers of a training step reach.
_BANDWIDTH_SHARE = Interval(0.45, 0.6, 0.8)
_PEAK_SHARE = Interval(0.3, 0.5, 0.7)
# Seconds per engine step besides the GPU's work: scheduler, sampling, detokenising. Source: vLLM v0.6.0 release post
# (2024-09): the GPU worked 38 % of a step of Llama-3-8B on one H100 before scheduling became asynchronous.
_STEP_S = Interval(0.002, 0.005, 0.010)
_COLLECTIVE_S = 15e-6  # latency of a small all-reduce within a machine, two of them per layer


class RolloutSetup(NamedTuple):
    """The rollouts of one step and the engines for them.

    Token counts are per rollout; `kv_tokens` and `sequences` per engine.

    `completion_tokens` is the mean and `longest_completion_tokens` the cap. `group_size` rollouts share a prompt,
    which is prefilled once. `gpus` counts all inference GPUs, `tp` those of one engine; `kv_token_bytes` is the cache
    size of one token over all layers and GPUs of an engine.
    """

    shape: ModelShape
    rollouts: int
    prompt_tokens: int
    completion_tokens: int
    longest_completion_tokens: int
    kv_tokens: int
    kv_token_bytes: float
    sequences: int = 256
    group_size: int = 1
    gpus: int = 1
    tp: int = 1
    weight_bytes: float = 2.0  # per parameter


class RolloutTime(NamedTuple):
    """The time of a step's rollouts.

    `concurrency`: rollouts that one engine decodes at a time; `limited_by`: what limits them; `decode_step_s`: seconds
    for one token of each.
    """

    seconds: Interval
    tokens_per_s: Interval
    concurrency: int
    limited_by: Limit
    prefill_s: Interval
    decode_step_s: Interval
    basis: str


class _Speed(NamedTuple):
    """The rates of an engine of `tp` GPUs, and the overhead of one engine step."""

    bytes_per_s: float
    flops_per_s: float
    step_s: float


def rollout_time(setup: RolloutSetup, hardware: Hardware) -> RolloutTime:
    """The time of one step's rollouts. Raises UserError if a count is not positive.

    The caller makes sure that the cache holds one rollout of the longest completion, and that `tp` divides `gpus`.
    """
    _check_counts(setup)
    concurrency, limited_by = concurrency_of(setup)
    shares = zip(reversed(_BANDWIDTH_SHARE), reversed(_PEAK_SHARE), _STEP_S, strict=True)  # the fastest first
    speeds = [_speed(setup, hardware, *share) for share in shares]
    prefill = Interval(*(_prefill_s(setup, speed) for speed in speeds))
    decode = Interval(*(_decode_s(setup, concurrency, speed) for speed in speeds))
    seconds = prefill.plus(decode)
    return RolloutTime(
        seconds=seconds,
        tokens_per_s=seconds.divide(setup.rollouts * setup.completion_tokens),
        concurrency=concurrency,
        limited_by=limited_by,
        prefill_s=prefill,
        decode_step_s=Interval(*(decode_step_s(setup, concurrency, speed) for speed in speeds)),
        basis="roofline: weights and KV cache read once per decoded token; no measurement nearby",
    )


def concurrency_of(setup: RolloutSetup) -> tuple[int, Limit]:
    """Rollouts that one engine decodes at a time, and what limits them.

    A rollout holds its prompt, which its group shares, and on average half of its completion.
    """
    engines = setup.gpus // setup.tp
    own = setup.prompt_tokens / setup.group_size + setup.completion_tokens / 2
    limits: list[tuple[int, Limit]] = [
        (math.ceil(setup.rollouts / engines), "rollouts"),
        (setup.sequences, "max_num_seqs"),
        (int(setup.kv_tokens / own), "kv cache"),
    ]
    count, limit = min(limits, key=lambda pair: pair[0])
    return max(1, count), limit


def decode_step_s(setup: RolloutSetup, batch: float, speed: _Speed) -> float:
    """Seconds for one token of each of `batch` rollouts: reading weights and cache once, or the FLOPs if slower.

    In a mixture of experts, only the experts that the batch visits are read.
    Source: vLLM / PagedAttention, arXiv 2309.06180, s. 2: decoding is bound by memory.
    """
    shape = setup.shape
    ctx_tokens = setup.prompt_tokens + setup.completion_tokens / 2
    dense = linear_parameters(shape) + shape.vocab_size * shape.hidden_size
    active = active_expert_parameters(shape)
    read = dense * setup.weight_bytes
    if moe_layers(shape):
        visited = 1 - (1 - shape.experts_per_token / shape.experts) ** batch
        read += active * shape.experts / shape.experts_per_token * visited * setup.weight_bytes
    read += batch * ctx_tokens * setup.kv_token_bytes
    products = 2 * batch * (dense + active)
    return max(read / speed.bytes_per_s, products / speed.flops_per_s) + speed.step_s


def _decode_s(setup: RolloutSetup, concurrency: int, speed: _Speed) -> float:
    """Seconds of the full batches and of the last batch, which shrinks until its longest rollout ends."""
    engines = setup.gpus // setup.tp
    each = math.ceil(setup.rollouts / engines)
    last = min(each, concurrency)
    waiting = (each - last) * setup.completion_tokens / concurrency
    thinned = max(1.0, last * setup.completion_tokens / setup.longest_completion_tokens)
    full_steps = waiting * decode_step_s(setup, concurrency, speed)
    return full_steps + setup.longest_completion_tokens * decode_step_s(setup, thinned, speed)


def _prefill_s(setup: RolloutSetup, speed: _Speed) -> float:
    engines = setup.gpus // setup.tp
    prompts = math.ceil(math.ceil(setup.rollouts / setup.group_size) / engines)
    shape = setup.shape
    products = 2 * (linear_parameters(shape) + active_expert_parameters(shape))
    scores = 4 * shape.layers * shape.heads * shape.head_dim * setup.prompt_tokens / 2
    return prompts * setup.prompt_tokens * (products + scores) / speed.flops_per_s


def _speed(setup: RolloutSetup, hardware: Hardware, bandwidth_share: float, peak_share: float, step_s: float) -> _Speed:
    exchanges = 2 * setup.shape.layers if setup.tp > 1 else 0
    # The activations of a batch are small, so an exchange costs only its latency, which is higher without a switch.
    slower = 1.0 if links_of(hardware).node > 1e11 else 3.0
    return _Speed(
        bytes_per_s=hardware.bandwidth_bytes_per_s * setup.tp * bandwidth_share,
        flops_per_s=hardware.peak_flops_bf16 * setup.tp * peak_share,
        step_s=step_s + exchanges * _COLLECTIVE_S * slower,
    )


def _check_counts(setup: RolloutSetup) -> None:
    counts = {
        "rollouts": setup.rollouts,
        "prompt_tokens": setup.prompt_tokens,
        "completion_tokens": setup.completion_tokens,
        "group_size": setup.group_size,
        "max_num_seqs": setup.sequences,
        "inference GPUs": setup.gpus,
        "tensor parallel": setup.tp,
    }
    for name, value in counts.items():
        if value < 1:
            why = "a step needs at least one"
            raise UserError(f"{name} = {value}", "the rollouts of a step", why, f"{name} = 1 or more")
