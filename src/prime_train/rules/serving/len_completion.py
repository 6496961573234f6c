"""Completions that do not fit into the context of the inference server, beside their prompt. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from prime_train.core.findings import Problem, Severity
from prime_train.rules.data.prompt_length import find_longest
from prime_train.rules.rule import Problems, rule, sharper_rule, suggest, values_of
from prime_train.spec import RunSpec
from prime_train.spec.answers import hands_over_weights, policy_of, prime_rl_of

if TYPE_CHECKING:
    from prime_train.facts.facts import Facts

_MARGIN_TOKENS = 500  # chat templates, tool schemas and one long prompt easily take this much


@sharper_rule("LEN001", Severity.ERROR, uses=("data_lengths",))
def completion_does_not_fit(run: RunSpec, facts: Facts | None) -> Problems:
    """Prompt and completion must fit into the context of the inference server, with room to spare.

    vLLM refuses every request that may grow beyond its context: rollouts stay at 0 and no error reaches the trainer

    The longest prompt is `prime_train.expected_prompt_tokens` if it is set; else the longest one in the environment's
    local data, measured with the run's tokenizer and without the chat template; else the bound in
    registry/environments.toml, which gives only a warning. If nothing is known, a completion that leaves no room for
    any prompt is an error. Less than 500 tokens to spare is a warning, and an error for an environment with tools: its
    tools alone need more in the prompt.

    Source: vLLM's refusal "This model's maximum context length is N tokens"; prime-rl pull request 699.

    Bad (prime-rl 2026-08):
        [orchestrator.train.sampling]
        max_completion_tokens = 4096
    Bad (prime-rl 2026-08):
        [orchestrator.train.sampling]
        max_completion_tokens = 3800
    Bad (prime-rl 2026-08):
        [orchestrator.train.sampling]
        max_completion_tokens = 4000
        [[orchestrator.train.source]]
        name = "reverse-text"
        env = {taskset = {id = "reverse-text"}, agent = {harness = {id = "bash"}, runtime = {type = "subprocess"}}}
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
        env = {taskset = {id = "reverse-text"}}
        [orchestrator.train.source.sampling]
        max_completion_tokens = 8192
    Bad (prime-rl 2026-08):
        [orchestrator.train.sampling]
        max_completion_tokens = 3200
        [[orchestrator.train.source]]
        name = "gsm8k"
        env = {taskset = {id = "gsm8k"}, agent = {runtime = {type = "subprocess"}}}
    Bad (prime-rl 2026-08):
        [[facts.data_lengths]]
        field = "environments.train.0.args.dataset_path"
        path = "data/tasks.jsonl"
        measured_rows = 2000
        longest_tokens = 3400
    Good (prime-rl 2026-08):
        [orchestrator.train.sampling]
        max_completion_tokens = 3072
    Good (prime-rl 2026-08):
        [prime_train]
        expected_prompt_tokens = 2000
    """
    inference = run.inference
    if inference is None or inference.ctx_tokens is None:
        return
    for at, completion_tokens, source in _completions(run):
        prompt = find_longest(run, facts, source)
        prompt_tokens = prompt.tokens if prompt is not None else 0
        spare = inference.ctx_tokens - completion_tokens - prompt_tokens
        if spare >= _MARGIN_TOKENS:
            continue
        tools = spare > 0 and prompt is None and _uses_tools(run, source)
        beside = f" and a prompt of {prompt.tokens}{prompt.known_from}" if prompt is not None else ""
        beside = " of an environment with tools" if tools else beside
        left = f"leave {spare}" if spare > 0 else "leave no room"
        fits = inference.ctx_tokens - prompt_tokens - _MARGIN_TOKENS
        is_bound = prompt is not None and prompt.is_bound and completion_tokens < inference.ctx_tokens
        may_fit = (spare > 0 and not tools) or is_bound
        yield Problem(
            at,
            f"{completion_tokens} completion tokens{beside} {left} of `inference.ctx_tokens` {inference.ctx_tokens}",
            fix="" if fits > 0 else "raise `inference.ctx_tokens`",
            patch={at: fits} if fits > 0 else {},
            severity=Severity.WARNING if may_fit else None,
        )


@rule("LEN002", Severity.WARNING)
def evaluation_does_not_fit(run: RunSpec) -> Problems:
    """A completion of the evaluation must leave room for its prompt.

    vLLM refuses the requests: the evaluation counts them as failed, and the score means nothing

    Source: vLLM's refusal "This model's maximum context length is N tokens".

    Bad (prime-rl 2026-08):
        [orchestrator.eval]
        source = [{name = "held-out", env = {taskset = {id = "reverse-text"}}}]
        num_examples = 16
        [orchestrator.eval.sampling]
        max_completion_tokens = 8192
    Good (prime-rl 2026-08):
        [orchestrator.eval]
        source = [{name = "held-out", env = {taskset = {id = "reverse-text"}}}]
        num_examples = 16
        [orchestrator.eval.sampling]
        max_completion_tokens = 2048
    """
    completion, ctx_tokens = values_of(run, "evaluation.max_completion_tokens", "inference.ctx_tokens") or (0, 1)
    if completion >= ctx_tokens:
        what = f"{completion} completion tokens leave no room for a prompt in `inference.ctx_tokens` {ctx_tokens}"
        yield suggest("evaluation.max_completion_tokens", what, max(1, ctx_tokens - _MARGIN_TOKENS))


@rule("LEN009", Severity.ERROR)
def minimum_beyond_maximum(run: RunSpec) -> Problems:
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
    least, most = values_of(run, "rollout.min_tokens", "rollout.max_completion_tokens") or (0, 0)
    if least > most:
        what = f"{least} is more than `rollout.max_completion_tokens` {most}"
        yield suggest("rollout.min_tokens", what, None, fix="take it out")


@sharper_rule("LEN010", Severity.ERROR, uses=("source_files",))
def rollout_does_not_fit(run: RunSpec, facts: Facts | None) -> Problems:
    """The prompt and an answer of rl.answer_tokens must fit into a sequence.

    a prompt without room for its answer makes no rollout: all of them count as truncated, and nothing is learnt

    A sequence is data.ctx_tokens long, or inference.ctx_tokens if that is less. The prompts of built-in tasks are
    counted by `validate`, without the chat template and at four characters per token; in a trained vocabulary of at
    most 320 tokens at two, where the prompts differ. All prompts have at least that. If a server answers the tasks of
    a run of another kind, a prompt without room for a token has the reward 0.

    Source: trainer/rl/rollouts/collect.py; vLLM's refusal "This model's maximum context length is N tokens".

    Bad (rl):
        [rl]
        answer_tokens = 128
    Bad (rl):
        [inference]
        engine = "local"
        ctx_tokens = 64
    Bad (rl):
        [rl]
        answer_tokens = 32
        [data]
        ctx_tokens = 48
        [[tasks]]
        kind = "reverse-text"
        arguments = {min_letters = 120, max_letters = 120}
    Bad (rl):
        [rl]
        answer_tokens = 24
        [data]
        ctx_tokens = 64
        [tokenizer]
        vocab_size = 276
        [[tasks]]
        kind = "reverse-text"
        arguments = {min_letters = 80, max_letters = 80}
    Bad:
        [inference]
        ctx_tokens = 16
        [[tasks]]
        kind = "reverse-text"
        arguments = {min_letters = 120, max_letters = 120}
    Good (rl):
        [rl]
        answer_tokens = 64
    """
    policy = policy_of(run)
    if policy is None and not hands_over_weights(run):
        return
    at, ctx_tokens = "data.ctx_tokens", run.data.ctx_tokens
    if run.server is not None and run.server.ctx_tokens is not None and run.server.ctx_tokens < ctx_tokens:
        at, ctx_tokens = "server.ctx_tokens", run.server.ctx_tokens
    # An answer that is evaluated may be cut off.
    answer_tokens = 1 if policy is None else policy.answer_tokens
    if answer_tokens >= ctx_tokens:
        what = f"{answer_tokens} tokens leave no room for a prompt in `{at}` {ctx_tokens}"
        yield Problem("rl.answer_tokens", what, fix=f"`{at}` = {2 * answer_tokens}, or shorter answers")
        return
    if facts is None:
        return
    answer = "a token of its answer" if policy is None else f"`rl.answer_tokens` {answer_tokens}"
    from prime_train.rules.data.prompt_length import find_prompts  # here, because a lint has no time to pose tasks

    for prompt in find_prompts(run):
        if prompt.tokens + answer_tokens > ctx_tokens:
            yield Problem(
                at,
                f"{ctx_tokens} tokens, and a prompt of {prompt.kind} has at least {prompt.tokens} beside {answer}",
                fix=f"`{at}` = {-(-(prompt.tokens * 2 + answer_tokens) // 64) * 64}, or shorter tasks",
            )
            return


def _uses_tools(run: RunSpec, source: int | None) -> bool:
    """Whether an environment, or any if `source` is None, has tools: their schemas are part of each prompt."""
    parts = prime_rl_of(run)
    listed = (parts.environments.train if parts.environments is not None else None) or ()
    chosen = listed if source is None else listed[source : source + 1]
    called = run.inference is not None and bool(run.inference.auto_tool_choice)
    return called or any(
        one.harness not in (None, "null") or one.executor_backend is not None or _has_tools(one.args) for one in chosen
    )


def _has_tools(arguments: Mapping[str, object] | None) -> bool:
    return any("sandbox" in name or "tool" in name for name in arguments or ())


def _completions(run: RunSpec) -> Iterator[tuple[str, int, int | None]]:
    """(RunSpec field, tokens, its environment or None) of every limit on the completions that are trained on."""
    parts = prime_rl_of(run)
    if parts.rollout is not None and parts.rollout.max_completion_tokens is not None:
        yield "rollout.max_completion_tokens", parts.rollout.max_completion_tokens, None
    sources = parts.environments.train if parts.environments is not None else None
    for number, source in enumerate(sources or ()):
        if source.max_completion_tokens is not None:
            yield f"environments.train.{number}.max_completion_tokens", source.max_completion_tokens, number
