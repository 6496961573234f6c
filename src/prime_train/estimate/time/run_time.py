"""Estimates how long a step and the whole run take. Pure."""

from __future__ import annotations

from typing import NamedTuple

from prime_train.estimate.calibrate import Calibration, calibrate_step
from prime_train.estimate.memory.roles import RunMemory
from prime_train.estimate.memory.train_setup import TrainSetup
from prime_train.estimate.serving.server_cache import token_bytes
from prime_train.estimate.serving.server_setup import serve_setup_of
from prime_train.estimate.time.rl_step_time import (
    Overlap,
    RolloutSetup,
    RolloutTime,
    Way,
    broadcast_s,
    overlap_of,
    rollout_time,
)
from prime_train.estimate.time.step_flops import ExpertLoop, Kernel, Objective, Precision, StepSetup
from prime_train.estimate.time.step_terms import gpu_class
from prime_train.estimate.time.throughput import Throughput, throughput_of, tokens_per_s
from prime_train.estimate.values import ZERO, Hardware, Interval
from prime_train.registry.gpus import read_table
from prime_train.spec import ENDLESS_STEPS, RunSpec
from prime_train.spec.answers import policy_of, prime_rl_of, rl_settings, rollout_engine, rollouts_of
from prime_train.spec.prime_rl_parts import RolloutPart, Trainer

STEPS_WITHOUT_END = 1000  # steps that are priced if the config sets no end
_LENGTH_SHARE = 0.5  # mean over longest completion, if the mean is not known
_PROMPT_TOKENS = 512  # if the length of prompts is not known
_FP8: dict[str, Precision] = {"none": "bf16", "tensorwise": "fp8", "rowwise": "fp8_rowwise"}
_GROUPED_SINCE = 5  # transformers computes experts as grouped products from this version on
_KERNELS: dict[str, Kernel] = {
    "flash": "fa2",
    "flash_attention_2": "fa2",
    "flash_attention_3": "fa3",
    "flash_attention_4": "fa4",
    "fa4": "fa4",
    "sdpa": "sdpa",
    "eager": "eager",
}


class Time(NamedTuple):
    """The speed of the trainer, the time of a whole step, and the number of steps.

    `step_s` includes the trainer, the transfer of weights, and the wait for rollouts. `rollouts` and `overlap` are set
    for RL with a server whose cache holds one rollout. `is_endless`: the config sets no end, and `steps` is
    STEPS_WITHOUT_END.
    """

    throughput: Throughput
    step_s: Interval
    steps: int
    is_endless: bool
    rollouts: RolloutTime | None = None
    overlap: Overlap | None = None
    assumptions: tuple[str, ...] = ()


def time_of(
    run: RunSpec, setup: TrainSetup, hardware: Hardware, memory: RunMemory, calibration: Calibration | None = None
) -> Time:
    """The time of a run on the GPUs it uses. Raises UserError if their speed is not known."""
    parts = prime_rl_of(run)
    work, assumptions = step_setup_of(run, setup, hardware)
    way: Way = "nccl" if parts.weight_broadcast is not None and parts.weight_broadcast.kind == "nccl" else "filesystem"
    throughput = _calibrate(throughput_of(work, hardware._replace(gpus=work.gpus), way), calibration)
    trained = throughput.step_s.times(_reference_factor(run))
    handover = throughput.broadcast_s or _hand_over_s(run, setup, hardware)
    step = trained.plus(handover)
    rollouts = _rollouts(run, setup, hardware, memory)
    overlap = None
    if rollouts is not None:
        shared = memory.gpus.shared or rollout_engine(run) == "local"
        overlap = overlap_of(trained, rollouts.seconds, handover, _async_level(run), shared)
        step = overlap.step_s
    is_endless = run.run.max_steps >= ENDLESS_STEPS
    return Time(throughput, step, priced_steps(run), is_endless, rollouts, overlap, assumptions)


def priced_steps(run: RunSpec) -> int:
    """The run's steps, STEPS_WITHOUT_END if the config sets no end."""
    return STEPS_WITHOUT_END if run.run.max_steps >= ENDLESS_STEPS else run.run.max_steps


def _reference_factor(run: RunSpec) -> float:
    """With a reference model a step has a second forward, a third of forward and backward.

    Source: arXiv 2001.08361, s. 2.1 (2 FLOPs per parameter and token in the forward, 4 in the backward).
    """
    policy = policy_of(run)
    return 4 / 3 if policy is not None and policy.kl_coef else 1.0


def _hand_over_s(run: RunSpec, setup: TrainSetup, hardware: Hardware) -> Interval:
    """Seconds from a step of the bundled trainer until vLLM has its weights, adapters merged."""
    return broadcast_s(setup.shape, hardware) if rollout_engine(run) == "vllm" else ZERO


