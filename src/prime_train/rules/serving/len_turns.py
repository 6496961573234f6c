"""Lengths that are not set, and that add up over the turns of a conversation. Pure."""

from __future__ import annotations

from prime_train.core.findings import Problem, Severity
from prime_train.rules.model.model_sizes import sizes_of
from prime_train.rules.rule import Problems, rule
from prime_train.spec import RunSpec
from prime_train.spec.answers import prime_rl_of
from prime_train.spec.prime_rl_parts import EnvironmentSource

_LONG_CTX_TOKENS = 131_072
_SHORT_SAMPLE_TOKENS = 256


@rule("LEN011", Severity.WARNING)
def turns_do_not_fit(run: RunSpec) -> Problems:
    """The turns of a conversation should fit into the context together.

    each turn has all turns before it in its prompt: later turns are refused, and the rollout ends as truncated

    It is a warning if the turns, each of the allowed length, need more than twice the context.

    Source: verifiers, MultiTurnEnv, max_turns; vLLM's refusal "This model's maximum context length is N tokens".

    Bad (prime-rl 2026-08):
        [[orchestrator.train.source]]
        name = "reverse-text"
        env = {taskset = {id = "reverse-text", max_turns = 12}}
    Bad (prime-rl 2026-01):
        [orchestrator]
        trajectory_strategy = "branching"
        [[orchestrator.env]]
        id = "reverse-text"
        args = {max_turns = 12}
    Good (prime-rl 2026-08):
        [[orchestrator.train.source]]
        name = "reverse-text"
        env = {taskset = {id = "reverse-text", max_turns = 3}}
    """
    parts = prime_rl_of(run)
    inference, rollout = run.inference, parts.rollout
    if inference is None or rollout is None or inference.ctx_tokens is None or parts.environments is None:
        return
    for number, source in enumerate(parts.environments.train or ()):
        turns = most_turns(source)
        tokens = source.max_completion_tokens or rollout.max_completion_tokens
        if turns and tokens and turns * tokens > 2 * inference.ctx_tokens:
            yield Problem(
                f"environments.train.{number}.args",
                f"{turns} turns of up to {tokens} tokens make {turns * tokens}, and `inference.ctx_tokens` is "
                f"{inference.ctx_tokens}",
                fix=f"fewer turns, `rollout.max_completion_tokens` = {max(1, inference.ctx_tokens // turns)}, or a "
                "longer context",
            )


def most_turns(source: EnvironmentSource) -> int | None:
    """`max_turns` of an environment, wherever its generation has it."""
    arguments = source.args or {}
    tables = [arguments, *(table for table in arguments.values() if isinstance(table, dict))]
    return next((turns for table in tables if isinstance(turns := table.get("max_turns"), int) and turns > 1), None)


@rule("LEN012", Severity.WARNING)
def completion_without_a_limit(run: RunSpec) -> Problems:
    """Under a long context a completion should have a limit.

    a policy that never ends its answer fills the whole context: one rollout takes minutes, and the step waits for it

    Judged from a context of 131,072 tokens on: the server's own, or else the model's.

    Source: vLLM, max_tokens: without it a completion may take the rest of the context.

    Bad (prime-rl 2026-08):
        [model]
        name = "Qwen/Qwen3-4B-Instruct-2507"
        [inference.vllm]
        max_model_len = 262144
        [orchestrator.train.sampling]
        max_completion_tokens = "None"
    Good (prime-rl 2026-08):
        [model]
        name = "Qwen/Qwen3-4B-Instruct-2507"
        [inference.vllm]
        max_model_len = 262144
        [orchestrator.train.sampling]
        max_completion_tokens = 3000
    """
    parts = prime_rl_of(run)
    inference, rollout = run.inference, parts.rollout
    if inference is None or rollout is None or rollout.max_completion_tokens is not None:
        return
    sources = (parts.environments.train if parts.environments is not None else None) or ()
    if sources and all(source.max_completion_tokens is not None for source in sources):
        return
    sizes = sizes_of(inference.model_name) if inference.ctx_tokens is None else None
    ctx_tokens = inference.ctx_tokens if sizes is None else sizes.ctx_tokens
    if ctx_tokens is not None and _LONG_CTX_TOKENS <= ctx_tokens < 2**31:
        limit = min(8192, rollout.ctx_tokens or 8192)
        yield Problem(
            "rollout.max_completion_tokens",
            f"no limit, and the server allows {ctx_tokens} tokens",
            patch={"rollout.max_completion_tokens": limit},
        )


@rule("LEN013", Severity.WARNING)
def samples_cut_short(run: RunSpec) -> Problems:
    """Fine-tuning needs sequences as long as its samples.

    data.seq_len is 128 tokens by default: longer samples are cut, most of them before their answer

    Source: prime-rl's sft, data.seq_len.

    Bad (prime-rl 2026-08 sft):
        [data]
        seq_len = 128
    Good (prime-rl 2026-08 sft):
        [data]
        seq_len = 4096
    """
    parts = prime_rl_of(run)
    finetune = parts.finetune
    if finetune is None or finetune.ctx_tokens is None or (parts.trainer is not None and parts.trainer.fake_data):
        return
    if finetune.ctx_tokens <= _SHORT_SAMPLE_TOKENS:
        what = f"{finetune.ctx_tokens} tokens, and a chat has hundreds to thousands"
        yield Problem("finetune.ctx_tokens", what, patch={"finetune.ctx_tokens": 4096})
