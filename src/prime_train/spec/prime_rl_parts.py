"""The parts of a RunSpec that run.toml does not have: settings of prime-rl's files and of recipes. Values only.

A field has the value of the file, else the default of the generation. None: not set and no default known; rules ignore
it. If several keys set one field (a shared key at the top and a key of a component), the component's key counts. The
classes are named tuples, because each lint creates them at its start, and a dataclass takes seven times longer.

The comment behind a field is its key in prime-rl 2026-08, root `rl`; [05] and [01] are different keys of earlier
generations, "-" is none. Settings that run.toml has, too, are in the parts for run.toml:

| field | 2026-08 | 2026-05 | 2026-01 |
|---|---|---|---|
| run.name | run.name | - | - |
| run.max_steps (ENDLESS_STEPS where unset) | max_steps | same | same |
| checkpoint.interval_steps (None: only at the end) | ckpt.interval | same | same |
| checkpoint.keep_every_steps | ckpt.keep_interval | same | same |
| optim.lr, .weight_decay, .clip_norm (None: not clipped) | trainer.optim.lr, .weight_decay, .max_norm | same | same |
| optim.beta1, .beta2 | trainer.optim.betas1, .betas2 | same | same |
| schedule.kind ("linear" is "wsd") | trainer.scheduler.type | same | same |
| prime_train.* | prime_train.* | same | same |
| schedule.warmup_steps, .decay_steps | trainer.scheduler.warmup_steps, .decay_steps | same | same |

The roots sft, trainer, orchestrator, inference and evals have the same keys without the component
(`optim.lr`, `model.lora.rank`, `train.sampling.temperature`); evals has its sources in `source`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from prime_train.spec.server import Inference as Inference
from prime_train.spec.server import Transport as Transport
from prime_train.spec.server import WeightBroadcast as WeightBroadcast


class LaunchPart(NamedTuple):
    """The start of the run and its output folder."""

    generation: str | None = None  # the schema of the file: "2026-08"
    month: str | None = None  # prime_train.prime_rl_month: of the version, where it is not the first of its generation
    output_dir: str | None = None  # output_dir
    run_dir: str | None = None  # run.dir; [05] [01] -
    run_name: str | None = None  # run.name; [05] [01] -
    clean: bool | None = None  # clean; [05] clean_output_dir
    dry_run: bool | None = None  # dry_run; [01] -
    env_vars: Mapping[str, str] | None = None  # env_vars; [01] -
    trainer_env_vars: Mapping[str, str] | None = None  # trainer.env_vars; [01] -
    orchestrator_env_vars: Mapping[str, str] | None = None  # orchestrator.env_vars; [01] -
    inference_env_vars: Mapping[str, str] | None = None  # inference.env_vars; [01] -
    slurm: bool | None = None  # whether [slurm] is present
    python: str | None = None  # prime_train.python, in every generation: prime-rl does not see that table


class Resume(NamedTuple):
    """The checkpoint to resume from. The part is None if the run does not resume."""

    step: int | None = None  # resume.step; [05] [01] ckpt.resume_step; -1 = the latest
    dir: str | None = None  # resume.dir; [05] [01] -


class Saving(NamedTuple):
    """Settings of checkpoints other than their interval. The part is None if the file has no [ckpt]."""

    keep_last: int | None = None  # ckpt.keep_last
    output_dir: str | None = None  # ckpt.output_dir; [01] -
    trainer_interval_steps: int | None = None  # trainer.ckpt.interval
    orchestrator_interval_steps: int | None = None  # orchestrator.ckpt.interval
    skip_optimizer: bool | None = None  # trainer.ckpt.skip_optimizer
    skip_scheduler: bool | None = None  # trainer.ckpt.skip_scheduler


class Deployment(NamedTuple):
    """The GPUs of each role."""

    kind: str | None = None  # deployment.type; [01] -
    gpus_per_node: int | None = None  # deployment.gpus_per_node; [01] -
    train_gpus: int | None = None  # deployment.num_train_gpus; [01] len of trainer_gpu_ids
    infer_gpus: int | None = None  # deployment.num_infer_gpus; [01] len of inference_gpu_ids
    train_nodes: int | None = None  # deployment.num_train_nodes; [01] -
    infer_nodes: int | None = None  # deployment.num_infer_nodes; [01] -
    nodes_per_fsdp_group: int | None = None  # deployment.nodes_per_fsdp_group; [01] -
    train_gpu_ids: tuple[int, ...] | None = None  # -; [01] trainer_gpu_ids
    infer_gpu_ids: tuple[int, ...] | None = None  # -; [01] inference_gpu_ids

    @property
    def all_train_gpus(self) -> int | None:
        """GPUs that train, on all machines together; None if the config does not determine it."""
        return self._choose(self.train_gpus, (self.train_nodes or 0) * (self.gpus_per_node or 0))

    @property
    def all_infer_gpus(self) -> int | None:
        return self._choose(self.infer_gpus, (self.infer_nodes or 0) * (self.gpus_per_node or 0))

    def _choose(self, here: int | None, on_nodes: int) -> int | None:
        """The GPUs of a role. The ones of one machine have a default that is none for several."""
        return (on_nodes or here or None) if self.kind == "multi_node" else (here or on_nodes or None)


class Trainer(NamedTuple):
    """The trained model and its distribution over GPUs."""

    model_name: str | None = None  # trainer.model.name, else model.name
    ctx_tokens: int | None = None  # trainer.model.seq_len, else seq_len
    max_steps: int | None = None  # trainer.max_steps
    attention: str | None = None  # trainer.model.attn
    trust_remote_code: bool | None = None  # trainer.model.trust_remote_code
    vision: bool | None = None  # whether [trainer.model.vlm] or [model.vlm] is present
    dp_replicate: int | None = None  # trainer.model.dp_replicate
    context_parallel: int | None = None  # trainer.model.cp
    expert_parallel: int | None = None  # trainer.model.ep; None for "auto"
    tensor_parallel: int | None = None  # -; [01] trainer.model.tp
    fsdp_cpu_offload: bool | None = None  # trainer.model.fsdp_cpu_offload
    optim_cpu_offload: bool | None = None  # trainer.model.optim_cpu_offload
    activation_checkpointing: bool | None = None  # whether [trainer.model.ac] is present, or on by default
    activation_offloading: bool | None = None  # whether [trainer.model.ac_offloading] is present, or on by default
    checkpointing_mode: str | None = None  # trainer.model.ac.mode: "full" or "selective"; [01] -
    offload_inflight: int | None = None  # trainer.model.ac_offloading.max_inflight_activations
    compile: bool | None = None  # whether [trainer.model.compile] is present, or on by default
    max_concurrent_runs: int | None = None  # -; [05] [01] trainer.max_concurrent_runs
    reshard_after_forward: bool | None = None  # trainer.model.reshard_after_forward
    optimization_dtype: str | None = None  # trainer.model.optimization_dtype
    reduce_dtype: str | None = None  # trainer.model.reduce_dtype
    quantization: str | None = None  # trainer.model.quantization.type; [05] [01] -
    head_chunk_tokens: int | None = None  # trainer.model.fused_lm_head_token_chunk_size; None for "disabled"; [01] -
    head_chunk_vocab: int | None = None  # -; [05] -; [01] trainer.model.fused_lm_head_chunk_size; None for "auto"
    optimizer: str | None = None  # trainer.optim.type
    min_lr: float | None = None  # trainer.scheduler.min_lr
    dist_timeout_s: int | None = None  # trainer.dist_timeout_seconds
    metrics_port: int | None = None  # trainer.metrics_server.port, if [trainer.metrics_server] is present
    trace_path: str | None = None  # trainer.trace_path
    tokenizer_name: str | None = None  # trainer.tokenizer.name, else tokenizer.name
    chat_template: str | None = None  # trainer.tokenizer.chat_template, else tokenizer.chat_template; [01] -
    output_dir: str | None = None  # trainer.output_dir
    fake_data: bool | None = None  # whether [trainer.data.fake] is present, or data.type = "fake" in sft
    bench: bool | None = None  # -; [05] [01] bench, or whether [trainer.bench] is present
    debug_layers: int | None = None  # trainer.model.debug.num_layers
    random_init: bool | None = None  # trainer.model.debug.random_init
    # A resolved.json has the fields in their order, so those that came later stand at the end.
    fp8: bool | None = None  # -; [05] trainer.model.fp8; [01] -
    grouped_experts: bool | None = None  # trainer.model.moe_use_grouped_mm


class Finetune(NamedTuple):
    """The data of prime-rl's `sft` root; None for other roots."""

    data_name: str | None = None  # data.name
    ctx_tokens: int | None = None  # data.seq_len
    batch_sequences: int | None = None  # data.batch_size
    micro_batch_sequences: int | None = None  # data.micro_batch_size
    pack: str | None = None  # -; [05] [01] data.pack_function
    splits: tuple[str, ...] | None = None  # data.splits
    subsets: tuple[str, ...] | None = None  # data.subsets
    sampling_probs: tuple[float, ...] | None = None  # data.probabilities


