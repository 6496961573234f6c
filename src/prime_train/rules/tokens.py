"""Lengths in tokens that do not fit into each other: prompt, completion, context, training sequence. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from prime_train.findings import Problem, Severity
from prime_train.rules.base import rule
from prime_train.rules.sizes import sizes_of
from prime_train.spec import RunSpec

_MARGIN_TOKENS = 500  # chat templates, tool schemas and one long prompt take this much without anybody noticing


@rule("LEN001", Severity.ERROR)
def completion_does_not_fit(run: RunSpec) -> Iterator[Problem]:
    """Prompt and completion must fit into the context of the inference server, with room to spare.

    vLLM refuses every request that may grow beyond its context: rollouts stay at 0 and no error reaches the trainer

    The longest prompt is `prime_train.expected_prompt_tokens` where the file says it; else a completion that
    leaves no room for any prompt is an error. Less than 500 tokens to spare are a warning.

    Source: vLLM's refusal "This model's maximum context length is N tokens"; prime-rl pull request 699.

    Bad (prime-rl 2026-08):
        [orchestrator.train.sampling]
        max_completion_tokens = 4096
    Bad (prime-rl 2026-08):
        [orchestrator.train.sampling]
        max_completion_tokens = 3800
    Bad (prime-rl 2026-05):
        [orchestrator.train.sampling]
        max_completion_tokens = 4096
    Bad (prime-rl 2026-01):
        [orchestrator.sampling]
        max_tokens = 4096
    Bad (prime-rl 2026-08):
        [prime_train]
        expected_prompt_tokens = 3500
    Bad (prime-rl 2026-08):
        [[orchestrator.train.source]]
        name = "reverse-text"
        [orchestrator.train.source.env.taskset]
        id = "reverse-text"
        [orchestrator.train.source.sampling]
        max_completion_tokens = 8192
    Good (prime-rl 2026-08):
        [orchestrator.train.sampling]
        max_completion_tokens = 3072
    Good (prime-rl 2026-08):
        [prime_train]
        expected_prompt_tokens = 2000
    """
    inference, prompt_tokens = run.inference, run.prime_train.expected_prompt_tokens
    if inference is None or inference.ctx_tokens is None:
        return
    for at, completion_tokens in _completions(run):
        spare = inference.ctx_tokens - completion_tokens - (prompt_tokens or 0)
        if spare >= _MARGIN_TOKENS:
            continue
        prompt = f" and a prompt of {prompt_tokens}" if prompt_tokens else ""
        left = f"leave {spare}" if spare > 0 else "leave no room"
        fits = inference.ctx_tokens - (prompt_tokens or 0) - _MARGIN_TOKENS
        yield Problem(
            at,
            f"{completion_tokens} completion tokens{prompt} {left} of `inference.ctx_tokens` {inference.ctx_tokens}",
            fix="" if fits > 0 else "raise `inference.ctx_tokens`",
            patch={at: fits} if fits > 0 else {},
            severity=Severity.WARNING if spare > 0 else None,
        )


@rule("LEN002", Severity.WARNING)
def evaluation_does_not_fit(run: RunSpec) -> Iterator[Problem]:
    """A completion of the evaluation must leave room for its prompt.

    vLLM refuses the requests: the evaluation counts them as failed, and the score says nothing

    Source: vLLM's refusal "This model's maximum context length is N tokens".

    Bad (prime-rl 2026-08):
        [orchestrator.eval]
        num_examples = 16
        [orchestrator.eval.sampling]
        max_completion_tokens = 8192
        [[orchestrator.eval.source]]
        name = "held-out"
        [orchestrator.eval.source.env.taskset]
        id = "reverse-text"
        [orchestrator.eval.source.env.agent.runtime]
        type = "subprocess"
    Good (prime-rl 2026-08):
        [orchestrator.eval]
        num_examples = 16
        [orchestrator.eval.sampling]
        max_completion_tokens = 2048
        [[orchestrator.eval.source]]
        name = "held-out"
        [orchestrator.eval.source.env.taskset]
        id = "reverse-text"
        [orchestrator.eval.source.env.agent.runtime]
        type = "subprocess"
    """
    evaluation, inference = run.evaluation, run.inference
    if evaluation is None or inference is None or evaluation.max_completion_tokens is None:
        return
    if inference.ctx_tokens is not None and evaluation.max_completion_tokens >= inference.ctx_tokens:
        yield Problem(
            "evaluation.max_completion_tokens",
            f"{evaluation.max_completion_tokens} completion tokens leave no room for a prompt in "
            f"`inference.ctx_tokens` {inference.ctx_tokens}",
            patch={"evaluation.max_completion_tokens": max(1, inference.ctx_tokens - _MARGIN_TOKENS)},
        )


@rule("LEN003", Severity.ERROR)
def trainer_shorter_than_rollouts(run: RunSpec) -> Iterator[Problem]:
    """The trainer's sequences must be as long as the orchestrator's.

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
    trainer, rollout = run.trainer, run.rollout
    if trainer is None or rollout is None or trainer.ctx_tokens is None or rollout.ctx_tokens is None:
        return
    if trainer.ctx_tokens < rollout.ctx_tokens:
        yield Problem(
            "trainer.ctx_tokens",
            f"{trainer.ctx_tokens} tokens are less than `rollout.ctx_tokens` {rollout.ctx_tokens}",
            patch={"trainer.ctx_tokens": rollout.ctx_tokens},
        )