def _calibrate(throughput: Throughput, calibration: Calibration | None) -> Throughput:
    """The throughput with step, tokens per second and MFU of the measured run; the terms stay as estimated."""
    if calibration is None or calibration.step_ratio is None:
        return throughput
    before, step = throughput.step_s, calibrate_step(throughput.step_s, calibration)
    tokens = throughput.tokens_per_s.typical * before.plus(throughput.broadcast_s or ZERO).typical
    return throughput._replace(
        step_s=step,
        tokens_per_s=tokens_per_s(tokens, step, throughput.broadcast_s),
        mfu=throughput.mfu * before.typical / step.typical,
        basis=f"measured by {calibration.source}; before: {throughput.basis}",
    )


def _async_level(run: RunSpec) -> int:
    """How many steps inference may be ahead of the trainer; one if the generation has no such key."""
    rollout = rollouts_of(run) or RolloutPart()
    levels = (rollout.max_async_level, rollout.max_off_policy_steps)
    return next((level for level in levels if level is not None), 1)


class _Lengths(NamedTuple):
    """Tokens of a prompt, of a mean completion, and of the longest completion."""

    prompt: int
    mean: int
    longest: int


def _lengths(run: RunSpec, ctx_tokens: int) -> _Lengths:
    rollout = rollouts_of(run)
    limit = rollout.max_completion_tokens if rollout is not None else None
    prompt = min(run.prime_train.expected_prompt_tokens or _PROMPT_TOKENS, max(1, ctx_tokens // 2))
    longest = max(1, min(limit or ctx_tokens, ctx_tokens - prompt))
    return _Lengths(prompt, max(1, round(longest * _LENGTH_SHARE)), longest)


def _rollouts(run: RunSpec, setup: TrainSetup, hardware: Hardware, memory: RunMemory) -> RolloutTime | None:
    """The time of a step's rollouts; None if nothing generates them or the cache cannot hold a rollout."""
    rollout = rollouts_of(run)
    if rollout is None or not rollout.batch_rollouts:
        return None
    lengths = _lengths(run, setup.ctx_tokens)
    engine = _own_engine(run, setup) if rollout_engine(run) == "local" else _server(run, setup, hardware, memory)
    if engine is None or engine.kv_tokens < lengths.prompt + lengths.longest or engine.gpus % engine.tp:
        return None
    rollouts = RolloutSetup(
        shape=setup.shape,
        rollouts=rollout.batch_rollouts,
        prompt_tokens=lengths.prompt,
        completion_tokens=lengths.mean,
        longest_completion_tokens=lengths.longest,
        group_size=min(rollout.batch_rollouts, rollout.group_size or 1),
        **engine._asdict(),
    )
    return rollout_time(rollouts, hardware)


class _EngineSetup(NamedTuple):
    """The fields of a RolloutSetup that belong to the engine."""

    kv_tokens: int
    kv_token_bytes: float
    sequences: int
    gpus: int
    tp: int
    weight_bytes: float


def _server(run: RunSpec, setup: TrainSetup, hardware: Hardware, memory: RunMemory) -> _EngineSetup | None:
    """The vLLM servers; None if the run starts none."""
    served = next((role.served for role in memory.roles if role.served is not None), None)
    if served is None:
        return None
    server = serve_setup_of(run, hardware, setup.shape)
    gpus = server.tensor_parallel * server.pipeline_parallel
    return _EngineSetup(
        kv_tokens=served.kv_tokens,
        kv_token_bytes=token_bytes(server) * gpus,
        sequences=server.sequences,
        gpus=memory.gpus.serve,
        tp=gpus,
        weight_bytes=server.number_bytes if not server.quantization else setup.shape.weight_bytes,
    )


def _own_engine(run: RunSpec, setup: TrainSetup) -> _EngineSetup:
    """The engine inside the trainer, on the first of its GPUs, with a slot for each rollout in progress."""
    shape, number_bytes = setup.shape, setup.numerics.compute
    slots = rl_settings(run).concurrency
    each = 2 * shape.layers * shape.kv_heads * shape.head_dim * number_bytes
    return _EngineSetup(slots * setup.ctx_tokens, each, slots, gpus=1, tp=1, weight_bytes=number_bytes)


def step_setup_of(run: RunSpec, setup: TrainSetup, hardware: Hardware) -> tuple[StepSetup, tuple[str, ...]]:
    """What the time of a step depends on, and the assumptions made for it."""
    parts = prime_rl_of(run)
    layout = setup.layout
    if layout.sharding == "device_map":  # one GPU computes at a time: a pipeline with a single micro-batch in a step
        layout = layout._replace(shards=1, pipeline=layout.shards)
        setup = setup._replace(layout=layout, tokens=setup.tokens * setup.micro_batches, micro_batches=1)
    is_rl = run.prime_rl is not None and parts.finetune is None
    micro_batches, assumptions = _pack_rollouts(run, setup) if is_rl else (setup.micro_batches, ())
    if policy_of(run) is not None:
        setup, assumptions = _shorten(run, setup)
    objective: Objective = "rl" if is_rl else "sft" if parts.finetune is not None else "pretrain"
    return (
        StepSetup(
            shape=setup.shape,
            ctx_tokens=setup.ctx_tokens,
            micro_batch_tokens=setup.tokens * layout.context,
            # The memory of a pipeline counts one part of the batch for each stage: setup.tokens is one such part.
            micro_batches=micro_batches * (layout.in_flight if layout.pipeline > 1 else 1),
            dp_shard=max(1, layout.shards // layout.context),
            dp_replicate=layout.replicas,
            tp=layout.tensor,
            cp=layout.context,
            pp=layout.pipeline,
            ep=layout.expert,
            trainer=setup.program,
            generation=setup.era,
            objective=objective,
            recompute=setup.checkpointing,
            reshard=layout.reshards,
            activation_offload=setup.offload.activations,
            optimizer_offload=setup.offload.optimizer,
            parameter_offload=setup.offload.parameters,
            lora_rank=setup.adapter.rank if setup.adapter is not None else 0,
            head=setup.head.kind,
            kernel=_kernel(setup, hardware),
            fused=setup.compiled,
            precision=_precision(run, setup),
            expert_loop=_expert_loop(run, setup),
        ),
        assumptions,
    )


def _precision(run: RunSpec, setup: TrainSetup) -> Precision:
    """The input type in linear layers, by each format's key."""
    trainer, recipe = prime_rl_of(run).trainer or Trainer(), run.recipe
    if trainer.quantization == "mxfp8":
        return "mxfp8"
    in_fp8 = setup.quantization == "float8" or trainer.fp8 or trainer.quantization == "fp8"
    in_fp8 = in_fp8 or (recipe is not None and recipe.compute_dtype == "float8")
    return "fp8" if in_fp8 else _FP8[run.precision.fp8]


def _expert_loop(run: RunSpec, setup: TrainSetup) -> ExpertLoop:
    """Whether experts run one after the other: by prime-rl's key, or by the transformers version."""
    trainer, recipe = prime_rl_of(run).trainer or Trainer(), run.recipe
    if not setup.shape.is_moe:
        return ""
    if recipe is None:
        return "yes" if trainer.grouped_experts is False else ""
    if setup.program not in read_table("throughput.toml")["experts_of_transformers"]["programs"]:
        return ""
    major = (recipe.version or "").partition(".")[0]
    if setup.program == "hf" and major.isdigit():
        return "yes" if int(major) < _GROUPED_SINCE else ""
    return "perhaps"


def _shorten(run: RunSpec, setup: TrainSetup) -> tuple[TrainSetup, tuple[str, ...]]:
    """The setup with rows of the mean length of a rollout, because the bundled trainer pads rows of like length."""
    lengths = _lengths(run, setup.ctx_tokens)
    row = lengths.prompt + lengths.mean
    words = f"answers of {lengths.mean} on average and {lengths.longest} at most"
    assumed = (f"prompts of {lengths.prompt} tokens, {words}, one turn: rows of {row} tokens",)
    return setup._replace(ctx_tokens=row, tokens=setup.tokens * row // setup.ctx_tokens), assumed


def _pack_rollouts(run: RunSpec, setup: TrainSetup) -> tuple[int, tuple[str, ...]]:
    """Micro-batches of one step on one data-parallel rank, and assumptions: RL packs rollouts of unknown length."""
    parts = prime_rl_of(run)
    batch = parts.rollout.batch_rollouts if parts.rollout is not None else None
    if not batch:
        return setup.micro_batches, ()
    layout, lengths = setup.layout, _lengths(run, setup.ctx_tokens)
    ranks = max(1, layout.shards // layout.context * layout.replicas)
    tokens = batch * (lengths.prompt + lengths.mean)
    packed = max(1, -(-tokens // (setup.tokens * layout.context * ranks)))
    prompts = "" if run.prime_train.expected_prompt_tokens else f"prompts of {lengths.prompt} tokens, "
    completions = f"completions of {lengths.mean} on average and {lengths.longest} at most"
    return packed, (f"{prompts}{completions}: {packed} micro-batches in a step on each GPU",)


def _kernel(setup: TrainSetup, hardware: Hardware) -> Kernel:
    """The attention kernel of the config; prime-rl's "auto" is FlashAttention 3 on Hopper and 2 elsewhere."""
    default: Kernel = "fa3" if gpu_class(hardware) == "hopper" and setup.program == "prime-rl" else "fa2"
    return _KERNELS.get(setup.attention, default)