class Lora(NamedTuple):
    """The adapter. The part is None if the trainer has no [model.lora], even if the orchestrator names an adapter."""

    rank: int | None = None  # trainer.model.lora.rank
    alpha: float | None = None  # trainer.model.lora.alpha
    dropout: float | None = None  # trainer.model.lora.dropout
    target_modules: tuple[str, ...] | None = None  # trainer.model.lora.target_modules
    modules_to_save: tuple[str, ...] | None = None  # trainer.model.lora.modules_to_save


class RolloutPart(NamedTuple):
    """The requests of the orchestrator to inference, and the batches from the answers."""

    model_name: str | None = None  # orchestrator.model.name; [05] orchestrator.student.model.name
    lora_name: str | None = None  # orchestrator.model.lora.name; [05] orchestrator.student.model.lora.name
    lora_rank: int | None = None  # orchestrator.model.lora.rank; [05] orchestrator.student.model.lora.rank
    lora_alpha: float | None = None  # orchestrator.model.lora.alpha; [05] orchestrator.student.model.lora.alpha
    algorithm: str | None = None  # orchestrator.algo.type; [05] "grpo" for training_mode "rl"; [01] "grpo"
    ctx_tokens: int | None = None  # orchestrator.seq_len, else seq_len
    max_steps: int | None = None  # orchestrator.max_steps
    batch_rollouts: int | None = None  # orchestrator.batch_size
    batch_tokens: int | None = None  # orchestrator.token_batch_size; [01] -
    group_size: int | None = None  # orchestrator.group_size; [01] orchestrator.rollouts_per_example
    max_completion_tokens: int | None = None  # orchestrator.train.sampling.max_completion_tokens;
    #                                           [01] orchestrator.sampling.max_tokens
    min_tokens: int | None = None  # -; [01] orchestrator.sampling.min_tokens
    temperature: float | None = None  # orchestrator.train.sampling.temperature; [01] orchestrator.sampling.temperature
    seed: int | None = None  # -; [05] [01] ...sampling.seed
    repetition_penalty: float | None = None  # -; [05] [01] ...sampling.repetition_penalty
    extra_body: Mapping[str, object] | None = None  # orchestrator.train.sampling.extra_body
    max_off_policy_steps: int | None = None  # orchestrator.max_off_policy_steps
    max_async_level: int | None = None  # -; [01] orchestrator.max_async_level
    initial_inflight: int | None = None  # orchestrator.concurrency.initial_inflight
    max_inflight: int | None = None  # orchestrator.concurrency.max_inflight;
    #                                  [05] orchestrator.max_inflight_rollouts; [01] orchestrator.max_concurrent
    min_inflight: int | None = None  # orchestrator.concurrency.min_inflight; [05] [01] -
    wait_for_ready_s: int | None = None  # orchestrator.model.client.wait_for_ready_timeout; [01] -
    client_timeout_s: int | None = None  # -; [05] orchestrator.student.client.timeout; [01] orchestrator.client.timeout
    base_urls: tuple[str, ...] | None = None  # orchestrator.model.client.base_url; [05] orchestrator.student.client.
    #                                           base_url; [01] orchestrator.client.base_url; one or several
    headers: Mapping[str, str] | None = None  # ...client.headers
    trust_remote_code: bool | None = None  # orchestrator.model.trust_remote_code
    env_server_base_port: int | None = None  # orchestrator.env_server_base_port; [05] [01] -
    output_dir: str | None = None  # orchestrator.output_dir
    chat_template: str | None = None  # orchestrator.tokenizer.chat_template; [01] -
    trajectory_strategy: str | None = None  # -; [05] -; [01] orchestrator.trajectory_strategy


