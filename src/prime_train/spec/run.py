"""The tables of run.toml, except [inference]. Values only.

The annotations are the schema: types, bounds (which pydantic checks, too) and a Doc for docs/config.md. Type and
bounds check each field alone; rules in `rules/` check several fields together.
"""

from typing import Annotated, Literal

from prime_train.spec.annotations import Doc, Elsewhere, Ge, Gt, Key, Le, Lt, MinLen
from prime_train.spec.frozen import frozen_dataclass
from prime_train.spec.rl import Adapter

Positive = Annotated[int, Gt(0)]
NotNegative = Annotated[int, Ge(0)]
Fraction = Annotated[float, Ge(0.0), Le(1.0)]

_BATCH_SEQUENCES = 8  # of eval.batches: the default of batch.micro_batch


# The packages in programs/. "auto": the program that the other tables of the config belong to.
ProgramName = Literal["auto", "bundled", "vllm", "prime_rl"]


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The name and the length of the run."""

    name: Annotated[str, Doc("Name of the run and its directory. A start with the same name continues the run.")]
    kind: Annotated[
        Literal["pretrain", "sft", "rl", "serve"],
        Doc(
            "`pretrain` trains on text, `sft` on the assistant's part of chats, `rl` on rewards (GRPO). `serve` only "
            "serves a model with vLLM: the config has [run] without max_steps, [inference] and [prime_train]."
        ),
    ] = "pretrain"
    seed: Annotated[NotNegative, Doc("Seed of Python, NumPy, torch, the data order and the loader workers.")] = 1234
    max_steps: Annotated[Positive, Doc("Number of optimizer steps of the run, over all attempts.")]
    dir: Annotated[str, Doc("Directory with the run directories, relative to the working directory.")] = "runs"
    program: Annotated[
        ProgramName, Doc("Program that trains or serves; `auto` = the program that the other tables belong to.")
    ] = "auto"


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """The decoder to train."""

    path: Annotated[
        str | None,
        Doc(
            "A Hugging Face folder of a Llama, Qwen2, Qwen3, Qwen3-MoE, Mistral, GLM-4-MoE or GPT-2. Its config.json "
            "replaces the size fields below."
        ),
    ] = None
    init: Annotated[
        Literal["weights", "random"], Doc("With `path`: load the weights, or use only the architecture.")
    ] = "weights"
    init_from: Annotated[
        str | None,
        Doc("Another run, by its name under run.dir or its directory: start with the weights of its checkpoint."),
    ] = None
    init_step: Annotated[
        Positive | None, Doc("With `init_from`: the step of the checkpoint; unset = its newest complete one.")
    ] = None
    init_optimizer: Annotated[bool, Doc("With `init_from`: take the optimizer's state as well as the weights.")] = False
    layers: Annotated[Positive, Doc("Decoder blocks.")] = 4
    hidden_size: Annotated[Positive, Doc("Width of the residual stream.")] = 256
    heads: Annotated[Positive, Doc("Query heads.")] = 4
    kv_heads: Annotated[Positive | None, Doc("Key and value heads; unset = the number of query heads.")] = None
    head_dim: Annotated[Positive | None, Doc("Width of one head; unset = hidden_size / heads.")] = None
    mlp_size: Annotated[
        Positive | None, Doc("Inner width of the SwiGLU block; unset = 8/3 of hidden_size, rounded up to 64.")
    ] = None
    rope_theta: Annotated[float, Gt(0), Doc("Base of the rotary embedding.")] = 10000.0
    norm_eps: Annotated[float, Gt(0), Doc("Epsilon of RMSNorm.")] = 1e-05
    tie_embeddings: Annotated[bool, Doc("The output head shares the input embedding.")] = True
    qk_norm: Annotated[bool, Doc("RMSNorm on queries and keys, as in Qwen3.")] = False
    experts: Annotated[NotNegative, Doc("Experts of each block instead of one MLP; 0 = none.")] = 0
    experts_per_token: Annotated[Positive, Doc("`experts`: those that a token visits.")] = 2
    expert_mlp_size: Annotated[
        Positive | None,
        Doc("`experts`: inner width of one; unset = mlp_size / experts_per_token, rounded up to 64."),
    ] = None
    shared_experts: Annotated[
        NotNegative, Doc("`experts`: further experts that every token visits, computed as one MLP.")
    ] = 0
    router: Annotated[
        Literal["sigmoid", "softmax"],
        Doc(
            "`experts`: how a token chooses. `sigmoid`: as DeepSeek-V3, with a bias for each expert that balances the "
            "load; exported as glm4_moe. `softmax`: as Qwen3-MoE, without one; needs qk_norm."
        ),
    ] = "sigmoid"
    balance_rate: Annotated[
        Annotated[float, Ge(0)] | None,
        Doc("`sigmoid`: change of the balancing biases after each step; unset = 0.001."),
    ] = None
    router_z_loss: Annotated[
        float, Ge(0), Doc("Weight of the squared log-sum-exp of the router's logits in the gradient; 0 = none.")
    ] = 0.0
    compile: Annotated[
        bool, Doc("Compile the blocks with torch.compile. The start takes longer; no gain on a CPU.")
    ] = False
    recompute: Annotated[
        Literal["none", "selective", "full"],
        Doc(
            "Activation checkpointing: compute the activations of a block again in the backward, all of them (`full`) "
            "or those that need no matrix product and no attention (`selective`). Less memory, more time."
        ),
    ] = "none"
    recompute_every: Annotated[Positive, Doc("`recompute`: only every N-th block, the first one included.")] = 1
    pad_vocab: Annotated[
        bool,
        Doc("Rows of embedding and head rounded up to 128, which a GPU computes faster; no token has them."),
    ] = False
    lora: Annotated[Adapter | None, Doc("Train low-rank adapters instead of the weights.")] = None

    @property
    def expert_balance_rate(self) -> float:
        """Change of the balancing biases after a step. Routers without such biases do not use it."""
        return 0.001 if self.balance_rate is None else self.balance_rate

    @property
    def starts_trained(self) -> bool:
        """Whether the first weights are those of a model folder or of another run."""
        return self.init_from is not None or (self.path is not None and self.init == "weights")


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One source of text."""

    kind: Annotated[
        Literal["python-stdlib", "files", "hf-dataset", "tokens", "demonstrations"],
        Doc(
            "`python-stdlib`: the source of the running interpreter's standard library; `files`: local .txt, "
            ".jsonl or .parquet; `hf-dataset`: a Hugging Face dataset by name or local folder; `tokens`: local .bin "
            "of llm.c or .npy, written by the tokenizer of tokenizer.path, with its end-of-text token between "
            'documents; `demonstrations`: solved tasks of [[tasks]], with run.kind = "sft".'
        ),
    ]
    path: Annotated[
        str | None, Doc("`files`, `tokens`: a file, a folder or a glob. `hf-dataset`: the name or a folder.")
    ] = None
    subset: Annotated[str | None, Doc("`hf-dataset`: the configuration of the dataset.")] = None
    split: Annotated[str, Doc("`hf-dataset`: the split to train on.")] = "train"
    text_field: Annotated[str, Doc("Column or key with the text of a document.")] = "text"
    messages_field: Annotated[
        str,
        Doc(
            '`run.kind = "sft"`: column or key with the list of messages of a chat. Without it a document has `prompt` '
            "and `completion`."
        ),
    ] = "messages"
    count: Annotated[Positive, Doc("`demonstrations`: number of solved tasks.")] = 4096


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """The training text and its sequences."""

    sources: Annotated[tuple[Source, ...], MinLen(1), Doc("The sources of text.")]
    sampling_probs: Annotated[
        tuple[Fraction, ...] | None,
        Doc("One probability per source, with the sum 1; unset = in proportion to the numbers of documents."),
    ] = None
    sampling_unit: Annotated[
        Literal["documents", "tokens"],
        Doc(
            "What sampling_probs count. `tokens`: each source has its part of all tokens, whatever the lengths of its "
            "documents are, at every moment to within two documents."
        ),
    ] = "documents"
    document_start: Annotated[
        Literal["none", "eos"],
        Doc(
            "`eos`: the end-of-text token precedes each document and each of eval.prompts, so that first tokens are "
            "predicted and an empty prompt is continued as a document begins."
        ),
    ] = "none"
    ctx_tokens: Annotated[int, Ge(8), Doc("Tokens of a training sequence.")] = 512
    pack_buffer_docs: Annotated[Positive, Doc("Number of documents that are packed together, best fit first.")] = 1024
    loader_workers: Annotated[
        NotNegative | Literal["auto"],
        Doc(
            "Processes that tokenise and pack in advance; 0 = the trainer does it; `auto` = 1.5 times what the trainer "
            "uses, as measured in its first 20 steps."
        ),
    ] = 1

    @property
    def planned_workers(self) -> int:
        """The number of workers before it is measured: `auto` counts as 4."""
        return 4 if self.loader_workers == "auto" else self.loader_workers


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class Tokenizer:
    """The conversion of text into tokens."""

    path: Annotated[
        str | None, Doc("A Hugging Face tokenizer folder. Unset: a byte-level BPE is trained on the data and cached.")
    ] = None
    vocab_size: Annotated[int, Ge(260), Doc("Vocabulary size of a BPE that is trained.")] = 4096


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
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


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
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


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
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


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
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
        Doc("Longest wait for another process in an exchange; unset = torch's limit, 10 min on GPUs."),
    ] = None
    machines: Annotated[
        Positive,
        Doc("Machines with an equal part of the processes each; `prime-train run` is started on every one of them."),
    ] = 1

    @property
    def processes_here(self) -> int:
        """Training processes of one machine."""
        return max(1, self.processes // self.machines)


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
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
        Doc("The result at the end: a checkpoint to resume from, or a Hugging Face folder in addition."),
    ] = "resumable"
    export_dtype: Annotated[
        Literal["fp32", "bf16"], Doc("Type of the weights in that folder, and in those of `ckpt to-hf`.")
    ] = "fp32"


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class EvalSet:
    """Text of its own whose loss is measured at each evaluation. No run learns from it."""

    name: Annotated[str, Doc("Name of its metrics: eval/NAME/loss in nats per token, eval/NAME/bits_per_byte.")]
    sources: Annotated[tuple[Source, ...], MinLen(1), Doc("The sources of its text, as data.sources.")]
    tokens: Annotated[
        Positive, Doc("Tokens per evaluation, in whole sequences of ctx_tokens; the same documents for every seed.")
    ] = 262144


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """Questions with known answers that the model gets at evaluations. `eval.tasks` counts the tasks of [[tasks]]."""

    kind: Annotated[
        Literal["hellaswag", "lm-eval"],
        Doc(
            "`hellaswag`: the most likely of four endings, from a local file. `lm-eval`: a task of the "
            "lm-evaluation-harness, which the `eval` extra installs."
        ),
    ]
    path: Annotated[
        str | None,
        Doc("`hellaswag`: the .jsonl file. `lm-eval`: a folder of task files, which lm-eval runs as code."),
    ] = None
    task: Annotated[str | None, Doc("`lm-eval`: the task or group, for example `arc_easy`.")] = None
    name: Annotated[
        str | None, Doc("`hellaswag`: name of its metrics; unset = hellaswag. Those of lm-eval have the task's name.")
    ] = None
    examples: Annotated[Positive | None, Doc("Ask only the first ones; unset = all.")] = None
    shots: Annotated[NotNegative | None, Doc("`lm-eval`: answered examples in the prompt; unset = as in the task.")] = (
        None
    )
    every: Annotated[Positive, Doc("Run at every n-th evaluation, and at the last step.")] = 1
    download: Annotated[
        bool, Doc("`lm-eval`: load data of the task from the network; else only from local files and the cache.")
    ] = False


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class Eval:
    """The evaluation on held-out text."""

    interval_steps: Annotated[Positive | None, Doc("Steps between evaluations. The last step has one, too.")] = 100
    held_out_ratio: Annotated[
        Annotated[float, Gt(0), Lt(0.5)],
        Doc("Fraction of the documents that is held out; for a single document, its last part."),
    ] = 0.02
    tokens: Annotated[
        Positive | None,
        Doc("Held-out tokens per evaluation, in whole sequences of ctx_tokens; unset = 8 x batches sequences."),
    ] = None
    batches: Annotated[
        Positive, Doc("Groups of 8 held-out sequences per evaluation, for every micro_batch; `tokens` replaces it.")
    ] = 8
    prompts: Annotated[tuple[str, ...], Doc("Texts that the model continues at each evaluation.")] = ()
    sample_tokens: Annotated[Positive, Doc("Tokens to generate per prompt.")] = 48
    temperature: Annotated[
        float, Ge(0), Doc("Sampling temperature of the continuations; 0 = the most probable token.")
    ] = 0.8
    tasks: Annotated[Positive, Doc("Held-out tasks of each of [[tasks]] that an evaluation poses.")] = 64
    task_tokens: Annotated[
        Positive | None, Doc("Maximum tokens of one answer to a task; unset = rl.answer_tokens, or 64.")
    ] = None
    sets: Annotated[tuple[EvalSet, ...], Doc("More text whose loss is measured.")] = ()
    benchmarks: Annotated[tuple[Benchmark, ...], Doc("Questions with known answers.")] = ()

    def sequences(self, ctx_tokens: int) -> int:
        """Held-out sequences per evaluation: the same for every micro-batch, also where that shrinks during the run."""
        return self.batches * _BATCH_SEQUENCES if self.tokens is None else -(-self.tokens // ctx_tokens)


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """The number format of the computation."""

    compute: Annotated[
        Literal["auto", "fp32", "bf16"],
        Doc("Autocast type; `auto` = bf16 on a GPU with bf16, else fp32. Weights are always fp32."),
    ] = "auto"
    tf32: Annotated[bool, Doc("fp32 matrix products of a GPU in TF32, which has 10 bits of mantissa.")] = False


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Traces of single steps, written into `profile/` of the run directory."""

    steps: Annotated[
        tuple[Positive, ...], Doc("Steps of which rank 0 writes a Chrome trace by torch.profiler; they take longer.")
    ] = ()
    memory_snapshot: Annotated[
        bool, Doc("On a GPU, also record the memory of these steps, for pytorch.org/memory_viz.")
    ] = False


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """Restarts after a crash."""

    max_fruitless_attempts: Annotated[
        Positive, Doc("Maximum of consecutive attempts without a new complete checkpoint.")
    ] = 3
    backoff_s: Annotated[float, Ge(0), Doc("Wait before a restart; it doubles each time.")] = 1.0
    backoff_max_s: Annotated[float, Ge(0), Doc("Longest wait before a restart.")] = 60.0


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """Limits of silence. A longer silence counts as a hang."""

    startup_limit_s: Annotated[float, Gt(0), Doc("Longest silence before the first step.")] = 900.0
    join_limit_s: Annotated[
        float, Gt(0), Doc("Longest wait of a machine for the others, with parallel.machines above 1.")
    ] = 1800.0
    step_limit_s: Annotated[
        Annotated[float, Gt(0)] | None, Doc("Longest silence between two steps; unset: learned from earlier steps.")
    ] = None
    slow_phase_limit_s: Annotated[
        Annotated[float, Gt(0)], Doc("Longest silence during evaluation, export and the wait for a checkpoint.")
    ] = 1800.0


Answer = Literal["off", "alert", "restart"]


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class Watches:
    """The response if a watch finds a problem: `alert` reports it, `restart` starts another attempt."""

    gpu: Annotated[Answer, Doc("A GPU is lost, needs a reset, or has memory errors.")] = "restart"
    engine: Annotated[Answer, Doc("vLLM generates no tokens while requests wait.")] = "restart"
    hang: Annotated[Answer, Doc("The trainer is idle and silent for longer than ever before.")] = "restart"
    disk: Annotated[
        Literal["off", "alert", "pause"],
        Doc("The disk will be full before the next checkpoint; `pause` saves and ends the run."),
    ] = "pause"
    host: Annotated[Literal["off", "alert"], Doc("Memory that grows with each save, open files, shared memory.")] = (
        "alert"
    )
    preemption: Annotated[
        Literal["off", "alert", "pause"],
        Doc("AWS, Google Cloud or Azure takes the machine away; `pause` saves if the time allows, and ends the run."),
    ] = "pause"


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """Settings that may change so that a run can continue."""

    on_oom: Annotated[
        Literal["stop", "shrink"],
        Doc(
            "Out of memory: end the run, or halve the micro-batch with the same global batch (sums round differently)."
        ),
    ] = "stop"


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class Cleanup:
    """Deletion of files during the run.

    The newest complete checkpoint, pinned ones and those of keep_every_steps are never deleted.
    """

    enabled: Annotated[bool, Doc("Delete superseded checkpoints when space is low.")] = True
    max_disk_gb: Annotated[
        Annotated[float, Gt(0)] | None, Doc("Maximum size of the run's own files, in 10^9 bytes.")
    ] = None
    max_used_ratio: Annotated[
        float, Gt(0), Le(1), Doc("Used fraction of the disk, by all files, above which space is freed.")
    ] = 0.85


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class Alerts:
    """Messages about an alarm, a restart or an end, in addition to the console and the events."""

    command: Annotated[
        tuple[str, ...], Doc("A program and its arguments; it reads the alert as one JSON object from its input.")
    ] = ()
    webhook_env: Annotated[
        str | None,
        Doc("Environment variable with an https address, to which the alert is posted as JSON."),
    ] = None


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class Backup:
    """Copies of complete checkpoints in a bucket, and the treatment of checkpoints that are no longer the newest."""

    provider: Annotated[
        Literal["off", "local", "s3", "b2", "gcs", "azure", "hf"] | None,
        Doc("Storage of the copies; unset = the default of `prime-train backup configure`, `off` = no copies."),
    ] = None
    bucket: Annotated[str | None, Doc("Bucket; `local`: an existing folder; `hf`: a repository.")] = None
    prefix: Annotated[str, Doc("Folder in the bucket; each run has a folder below it.")] = ""
    endpoint: Annotated[str | None, Doc("`s3`, `b2`: address of the server; unset = AWS_ENDPOINT_URL or AWS.")] = None
    interval_steps: Annotated[Positive | None, Doc("Least steps between copies; unset = every checkpoint.")] = None
    keep_last: Annotated[Positive, Doc("Number of the newest copies to keep in the bucket.")] = 3
    local_keep: Annotated[Positive, Doc("With delete_after_upload: newest complete checkpoints kept on the disk.")] = 1
    delete_after_upload: Annotated[bool, Doc("Delete older checkpoints here when their copy is proved by hash.")] = (
        False
    )
    max_upload_mb_per_s: Annotated[
        Annotated[float, Gt(0)] | None, Doc("Limit of the upload, in megabytes per second; unset = none.")
    ] = None
    flush_limit_s: Annotated[float, Ge(0), Doc("Longest wait for the last copy at the end of `run`.")] = 600.0
    compress: Annotated[bool, Doc("Pack older checkpoints here, and copies on their way, without loss.")] = False


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class Wandb:
    """A mirror of the run at Weights & Biases, in a separate process. Needs the extra `wandb`."""

    project: Annotated[str | None, Doc("W&B project; unset = no mirror.")] = None
    entity: Annotated[str | None, Doc("User or team of the project; unset = the default of the login.")] = None
    mode: Annotated[Literal["online", "offline"], Doc("`offline` stores the data for `wandb sync`.")] = "online"


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class PrimeTrain:
    """The supervision of the run."""

    restart: Annotated[Restart, Doc("Restarts after a crash.")] = Restart()
    heartbeat: Annotated[Heartbeat, Doc("Limits of silence.")] = Heartbeat()
    watch: Annotated[Watches, Doc("Responses to problems that a watch finds.")] = Watches()
    recovery: Annotated[Recovery, Doc("Settings that may change so that the run can continue.")] = Recovery()
    cleanup: Annotated[Cleanup, Doc("Deletion of files during the run.")] = Cleanup()
    alerts: Annotated[Alerts, Doc("Messages about alarms, restarts and ends.")] = Alerts()
    backup: Annotated[Backup, Doc("Copies of checkpoints.")] = Backup()
    wandb: Annotated[Wandb, Doc("The mirror at Weights & Biases.")] = Wandb()
    stop_grace_s: Annotated[float, Gt(0), Doc("Time for the trainer to save a checkpoint before it is killed.")] = 60.0
    budget_hours: Annotated[
        Annotated[float, Gt(0)] | None, Doc("Maximum hours of the run; `validate` warns if the estimate is longer.")
    ] = None
    budget_usd: Annotated[
        Annotated[float, Gt(0)] | None, Doc("Maximum cost of the run; `validate` warns if the estimate is higher.")
    ] = None
    interruptions_per_day: Annotated[
        Annotated[float, Gt(0)] | None,
        Doc("Interruptions of the spot machine per day; unset = the price table's. `validate` checks the interval."),
    ] = None
    expected_prompt_tokens: Annotated[Positive | None, Doc("Tokens of the longest prompt."), Elsewhere()] = None
