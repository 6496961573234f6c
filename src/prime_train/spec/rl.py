"""The tables of run.toml for reinforcement learning: tasks, rollouts and the policy update. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from prime_train.spec.annotations import Doc, Ge, Gt, Le, MinLen, NotNegative, Positive


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """Low-rank adapters on the linear layers; the other weights stay as they are."""

    rank: Annotated[Positive, Doc("Rank of each adapter.")] = 16
    alpha: Annotated[float, Gt(0), Doc("Scale of an adapter: its output is multiplied by alpha / rank.")] = 32.0
    targets: Annotated[
        tuple[Literal["query", "key", "value", "output", "gate", "up", "down"], ...],
        MinLen(1),
        Doc("Linear layers of each block that get an adapter."),
    ] = ("query", "key", "value", "output", "gate", "up", "down")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSource:
    """One environment: it poses tasks, answers the model's turns, and scores the result."""

    kind: Annotated[
        Literal["reverse-text", "sort-digits", "calculator", "verifiers"],
        Doc(
            "`reverse-text`, `sort-digits` and `calculator` (the model calls a tool) are built in; `verifiers`: a "
            "taskset of verifiers 0.4 by its id or folder."
        ),
    ]
    id: Annotated[str | None, Doc("`verifiers`: the taskset, as an installed module or a folder.")] = None
    python: Annotated[
        str | None, Doc("`verifiers`: interpreter of its environment; unset = the interpreter of prime-train.")
    ] = None
    arguments: Annotated[
        Mapping[str, bool | int | float | str] | None,
        Doc("Settings of the environment by name, for example `max_letters = 5`."),
    ] = None
    max_turns: Annotated[Positive, Doc("Answers of the model in one rollout.")] = 6
    limit_s: Annotated[float, Gt(0), Doc("Longest wait for the environment: a tool call, or a reward.")] = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rl:
    """Group-relative policy optimisation (GRPO): rollouts, advantages and loss."""

    group_size: Annotated[Positive, Doc("Rollouts of one task, whose rewards are compared with each other.")] = 8
    warmup_steps: Annotated[
        NotNegative, Doc("First steps, which imitate solved tasks instead; only of tasks that can be shown solved.")
    ] = 0
    advantage: Annotated[
        Literal["mean-std", "mean"],
        Doc("Reward minus the mean of its group; `mean-std` also divides by the standard deviation of the group."),
    ] = "mean-std"
    clip_low: Annotated[float, Gt(0), Le(1), Doc("The importance ratio counts down to 1 - clip_low.")] = 0.2
    clip_high: Annotated[float, Gt(0), Doc("The importance ratio counts up to 1 + clip_high.")] = 0.2
    kl_coef: Annotated[
        float, Ge(0), Doc("Weight of the divergence from the model of the first RL step; 0 = no reference model.")
    ] = 0.0
    mask_truncated: Annotated[bool, Doc("Rollouts that reach a token limit do not count in the loss.")] = True
    answer_tokens: Annotated[Positive, Doc("Maximum tokens of one answer of the model.")] = 64
    temperature: Annotated[float, Gt(0), Doc("Sampling temperature of the rollouts.")] = 1.0
    max_behind_steps: Annotated[
        NotNegative,
        Doc("Maximum number of updates that the weights of a rollout may lack; 0 = no overlap with training."),
    ] = 1
    concurrency: Annotated[Positive, Doc("Rollouts in progress at the same time.")] = 64
    rollout_limit_s: Annotated[float, Gt(0), Doc("Longest time of one rollout; a longer one fails.")] = 300.0
    max_failed_ratio: Annotated[
        float, Ge(0), Le(1), Doc("The run stops if more than this fraction of the last 64 or more rollouts failed.")
    ] = 0.25
    max_mismatch_kl: Annotated[
        float, Gt(0), Doc("Alarm if the probabilities of engine and trainer differ by more than this, nats per token.")
    ] = 0.01
    handover: Annotated[
        Literal["auto", "shared-memory", "disk"],
        Doc("Where the trainer leaves new weights for vLLM; `auto` = shared memory if they fit twice."),
    ] = "auto"