class EnvironmentSource(NamedTuple):
    """One [[orchestrator.train.source]] or [[orchestrator.eval.source]]; [05] [[...env]]; [01] [[orchestrator.env]]."""

    id: str | None = None  # env.taskset.id, else env.id; [05] [01] id
    name: str | None = None  # name
    ratio: float | None = None  # ratio
    group_size: int | None = None  # group_size, only if the source sets it
    examples: int | None = None  # num_examples (evaluation), only if the source sets it
    max_completion_tokens: int | None = None  # sampling.max_completion_tokens
    temperature: float | None = None  # sampling.temperature, only if the source sets it
    runtime: str | None = None  # env.agent.runtime.type, only if the file sets it; [05] [01] -
    harness: str | None = None  # env.agent.harness.id; [05] [01] -
    executor_backend: str | None = None  # env.executor_backend; [05] [01] args.executor_backend
    has_agent: bool | None = None  # whether env.agent is present
    max_concurrent: int | None = None  # serve.max_concurrent; [05] [01] -
    address: str | None = None  # serve.address; [05] [01] -
    args: Mapping[str, object] | None = None  # the rest of env; [05] [01] args


class Environments(NamedTuple):
    """The sources of tasks."""

    train: tuple[EnvironmentSource, ...] | None = (
        None  # orchestrator.train.source; [05] ...train.env; [01] orchestrator.env
    )
    evaluate: tuple[EnvironmentSource, ...] | None = None  # orchestrator.eval.source; [05] [01] orchestrator.eval.env


