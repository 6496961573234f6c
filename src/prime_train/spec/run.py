"""[run] and the tables of its training, and the learning rate that a schedule gives a step. Pure.

The annotations are the schema: types, bounds (which pydantic checks, too) and a Doc for docs/config.md. Type and
bounds check each field alone; rules in `rules/` check several fields together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from prime_train.spec.annotations import Doc, Fraction, Ge, Gt, Key, Lt, NotNegative, Positive

# The packages in programs/. "auto": the program that the other tables of the config belong to.
ProgramName = Literal["auto", "bundled", "command", "vllm", "prime_rl"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The name and the length of the run."""

    name: Annotated[str, Doc("Name of the run and its directory. A start with the same name continues the run.")]
    kind: Annotated[
        Literal["pretrain", "sft", "rl", "audio", "serve", "command"],
        Doc(
            "`pretrain` trains on text, `sft` on the assistant's part of chats, `rl` on rewards (GRPO). `audio` trains "
            "an encoder on compressed clips, see [docs/audio.md](audio.md). `serve` only "
            "serves a model with vLLM: the config has [run] without max_steps, [inference] and [prime_train]. "
            "`command` supervises a trainer of your own: the config has [run], [command] and [prime_train]."
        ),
    ] = "pretrain"
    seed: Annotated[NotNegative, Doc("Seed of Python, NumPy, torch, the data order and the loader workers.")] = 1234
    max_steps: Annotated[Positive, Doc("Number of optimizer steps of the run, over all attempts.")]
    dir: Annotated[str, Doc("Directory with the run directories, relative to the working directory.")] = "runs"
    program: Annotated[
        ProgramName, Doc("Program that trains or serves; `auto` = the program that the other tables belong to.")
    ] = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The number of sequences per process and per step."""

    micro_batch: Annotated[Positive, Doc("Sequences that one process computes at once.")] = 8
    global_batch: Annotated[
        Positive | None, Doc("Sequences in one optimizer step; unset = micro_batch x processes.")
    ] = None
    global_batch_tokens: Annotated[
        Positive | None, Doc("Tokens in one optimizer step: a multiple of ctx_tokens. Set this or global_batch.")
    ] = None
    start_batch: Annotated[
        Positive | None,
        Doc("Sequences in the first optimizer step; the step then grows by as many at a time, up to global_batch."),
    ] = None
    ramp_steps: Annotated[Positive | None, Doc("Steps until the batch has its full size, with start_batch.")] = None
    with_replicas: Annotated[
        Literal["constant", "same_rate", "linear", "sqrt"],
        Doc(
            "What a step has while one of parallel.replicas is away. `constant`: as many sequences as ever: the "
            "others take more micro-batches. Else sequences in proportion to the replicas that are there, with the "
            "same learning rate, or one that follows by the ratio or its square root within rate_ramp_steps."
        ),
    ] = "constant"
    rate_ramp_steps: Annotated[
        NotNegative, Doc("Steps in which the learning rate follows with_replicas, on a line; 0 = at once.")
    ] = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Optim:
    """The optimizer and the gradient clipping before it."""

    kind: Annotated[
        Literal["adamw", "muon"],
        Doc(
            "`muon`: Muon for the matrices of the blocks, AdamW for all other weights, experts among them. It computes "
            "in bf16, which is slow on most CPUs."
        ),
    ] = "adamw"
    lr: Annotated[float, Gt(0), Doc("Peak learning rate of AdamW.")] = 0.001
    muon_lr: Annotated[
        Annotated[float, Gt(0)] | None,
        Doc("Peak learning rate of Muon, whose updates have the size of AdamW's; unset = lr."),
    ] = None
    muon_momentum: Annotated[float, Ge(0), Lt(1), Doc("Decay of Muon's momentum.")] = 0.95
    beta1: Annotated[float, Ge(0), Lt(1), Doc("Decay of the first moment.")] = 0.9
    beta2: Annotated[float, Ge(0), Lt(1), Doc("Decay of the second moment.")] = 0.95
    eps: Annotated[float, Gt(0), Doc("Term in the denominator of AdamW.")] = 1e-08
    weight_decay: Annotated[float, Ge(0), Doc("Decoupled weight decay, only for matrices.")] = 0.1
    decay_embeddings: Annotated[
        bool, Doc("Embeddings decay, too, also one that is the head. Gains of norms never decay.")
    ] = True
    clip_norm: Annotated[Annotated[float, Gt(0)] | None, Doc("Maximum of the global gradient norm.")] = 1.0
    on_spike: Annotated[
        Literal["end", "skip"],
        Doc(
            "`end`: a step whose loss or gradient norm is not finite ends the run. `skip`: such a step, or one whose "
            "norm is above mean + 6 standard deviations of the last 128, changes nothing; more than 8 in 100 steps "
            "end the run. In both cases the weights are as before the step."
        ),
    ] = "end"
    skip_steps: Annotated[
        tuple[Positive, ...],
        Doc('Steps that read their data and change no weights; `instability.action = "skip"` adds some.'),
    ] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """The learning rate during the run."""

    kind: Annotated[
        Literal["cosine", "linear", "inverse-sqrt", "wsd", "constant"],
        Doc(
            "`wsd` = warm-up, stable, decay; `inverse-sqrt` = sqrt(warmup_steps / step). All kinds start with the "
            "warm-up."
        ),
    ] = "cosine"
    warmup_steps: Annotated[NotNegative, Doc("Steps of the linear warm-up.")] = 0
    decay_steps: Annotated[Positive | None, Doc("`wsd`: steps of the final decay; unset = 20 % of max_steps.")] = None
    decay: Annotated[Literal["linear", "sqrt"], Doc("`wsd`: the shape of the final decay.")] = "linear"
    min_lr_ratio: Annotated[Fraction, Doc("Learning rate at the end of the decay, as a fraction of lr.")] = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallel:
    """The distribution over processes."""

    processes: Annotated[Positive, Doc("Training processes, one per GPU.")] = 1
    dp_replicate: Annotated[Positive | None, Doc("Replicas of the model (DDP); unset = processes / dp_shard.")] = None
    dp_shard: Annotated[Positive, Doc("Processes that share one replica (FSDP2).")] = 1
    reduce: Annotated[
        Literal["each", "last"],
        Doc(
            "FSDP2: gradients are summed over processes after each micro-batch, or once a step, which keeps the "
            "gradient of the whole model in each process. DDP always sums once."
        ),
    ] = "each"
    reshard: Annotated[
        bool,
        Doc(
            "FSDP2: drop the gathered weights of a block after its forward and gather them again for its backward. "
            "`false` needs memory for the whole model in the compute type."
        ),
    ] = True
    collective_limit_s: Annotated[
        Annotated[float, Gt(0)] | None,
        Doc(
            "Longest wait for another process in an exchange; unset = torch's limit, 10 min on GPUs. Between replicas "
            "it then follows the slow steps."
        ),
    ] = None
    machines: Annotated[
        Positive,
        Doc("Machines with an equal part of the processes each; `prime-train run` is started on every one of them."),
    ] = 1
    replicas: Annotated[
        NotNegative,
        Doc(
            "Groups of processes that outlive each other: a lost group starts again while the others train. Each has "
            "processes / replicas of them, which dp_replicate and dp_shard divide. The `replicas` extra has torchft, "
            "which does this. 0 = all processes end together."
        ),
    ] = 0
    min_replicas: Annotated[Positive, Doc("Replicas without which no step is made; the others wait for them.")] = 1
    sync_every: Annotated[
        NotNegative,
        Doc("Steps that a replica makes alone before all replicas join their weights; 0 = each step sums gradients."),
    ] = 0
    sync: Annotated[
        Literal["local_sgd", "diloco"],
        Doc(
            "How weights are joined after sync_every steps: `local_sgd` takes their mean; `diloco` takes the mean of "
            "what the replicas have changed as the gradient of an outer optimizer. Both take the mean of the moments."
        ),
    ] = "local_sgd"
    outer_lr: Annotated[float, Gt(0), Doc("`diloco`: learning rate of the outer optimizer, which is SGD.")] = 0.7
    outer_momentum: Annotated[float, Ge(0), Lt(1), Doc("`diloco`: Nesterov momentum of the outer optimizer.")] = 0.9

    @property
    def processes_here(self) -> int:
        """Training processes of one machine."""
        return max(1, self.processes // self.machines)

    @property
    def replicas_here(self) -> int:
        """Replicas of one machine; 0 without replicas."""
        return self.replicas // self.machines

    @property
    def group_processes(self) -> int:
        """Training processes of one replica, or all without replicas."""
        return max(1, self.processes // max(1, self.replicas))


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """When checkpoints are saved, and which ones are kept."""

    interval_steps: Annotated[Positive | None, Doc("Steps between checkpoints.")] = 100
    keep_last: Annotated[Positive, Doc("Number of the newest complete checkpoints to keep.")] = 2
    keep_every_steps: Annotated[Positive | None, Doc("Also keep each checkpoint whose step is a multiple of this.")] = (
        None
    )
    async_save: Annotated[bool, Key("async"), Doc("Write in the background, at most one save at a time.")] = True
    final: Annotated[
        Literal["resumable", "hf"],
        Doc(
            "The result at the end: a checkpoint to resume from, or a Hugging Face folder in addition. A run on audio "
            "has its encoder in that folder."
        ),
    ] = "resumable"
    export_dtype: Annotated[
        Literal["fp32", "bf16"], Doc("Type of the weights in that folder, and in those of `ckpt to-hf`.")
    ] = "fp32"


FP8_CAPABILITY = (8, 9)  # Ada. Source: NVIDIA CUDA programming guide, compute capabilities


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """The number format of the computation."""

    compute: Annotated[
        Literal["auto", "fp32", "bf16"],
        Doc("Autocast type; `auto` = bf16 on a GPU with bf16, else fp32. Weights are always fp32."),
    ] = "auto"
    tf32: Annotated[bool, Doc("fp32 matrix products of a GPU in TF32, which has 10 bits of mantissa.")] = False
    fp8: Annotated[
        Literal["none", "tensorwise", "rowwise"],
        Doc(
            "Matrix products of the blocks in fp8, by torchao of the `fp8` extra, with a scale for each tensor or for "
            "each of its rows, which rounds less. Head, embedding, routers and experts stay in bf16, and all weights "
            "fp32, so it may change between attempts. For pretrain and sft, with model.compile. See docs/gpu.md."
        ),
    ] = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Traces of single steps, written into `profile/` of the run directory."""

    steps: Annotated[
        tuple[Positive, ...], Doc("Steps of which rank 0 writes a Chrome trace by torch.profiler; they take longer.")
    ] = ()
    memory_snapshot: Annotated[
        bool, Doc("On a GPU, also record the memory of these steps, for pytorch.org/memory_viz.")
    ] = False