@rule("LEN004", Severity.WARNING)
def completion_beyond_training(run: RunSpec) -> Iterator[Problem]:
    """A completion should not be longer than the sequence that is trained on.

    what is beyond the training sequence is cut off: the model is paid for an end it is never shown

    Bad (prime-rl 2026-08):
        seq_len = 2048
        [orchestrator.train.sampling]
        max_completion_tokens = 3072
    Good (prime-rl 2026-08):
        seq_len = 4096
        [orchestrator.train.sampling]
        max_completion_tokens = 3072
    """
    rollout = run.rollout
    if rollout is None or rollout.ctx_tokens is None or rollout.max_completion_tokens is None:
        return
    if rollout.max_completion_tokens > rollout.ctx_tokens:
        yield Problem(
            "rollout.max_completion_tokens",
            f"{rollout.max_completion_tokens} completion tokens are more than `rollout.ctx_tokens` "
            f"{rollout.ctx_tokens}",
            fix="raise `rollout.ctx_tokens` or lower `rollout.max_completion_tokens`",
        )


@rule("LEN005", Severity.ERROR)
def length_not_divisible_by_context_parallel(run: RunSpec) -> Iterator[Problem]:
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
    trainer = run.trainer
    if trainer is None or trainer.context_parallel is None or trainer.context_parallel < 2:
        return
    finetune = run.finetune
    at = "trainer.ctx_tokens" if finetune is None else "finetune.ctx_tokens"
    ctx_tokens = trainer.ctx_tokens if finetune is None else finetune.ctx_tokens
    if ctx_tokens is not None and ctx_tokens % trainer.context_parallel:
        unit = 2 * trainer.context_parallel
        yield Problem(
            at,
            f"{ctx_tokens} tokens do not divide by `trainer.context_parallel` {trainer.context_parallel}",
            patch={at: -(-ctx_tokens // unit) * unit},
        )


@rule("LEN006", Severity.ERROR)
def context_beyond_the_model(run: RunSpec) -> Iterator[Problem]:
    """The server's context must not be longer than the model's positions.

    vLLM refuses to start: positions beyond those are ones the model has never seen

    A model that is not in the registry and one with rope scaling are not judged.

    Source: config.json of the models (max_position_embeddings); vLLM's "User-specified max_model_len is greater
    than the derived max_model_len".

    Bad (prime-rl 2026-08):
        [inference.vllm]
        max_model_len = 65536
    Good (prime-rl 2026-08):
        [inference.vllm]
        max_model_len = 40960
    """
    inference = run.inference
    if inference is None or inference.ctx_tokens is None or inference.rope_scaling is not None:
        return
    sizes = sizes_of(inference.model_name)
    if sizes is not None and inference.ctx_tokens > sizes.ctx_tokens:
        yield Problem(
            "inference.ctx_tokens",
            f"{inference.ctx_tokens} tokens, and {sizes.name} has {sizes.ctx_tokens} positions",
            patch={"inference.ctx_tokens": sizes.ctx_tokens},
        )


@rule("LEN007", Severity.WARNING)
def training_beyond_the_model(run: RunSpec) -> Iterator[Problem]:
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
    Good (prime-rl 2026-08 sft):
        [data]
        seq_len = 32768
    """
    trainer, finetune = run.trainer, run.finetune
    if trainer is None:
        return
    at = "trainer.ctx_tokens" if finetune is None else "finetune.ctx_tokens"
    ctx_tokens = trainer.ctx_tokens if finetune is None else finetune.ctx_tokens
    sizes = sizes_of(trainer.model_name)
    if sizes is not None and ctx_tokens is not None and ctx_tokens > sizes.ctx_tokens:
        yield Problem(
            at,
            f"{ctx_tokens} tokens, and {sizes.name} has {sizes.ctx_tokens} positions",
            patch={at: sizes.ctx_tokens},
        )


@rule("LEN008", Severity.NOTE)
def server_shorter_than_training(run: RunSpec) -> Iterator[Problem]:
    """A server context below the training sequence caps every rollout.

    no rollout can be as long as the sequences the trainer makes room for: the memory is spent for nothing

    Bad (prime-rl 2026-08):
        seq_len = 8192
    Good (prime-rl 2026-08):
        seq_len = 4096
    """
    rollout, inference = run.rollout, run.inference
    if rollout is None or inference is None or rollout.ctx_tokens is None or inference.ctx_tokens is None:
        return
    if inference.ctx_tokens < rollout.ctx_tokens:
        yield Problem(
            "inference.ctx_tokens",
            f"{inference.ctx_tokens} tokens, and `rollout.ctx_tokens` is {rollout.ctx_tokens}",
            fix="give both the same length",
        )


@rule("LEN009", Severity.ERROR)
def minimum_beyond_maximum(run: RunSpec) -> Iterator[Problem]:
    """min_tokens must not exceed the completion's limit.

    vLLM refuses the request: no completion can satisfy both

    Source: vLLM SamplingParams, "min_tokens must be less than or equal to max_tokens".

    Bad (prime-rl 2026-01):
        [orchestrator.sampling]
        min_tokens = 2048
    Good (prime-rl 2026-01):
        [orchestrator.sampling]
        min_tokens = 16
    """
    rollout = run.rollout
    if rollout is None or rollout.min_tokens is None or rollout.max_completion_tokens is None:
        return
    if rollout.min_tokens > rollout.max_completion_tokens:
        yield Problem(
            "rollout.min_tokens",
            f"{rollout.min_tokens} is more than `rollout.max_completion_tokens` {rollout.max_completion_tokens}",
            fix="take it out",
            patch={"rollout.min_tokens": None},
        )


def _completions(run: RunSpec) -> Iterator[tuple[str, int]]:
    """(RunSpec field, tokens) of every limit on the completions that are trained on."""
    if run.rollout is not None and run.rollout.max_completion_tokens is not None:
        yield "rollout.max_completion_tokens", run.rollout.max_completion_tokens
    sources = run.environments.train if run.environments is not None else None
    for number, source in enumerate(sources or ()):
        if source.max_completion_tokens is not None:
            yield f"environments.train.{number}.max_completion_tokens", source.max_completion_tokens
