"""The tables of run.toml that describe a training. Values only.

The annotations are the schema: types, bounds (which pydantic understands too) and a Doc each, from which
docs/config.md is generated. A fault of one field is refused by its type and bounds; a fault of several fields
together is a rule in `rules/`.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

from prime_train.spec.annotations import Doc, Ge, Gt, Key, Le, Lt, MinLen

Positive = Annotated[int, Gt(0)]
NotNegative = Annotated[int, Ge(0)]
Fraction = Annotated[float, Ge(0.0), Le(1.0)]


# The packages in programs/, by name. "auto": the program that the other tables of the config belong to.
ProgramName = Literal["auto", "bundled", "vllm", "prime_rl"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What the run is called, and how long it goes."""

    name: Annotated[str, Doc("Names the run and its directory. The same name goes on with the same run.")]
    kind: Annotated[
        Literal["pretrain", "serve"],
        Doc(
            "`pretrain` trains a model; `serve` has vLLM serve one and trains nothing: [run] without max_steps, "
            "[inference] and [prime_train] are then all there is."
        ),
    ] = "pretrain"
    seed: Annotated[NotNegative, Doc("Seeds Python, NumPy, torch, the data order and the loader workers.")] = 1234
    max_steps: Annotated[Positive, Doc("Optimizer steps to take in all, over every attempt.")]
    dir: Annotated[str, Doc("Directory that holds run directories. Relative to the working directory.")] = "runs"
    program: Annotated[
        ProgramName, Doc("The program that trains or serves; `auto` = the one that the other tables belong to.")
    ] = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """The decoder that is trained."""

    path: Annotated[
        str | None, Doc("A Hugging Face folder (Llama or Qwen3). Its config.json replaces the size fields below.")
    ] = None
    init: Annotated[
        Literal["weights", "random"], Doc("With `path`: load its weights, or take only its architecture.")
    ] = "weights"
    layers: Annotated[Positive, Doc("Decoder blocks.")] = 4
    hidden_size: Annotated[Positive, Doc("Width of the residual stream.")] = 256
    heads: Annotated[Positive, Doc("Query heads.")] = 4
    kv_heads: Annotated[Positive | None, Doc("Key and value heads; unset = as many as query heads.")] = None
    head_dim: Annotated[Positive | None, Doc("Width of one head; unset = hidden_size / heads.")] = None
    mlp_size: Annotated[
        Positive | None, Doc("Inner width of the SwiGLU block; unset = 8/3 of hidden_size, rounded up to 64.")
    ] = None
    rope_theta: Annotated[float, Gt(0), Doc("Base of the rotary embedding.")] = 10000.0
    norm_eps: Annotated[float, Gt(0), Doc("Epsilon of RMSNorm.")] = 1e-05
    tie_embeddings: Annotated[bool, Doc("The output head shares the input embedding.")] = True
    qk_norm: Annotated[bool, Doc("RMSNorm on queries and keys, as Qwen3 has it.")] = False
    compile: Annotated[bool, Doc("Compile the blocks with torch.compile. Slower to start; no gain on a CPU.")] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One place that text comes from."""

    kind: Annotated[
        Literal["python-stdlib", "files", "hf-dataset"],
        Doc(
            "`python-stdlib`: the source of the running interpreter's standard library; `files`: local .txt, "
            ".jsonl or .parquet; `hf-dataset`: a Hugging Face dataset by name or local folder."
        ),
    ]
    path: Annotated[str | None, Doc("`files`: a file, a folder or a glob. `hf-dataset`: the name or a folder.")] = None
    subset: Annotated[str | None, Doc("`hf-dataset`: the configuration of the dataset.")] = None
    split: Annotated[str, Doc("`hf-dataset`: the split to train on.")] = "train"
    text_field: Annotated[str, Doc("Column or key that holds the text of a document.")] = "text"


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """The text, and how it is cut into sequences."""

    sources: Annotated[tuple[Source, ...], MinLen(1), Doc("Where the text comes from.")]
    sampling_probs: Annotated[
        tuple[Fraction, ...] | None,
        Doc("One per source, summing to 1; unset = in proportion to their number of documents."),
    ] = None
    ctx_tokens: Annotated[int, Ge(8), Doc("Tokens in a training sequence.")] = 512
    pack_buffer_docs: Annotated[
        Positive, Doc("Documents that are packed together, best fit first; at most all there are.")
    ] = 1024
    loader_workers: Annotated[NotNegative, Doc("Processes that tokenise and pack ahead; 0 = in the trainer.")] = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokenizer:
    """What turns text into tokens."""

    path: Annotated[
        str | None, Doc("A Hugging Face tokenizer folder. Unset: a byte-level BPE is trained on the data and cached.")
    ] = None
    vocab_size: Annotated[int, Ge(260), Doc("Size of the BPE that is trained.")] = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """How many sequences at once."""

    micro_batch: Annotated[Positive, Doc("Sequences that one process holds at once.")] = 8
    global_batch: Annotated[
        Positive | None, Doc("Sequences in one optimizer step; unset = micro_batch x processes.")
    ] = None
    global_batch_tokens: Annotated[
        Positive | None, Doc("The same in tokens: a multiple of ctx_tokens. Set one of the two.")
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Optim:
    """AdamW, and the clip before it."""

    lr: Annotated[float, Gt(0), Doc("Peak learning rate of AdamW.")] = 0.001
    beta1: Annotated[float, Ge(0), Lt(1), Doc("Decay of the first moment.")] = 0.9
    beta2: Annotated[float, Ge(0), Lt(1), Doc("Decay of the second moment.")] = 0.95
    eps: Annotated[float, Gt(0), Doc("Term in the denominator of AdamW.")] = 1e-08
    weight_decay: Annotated[float, Ge(0), Doc("Decoupled decay; on matrices only.")] = 0.1
    clip_norm: Annotated[Annotated[float, Gt(0)] | None, Doc("Largest global gradient norm.")] = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """The learning rate over the run."""

    kind: Annotated[
        Literal["cosine", "wsd", "constant"], Doc("`wsd` = warm-up, stable, decay. All begin with the warm-up.")
    ] = "cosine"
    warmup_steps: Annotated[NotNegative, Doc("Steps over which the rate rises linearly.")] = 0
    decay_steps: Annotated[Positive | None, Doc("`wsd`: steps of the final decay; unset = 20 % of max_steps.")] = None
    decay: Annotated[Literal["linear", "sqrt"], Doc("`wsd`: the shape of the final decay.")] = "linear"
    min_lr_ratio: Annotated[Fraction, Doc("Where the decay ends, as a part of lr.")] = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallel:
    """How the work is spread over processes."""

    processes: Annotated[Positive, Doc("Training processes, one per GPU.")] = 1
    dp_replicate: Annotated[Positive | None, Doc("Replicas of the model (DDP); unset = processes / dp_shard.")] = None
    dp_shard: Annotated[Positive, Doc("Processes that one replica is sharded over (FSDP2).")] = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """When the state is saved, and what is kept."""

    interval_steps: Annotated[Positive | None, Doc("Steps between checkpoints.")] = 100
    keep_last: Annotated[Positive, Doc("Newest complete checkpoints to keep.")] = 2
    keep_every_steps: Annotated[Positive | None, Doc("Also keep every checkpoint at a multiple of this.")] = None
    async_save: Annotated[bool, Key("async"), Doc("Write in the background; one save in flight.")] = True
    final: Annotated[
        Literal["resumable", "hf"],
        Doc("What the end leaves: a checkpoint to go on from, or a Hugging Face folder beside it."),
    ] = "resumable"


@dataclass(frozen=True, slots=True, kw_only=True)
class Eval:
    """What is measured on held-out text."""

    interval_steps: Annotated[Positive | None, Doc("Steps between evaluations; one is made at the end.")] = 100
    held_out_ratio: Annotated[
        Annotated[float, Gt(0), Lt(0.5)],
        Doc("Part of the documents that is never trained on; of a source with a single document its last part."),
    ] = 0.02
    batches: Annotated[Positive, Doc("Micro-batches of held-out text in one evaluation.")] = 8
    prompts: Annotated[tuple[str, ...], Doc("Continued by the model at each evaluation.")] = ()
    sample_tokens: Annotated[Positive, Doc("Tokens to generate per prompt.")] = 48
    temperature: Annotated[float, Ge(0), Doc("Of the samples; 0 = the likeliest token.")] = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """The number format of the computation."""

    compute: Annotated[
        Literal["auto", "fp32", "bf16"],
        Doc("Autocast type; `auto` = bf16 on a GPU that has it, else fp32. Weights stay fp32."),
    ] = "auto"
