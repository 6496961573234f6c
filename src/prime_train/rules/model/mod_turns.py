"""Models whose chat template rewrites earlier turns of a conversation. Pure."""

from __future__ import annotations

import re

from prime_train.core.findings import Problem, Severity
from prime_train.rules.rule import Problems, rule
from prime_train.rules.serving.len_turns import most_turns
from prime_train.spec import RunSpec
from prime_train.spec.answers import prime_rl_of

# The models that think or do not, and those of 2507 that think. The instruction models of 2507 never think.
_DROPS_THINKING = re.compile(r"Qwen/Qwen3-(\d[\d.]*B(-A\d+B)?)(-FP8)?|Qwen/Qwen3-\d+B(-A\d+B)?-Thinking-2507(-FP8)?")


@rule("MOD018", Severity.WARNING)
def template_drops_thinking(run: RunSpec) -> Problems:
    """Conversations of several turns need a chat template that keeps the thinking of earlier turns.

    Qwen3's template drops it: the tokens of a turn do not continue those of the turn before, and prime-rl ends after
    the first step with an assertion on token prefixes

    Judged for environments with `max_turns` above 1 in their arguments, where the turns of a conversation become one
    sample.

    Source: prime-rl issues 947 and 1334; the template in Qwen/Qwen3-4B, tokenizer_config.json.

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
    Good (prime-rl 2026-01):
        [model]
        name = "Qwen/Qwen3-4B-Instruct-2507"
        [[orchestrator.env]]
        id = "reverse-text"
        args = {max_turns = 3}
    """
    parts = prime_rl_of(run)
    rollout = parts.rollout
    if rollout is None or rollout.trajectory_strategy != "interleaved" or parts.environments is None:
        return
    if not _DROPS_THINKING.fullmatch(rollout.model_name or ""):
        return
    if any(most_turns(source) for source in parts.environments.train or ()):
        yield Problem(
            "rollout.model_name",
            f"the chat template of {rollout.model_name} drops the thinking of earlier turns",
            fix="the copy of the model below PrimeIntellect/, whose template keeps it, or "
            '`rollout.trajectory_strategy` = "branching"',
        )
