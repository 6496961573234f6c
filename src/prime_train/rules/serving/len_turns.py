"""Lengths that are not set, and that add up over the turns of a conversation. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

from prime_train.config.parsed_config import Fault, Reading
from prime_train.core.findings import Problem, Severity
from prime_train.rules.model.model_sizes import sizes_of
from prime_train.rules.rule import Problems, file_rule, rule
from prime_train.spec import RunSpec
from prime_train.spec.answers import model_field, model_name, prime_rl_of
from prime_train.spec.prime_rl_parts import EnvironmentSource
from prime_train.toml.document import key_path, value_at

_LONG_CTX_TOKENS = 131_072
_SHORT_SAMPLE_TOKENS = 256
_JOINS_TURNS = "2026-01"
_THINKING_QWEN3 = r"Qwen/Qwen3-[\d.]+B(?:-A\d+B)?"


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
        turns = _most_turns(source)
        tokens = source.max_completion_tokens or rollout.max_completion_tokens
        if turns and tokens and turns * tokens > 2 * inference.ctx_tokens:
            yield Problem(
                f"environments.train.{number}.args",
                f"{turns} turns of up to {tokens} tokens make {turns * tokens}, and `inference.ctx_tokens` is "
                f"{inference.ctx_tokens}",
                fix=f"fewer turns, `rollout.max_completion_tokens` = {max(1, inference.ctx_tokens // turns)}, or a "
                "longer context",
            )


def _most_turns(source: EnvironmentSource) -> int | None:
    """`max_turns` of an environment, wherever its generation has it."""
    arguments = source.args or {}
    tables = [arguments, *(table for table in arguments.values() if isinstance(table, dict))]
    return next((turns for table in tables if isinstance(turns := table.get("max_turns"), int) and turns > 1), None)


@file_rule("LEN014", Severity.WARNING)
def template_rewrites_turns(reading: Reading) -> Iterator[Fault]:
    """The chat template of a conversation with several turns must keep the thinking of the turns before.

    the generation of 2026-01 joins the turns, and ends with an assertion on token prefixes where a turn was rewritten

    The template of Qwen3's models that can think drops the thinking of earlier turns, and adds an empty one to others.
    Those of 2507 that only answer are not judged. Later generations join turns only where they can.

    Source: PrimeIntellect-ai/prime-rl#1334, #947 and #1674.

    Bad (prime-rl 2026-01):
        [[orchestrator.env]]
        id = "reverse-text"
        args = {max_turns = 3}
    Good (prime-rl 2026-01):
        [orchestrator]
        trajectory_strategy = "branching"
        [[orchestrator.env]]
        id = "reverse-text"
        args = {max_turns = 3}
    """
    run = reading.run
    if run is None or reading.generation != _JOINS_TURNS or _branches(reading):
        return
    name, environments = model_name(run), prime_rl_of(run).environments
    turns = max(
        (_most_turns(source) or 1 for source in (environments.train if environments else None) or ()), default=1
    )
    if turns > 1 and name is not None and re.fullmatch(_THINKING_QWEN3, name):
        key = key_path(reading.key(model_field(run)), reading.document.values)
        what = f"the chat template of {name} drops the thinking of earlier turns, and an environment has {turns} turns"
        fix = f"a copy of the model whose template keeps it: PrimeIntellect/{name.partition('/')[2]}, or "
        yield Fault("LEN014", key, what, f'{fix}orchestrator.trajectory_strategy = "branching"')


def _branches(reading: Reading) -> bool:
    values = reading.document.values
    keys = ("orchestrator", "trajectory_strategy"), ("trajectory_strategy",)
    return any(value_at(values, key) not in (None, "interleaved") for key in keys)


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