class OnlineEvaluation(NamedTuple):
    """Online evaluation. The part is None if the file has no [orchestrator.eval]."""

    interval_steps: int | None = None  # orchestrator.eval.interval
    examples: int | None = None  # orchestrator.eval.num_examples; -1 = all
    group_size: int | None = None  # orchestrator.eval.group_size; [01] orchestrator.eval.rollouts_per_example
    max_completion_tokens: int | None = None  # orchestrator.eval.sampling.max_completion_tokens; [01] ...max_tokens
    temperature: float | None = None  # orchestrator.eval.sampling.temperature


class Monitor(NamedTuple):
    """Weights & Biases. The part is None if the file does not enable it."""

    project: str | None = None  # monitors.wandb.project; [05] [01] wandb.project
    name: str | None = None  # monitors.wandb.name; [05] [01] wandb.name
    offline: bool | None = None  # monitors.wandb.offline; [05] [01] wandb.offline


@dataclass(frozen=True, slots=True, kw_only=True)
class PrimeRl:
    """The parts of a prime-rl file. None: the file has no such part."""

    launch: LaunchPart = LaunchPart()  # noqa: RUF009 - a named tuple, which cannot change
    resume: Resume | None = None
    saving: Saving | None = None
    deployment: Deployment | None = None
    trainer: Trainer | None = None
    finetune: Finetune | None = None
    lora: Lora | None = None
    rollout: RolloutPart | None = None
    environments: Environments | None = None
    evaluation: OnlineEvaluation | None = None
    weight_broadcast: WeightBroadcast | None = None
    transport: Transport | None = None
    monitor: Monitor | None = None


class Recipe(NamedTuple):
    """A training by another program, from a file's `[recipe]` table.

    None: the program's usual value. Sizes of the layout count GPUs; `gpus` = shards x replicas x tensor_parallel x
    pipeline_parallel.
    """

    program: str | None = None  # "hf", "trl", "unsloth", "torchtitan", ...: registry/recipes.toml
    version: str | None = None  # of the program: "0.7.0", "2025-09"; None: the newest
    objective: str | None = None  # "sft", "dpo", "grpo"
    model_name: str | None = None  # hub id or local folder
    gpus: int | None = None
    sharding: str | None = None  # "none", "ddp", "fsdp", "zero1", "zero2", "zero3", "device_map" (layers over GPUs)
    shards: int | None = None  # GPUs that share one copy of the weights, including context parallelism
    replicas: int | None = None  # copies
    shards_ends: bool | None = None  # embedding and head are gathered on their own, not with the whole model
    tensor_parallel: int | None = None
    context_parallel: int | None = None
    expert_parallel: int | None = None
    pipeline_parallel: int | None = None
    ctx_tokens: int | None = None  # tokens of one sequence
    micro_batch: int | None = None  # sequences that one GPU computes at once
    micro_batches_per_step: int | None = None  # gradient accumulation
    weight_dtype: str | None = None  # of trained weights: "fp32" (master weights) or "bf16" (pure)
    compute_dtype: str | None = None  # "fp32", "bf16", "fp16", "float8"
    optimizer: str | None = None  # "adamw", "adamw-8bit", "paged-adamw-8bit", "muon", "sgd", ...
    optimizer_state_dtype: str | None = None  # "fp32", "bf16"; of adamw
    optimizer_in_backward: bool | None = None  # each gradient is used and freed as soon as it is computed
    optimizer_offload: bool | None = None  # states in the host's memory
    parameter_offload: bool | None = None  # weights too
    head: str | None = None  # "full", "token-chunked", "vocab-chunked", "fused-loss", "liger", "cce", "in-place"
    head_chunks: int | None = None  # the number of chunks of tokens, for "token-chunked"
    head_chunk_vocab: int | None = None  # columns of a chunk, for "vocab-chunked"
    activation_checkpointing: str | None = None  # "none", "selective", "full"
    activation_offloading: bool | None = None
    adapter: str | None = None  # "none", "lora", "dora", "adapter", "adapter-v2"
    adapter_rank: int | None = None
    adapter_targets: tuple[str, ...] | None = None  # module names, or "all"
    adapter_parameters: int | None = None  # trained parameters, if known
    trains_embeddings: bool | None = None  # embedding and head are trained in addition to the adapter
    quantization: str | None = None  # of the frozen base: "nf4", "nf4-dq" (double), "int4", "int8"
    reference_model: bool | None = None  # a frozen copy on the GPU; of dpo and grpo, for the divergence
    engine_memory_fraction: float | None = None  # share of the GPU that a vLLM beside the trainer keeps during a step
    compile: bool | None = None
    attention: str | None = None  # "flash", "sdpa", "eager"
    base_dtype: str | None = None  # of the frozen base of an adapter, where it is not quantised: "fp32", "bf16"
