"""Context lengths of trainer, orchestrator, server and model that do not fit each other. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prime_train.core.findings import Problem, Severity
from prime_train.rules.model.model_sizes import sizes_of
from prime_train.rules.rule import Problems, if_known, rule, sharper_rule, suggest, values_of
from prime_train.spec import RunSpec
from prime_train.spec.answers import prime_rl_of
from prime_train.spec.decoder_size import scaled_positions

if TYPE_CHECKING:
    from prime_train.facts.facts import Facts, ModelContext


@rule("LEN003", Severity.ERROR)
def trainer_shorter_than_rollouts(run: RunSpec) -> Problems:
    """The trainer's sequences must be at least as long as the orchestrator's.

    the trainer cannot hold what the orchestrator sends it: prime-rl refuses to start

    Source: prime-rl's validator "trainer.seq_len >= orchestrator.seq_len".

    Bad (prime-rl 2026-08):
        seq_len = "-"
        [trainer.model]
        seq_len = 2048
        [orchestrator]
        seq_len = 4096
    Good (prime-rl 2026-08):
        seq_len = "-"
        [trainer.model]
        seq_len = 4096
        [orchestrator]
        seq_len = 4096
    """
    trained, rolled = values_of(run, "trainer.ctx_tokens", "rollout.ctx_tokens") or (0, 0)
    if trained < rolled:
        yield suggest("trainer.ctx_tokens", f"{trained} tokens are less than `rollout.ctx_tokens` {rolled}", rolled)


@rule("LEN004", Severity.WARNING)
def completion_beyond_training(run: RunSpec) -> Problems:
    """A completion should be shorter than the sequence that is trained on, which has its prompt too.

    the part beyond the training sequence is cut off: its tokens are generated and never trained on

    A completion as long as the sequence is not reported if the server's context has no room for its prompt either,
    because LEN001 reports that.

    Source: prime-rl, orchestrator.seq_len (longer samples are truncated).

    Bad (prime-rl 2026-08):
        seq_len = 2048
        [orchestrator.train.sampling]
        max_completion_tokens = 3072
    Bad (prime-rl 2026-08):
        [orchestrator.train.sampling]
        max_completion_tokens = 4096
        [inference.vllm]
        max_model_len = 8192
    Bad (prime-rl 2026-01):
        seq_len = 2048
        [orchestrator.sampling]
        max_tokens = 2048
    Good (prime-rl 2026-08):
        seq_len = 4096
        [orchestrator.train.sampling]
        max_completion_tokens = 3072
    """
    completion, ctx_tokens = values_of(run, "rollout.max_completion_tokens", "rollout.ctx_tokens") or (0, 1)
    served_tokens = run.inference.ctx_tokens if run.inference is not None else None
    left = "are more than" if completion > ctx_tokens else "leave no room for a prompt in"
    if completion > ctx_tokens or completion == ctx_tokens != served_tokens:
        what = f"{completion} completion tokens {left} `rollout.ctx_tokens` {ctx_tokens}"
        fix = "raise `rollout.ctx_tokens` or lower `rollout.max_completion_tokens`"
        yield Problem("rollout.max_completion_tokens", what, fix=fix)


@rule("LEN005", Severity.ERROR)
def length_not_divisible_by_context_parallel(run: RunSpec) -> Problems:
    """The training sequence must divide by the context-parallel degree.

    every rank of the group takes an equal slice of each sequence

    Source: prime-rl's sft validator and the assertion "must be divisible by seq_len_divisor" of its trainer.

    Bad (prime-rl 2026-08):
        seq_len = 4094
        [trainer.model]
        cp = 4
        [deployment]
        num_train_gpus = 4
    Good (prime-rl 2026-08):
        [trainer.model]
        cp = 4
        [deployment]
        num_train_gpus = 4
    """
    parts = prime_rl_of(run)
    trainer = parts.trainer
    if trainer is None or trainer.context_parallel is None or trainer.context_parallel < 2:
        return
    finetune = parts.finetune
    at = "trainer.ctx_tokens" if finetune is None else "finetune.ctx_tokens"
    ctx_tokens = trainer.ctx_tokens if finetune is None else finetune.ctx_tokens
    if ctx_tokens is not None and ctx_tokens % trainer.context_parallel:
        unit = 2 * trainer.context_parallel
        yield suggest(
            at,
            f"{ctx_tokens} tokens do not divide by `trainer.context_parallel` {trainer.context_parallel}",
            -(-ctx_tokens // unit) * unit,
        )


@sharper_rule("LEN006", Severity.WARNING, uses=("model_contexts",))
def context_beyond_the_model(run: RunSpec, facts: Facts | None) -> Problems:
    """The server's context must not be longer than the model's positions.

    vLLM refuses to start, because the model has never seen positions beyond those

    If the model's config.json is on this machine, its positions count and the finding is an error. Otherwise those of
    the registry count and it is a warning, because a model may have changed since. Rope scaling, of the model or of
    `inference.rope_scaling` in its place, is applied as in vLLM. A model that is in neither is not judged.

    Source: config.json of the models (max_position_embeddings); vLLM's "User-specified max_model_len is greater
    than the derived max_model_len".

    Bad (prime-rl 2026-08):
        [inference.vllm]
        max_model_len = 65536
    Bad (prime-rl 2026-08):
        [inference.vllm]
        max_model_len = 163840
        rope_scaling = {rope_type = "yarn", factor = 4.0, original_max_position_embeddings = 32768}
    Good (prime-rl 2026-08):
        [inference.vllm]
        max_model_len = 131072
        rope_scaling = {rope_type = "yarn", factor = 4.0, original_max_position_embeddings = 32768}
    Bad (prime-rl 2026-08):
        [inference.vllm]
        max_model_len = 163840
        [[facts.model_contexts]]
        name = "Qwen/Qwen3-1.7B"
        tokens = 40960
        is_scaled = true
        scaled_tokens = 131072
        config = "models/qwen3/config.json"
    Bad (prime-rl 2026-08):
        [inference.vllm]
        max_model_len = 32768
        [[facts.model_contexts]]
        name = "Qwen/Qwen3-1.7B"
        tokens = 16384
        is_scaled = false
        config = "models/qwen3/config.json"
    Good (prime-rl 2026-08):
        [inference.vllm]
        max_model_len = 40960
    Good (prime-rl 2026-08):
        [inference.vllm]
        max_model_len = 65536
        [[facts.model_contexts]]
        name = "Qwen/Qwen3-1.7B"
        tokens = 65536
        is_scaled = false
        config = "models/qwen3/config.json"
    """
    inference = run.inference
    if inference is None or inference.ctx_tokens is None:
        return
    contexts: tuple[ModelContext, ...] = if_known(facts, "model_contexts") or ()
    own = next((context for context in contexts if context.name == inference.model_name), None)
    sizes = sizes_of(inference.model_name)
    if own is not None:
        limit = own.scaled_tokens if own.is_scaled else own.tokens
        positions, source = own.tokens, f"{own.config} has {own.tokens} positions"
    elif sizes is not None:
        limit = positions = sizes.ctx_tokens
        source = f"{sizes.name} has {positions} positions"
    else:
        return
    if inference.rope_scaling is not None:
        limit = scaled_positions(positions, inference.rope_scaling)
    if limit is None or inference.ctx_tokens <= limit:
        return
    yield suggest(
        "inference.ctx_tokens",
        f"{inference.ctx_tokens} tokens, and {source}" + (f", {limit} with rope scaling" if limit != positions else ""),
        limit,
        severity=Severity.ERROR if own is not None else None,
    )


@rule("LEN007", Severity.WARNING)
def training_beyond_the_model(run: RunSpec) -> Problems:
    """The training sequence should not be longer than the model's positions.

    the model has never seen positions beyond those: their rotary angles are new to it

    Source: config.json of the models (max_position_embeddings).

    Bad (prime-rl 2026-08):
        seq_len = 65536
        [inference.vllm]
        max_model_len = "-"
    Bad (prime-rl 2026-08 sft):
        [data]
        seq_len = 65536
        [model]
        fused_lm_head_token_chunk_size = 1024
    Good (prime-rl 2026-08 sft):
        [data]
        seq_len = 32768
    """
    parts = prime_rl_of(run)
    trainer, finetune = parts.trainer, parts.finetune
    if trainer is None:
        return
    at = "trainer.ctx_tokens" if finetune is None else "finetune.ctx_tokens"
    ctx_tokens = trainer.ctx_tokens if finetune is None else finetune.ctx_tokens
    sizes = sizes_of(trainer.model_name)
    if sizes is not None and ctx_tokens is not None and ctx_tokens > sizes.ctx_tokens:
        yield suggest(at, f"{ctx_tokens} tokens, and {sizes.name} has {sizes.ctx_tokens} positions", sizes.ctx_tokens)


@rule("LEN008", Severity.NOTE)
def server_shorter_than_training(run: RunSpec) -> Problems:
    """A server context below the training sequence caps every rollout.

    no rollout can reach the length for which the trainer reserves memory

    Source: vLLM, max_model_len (prompt and output of a request).

    Bad (prime-rl 2026-08):
        seq_len = 8192
    Good (prime-rl 2026-08):
        seq_len = 4096
    """
    served, rolled = values_of(run, "inference.ctx_tokens", "rollouts.ctx_tokens") or (0, 0)
    if served < rolled:
        what = f"{served} tokens, and `rollout.ctx_tokens` is {rolled}"
        yield Problem("inference.ctx_tokens", what, fix="give both the same length")