def lr_ratio(schedule: Schedule, step: int, max_steps: int) -> float:
    """The learning rate of optimizer step `step` (0 <= step < max_steps) as a fraction of the peak.

    The warm-up is linear and its last step is at the peak; the decay ends at `min_lr_ratio` on the last step.
    Sources: wsd and its sqrt decay, 1 - sqrt(progress): arXiv 2405.18392, s. 3; inverse-sqrt, which has no end:
    T5, arXiv 1910.10683, s. 3.1.2.
    """
    done = step + 1  # so that the first step does not have a rate of zero
    if done <= schedule.warmup_steps:
        return done / schedule.warmup_steps
    match schedule.kind:
        case "constant":
            return 1.0
        case "inverse-sqrt":
            return max(schedule.min_lr_ratio, math.sqrt(max(1, schedule.warmup_steps) / done))
        case "linear":
            shape = 1 - _progress(done, schedule.warmup_steps, max_steps)
        case "cosine":
            shape = (1 + math.cos(math.pi * _progress(done, schedule.warmup_steps, max_steps))) / 2
        case "wsd":
            decay_steps = schedule.decay_steps or max(1, round(0.2 * max_steps))
            progress = _progress(done, max(schedule.warmup_steps, max_steps - decay_steps), max_steps)
            shape = 1 - progress if schedule.decay == "linear" else 1 - math.sqrt(progress)
    return schedule.min_lr_ratio + (1 - schedule.min_lr_ratio) * shape


def _progress(done: int, start: int, end: int) -> float:
    """0 up to `start`, 1 from `end` on, linear between."""
    if done >= end:
        return 1.0
    return max(0.0, (done - start) / (end - start))
