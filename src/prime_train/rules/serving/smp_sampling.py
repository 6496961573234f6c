"""Sampling settings from which training cannot learn, or that change the policy's distribution. Pure."""

from __future__ import annotations

from prime_train.core.findings import Severity
from prime_train.rules.rule import Problems, rule, suggest
from prime_train.spec import RunSpec
from prime_train.spec.answers import prime_rl_of

_NEUTRAL: dict[str, tuple[object, ...]] = {"top_p": (1, 1.0), "top_k": (-1, 0), "min_p": (0, 0.0)}
_SET_BY_PRIME_RL = ("n", "stream", "logprobs", "top_logprobs", "return_token_ids", "prompt_logprobs")


@rule("SMP001", Severity.ERROR)
def greedy_rollouts(run: RunSpec) -> Problems:
    """Rollouts of a group must differ: temperature 0 makes them equal.

    greedy sampling repeats one rollout: equal rollouts have equal rewards, and every advantage is zero

    Source: DeepSeekMath, arXiv 2402.03300, s. 4.1.

    Bad (prime-rl 2026-08):
        [orchestrator.train.sampling]
        temperature = 0.0
    Bad (prime-rl 2026-01):
        [orchestrator.sampling]
        temperature = 0.0
    Good (prime-rl 2026-08):
        [orchestrator.train.sampling]
        temperature = 1.0
    """
    rollout = prime_rl_of(run).rollout
    if rollout is not None and rollout.temperature == 0 and rollout.algorithm == "grpo":
        yield suggest("rollout.temperature", "0: all rollouts of a group are equal", 1.0)


@rule("SMP002", Severity.WARNING)
def truncated_distribution(run: RunSpec) -> Problems:
    """Rollouts should be drawn from the whole distribution.

    the trainer uses the probabilities of the whole vocabulary: tokens drawn from a part of it have a wrong importance
    ratio

    Source: GRPO, arXiv 2402.03300, s. 4.1; vLLM sampling parameters.

    Bad (prime-rl 2026-08):
        [orchestrator.train.sampling.extra_body]
        top_p = 0.9
    Good (prime-rl 2026-08):
        [orchestrator.train.sampling.extra_body]
        top_p = 1.0
    """
    parts = prime_rl_of(run)
    if parts.rollout is None:
        return
    for name, neutral in _NEUTRAL.items():
        value = (parts.rollout.extra_body or {}).get(name)
        if value is not None and value not in neutral:
            at = f"rollout.extra_body.{name}"
            yield suggest(at, f"{name} = {value} cuts tokens off", None, fix=f"take {name} out")


@rule("SMP003", Severity.WARNING)
def penalised_distribution(run: RunSpec) -> Problems:
    """Rollouts should not be drawn with a repetition penalty.

    the penalty changes probabilities only in inference: the trainer corrects for a policy that never sampled

    Source: GRPO, arXiv 2402.03300, s. 4.1; vLLM sampling parameters.

    Bad (prime-rl 2026-01):
        [orchestrator.sampling]
        repetition_penalty = 1.1
    Bad (prime-rl 2026-08):
        [orchestrator.train.sampling.extra_body]
        repetition_penalty = 1.1
    Good (prime-rl 2026-01):
        [orchestrator.sampling]
        repetition_penalty = 1.0
    """
    parts = prime_rl_of(run)
    if parts.rollout is None:
        return
    penalties = (
        ("rollout.repetition_penalty", parts.rollout.repetition_penalty),
        ("rollout.extra_body.repetition_penalty", (parts.rollout.extra_body or {}).get("repetition_penalty")),
    )
    for at, penalty in penalties:
        if penalty not in (None, 1, 1.0):
            yield suggest(at, f"{penalty}, not 1", 1.0)


@rule("SMP004", Severity.WARNING)
def seeded_rollouts(run: RunSpec) -> Problems:
    """Rollouts should not have a sampling seed.

    vLLM seeds every request with it: the rollouts of a group draw the same numbers, and are equal

    Source: vLLM sampling parameters (a seed is one request's own).

    Bad (prime-rl 2026-01):
        [orchestrator.sampling]
        seed = 42
    Bad (prime-rl 2026-08):
        [orchestrator.train.sampling.extra_body]
        seed = 42
    Good (prime-rl 2026-01):
        [orchestrator]
        seed = 42
    """
    parts = prime_rl_of(run)
    if parts.rollout is None or (parts.rollout.group_size or 1) < 2:
        return
    seeds = (
        ("rollout.seed", parts.rollout.seed),
        ("rollout.extra_body.seed", (parts.rollout.extra_body or {}).get("seed")),
    )
    for at, seed in seeds:
        if seed is not None:
            what = f"{seed}, and `rollout.group_size` is {parts.rollout.group_size}"
            yield suggest(at, what, None, fix="take it out")


@rule("SMP005", Severity.WARNING)
def parameters_prime_rl_sets(run: RunSpec) -> Problems:
    """extra_body must leave prime-rl's own parameters alone.

    the orchestrator needs one completion with token ids and logprobs: other answers cannot be trained on

    Source: prime-rl's orchestrator; vLLM's OpenAI-compatible server.

    Bad (prime-rl 2026-08):
        [orchestrator.train.sampling.extra_body]
        n = 4
    Good (prime-rl 2026-08):
        [orchestrator.train.sampling.extra_body]
        skip_special_tokens = false
    """
    parts = prime_rl_of(run)
    if parts.rollout is None:
        return
    for name in _SET_BY_PRIME_RL:
        if name in (parts.rollout.extra_body or {}):
            at = f"rollout.extra_body.{name}"
            yield suggest(at, f"{name} is set by the orchestrator", None, fix=f"take {name} out")
