"""Batch sizes that a run cannot use, or not as written. Pure."""

from __future__ import annotations

import math

from prime_train.core.findings import Problem, Severity
from prime_train.rules.rule import Problems, rule, suggest
from prime_train.spec import RunSpec
from prime_train.spec.answers import global_batch, policy_of, tokens_per_step


@rule("BAT001", Severity.ERROR)
def batch_not_divisible(run: RunSpec) -> Problems:
    """The global batch must divide by micro_batch x processes.

    every process takes the same number of whole micro-batches, so a remainder has no place

    Replicas divide the rows of a step by how many of them are there, and the last micro-batch of each is a part.

    Source: trainer/data/packing.py, which deals whole micro-batches to the ranks; trainer/replicas/division.py.

    Bad:
        [batch]
        micro_batch = 3
        global_batch = 100
    Bad:
        [batch]
        micro_batch = 3
        global_batch = 2
    Bad:
        [batch]
        micro_batch = 3
        global_batch_tokens = 51200
    Bad:
        [parallel]
        processes = 3
        [batch]
        micro_batch = 8
        global_batch = 64
    Good:
        [parallel]
        processes = 3
        [batch]
        micro_batch = 8
        global_batch = 96
    Good:
        [parallel]
        processes = 3
        replicas = 3
        [batch]
        micro_batch = 8
        global_batch = 64
    """
    batch = run.batch
    if run.parallel.replicas or _contradicts(run) or (batch.global_batch is None and _is_ragged(run)):
        return
    unit = batch.micro_batch * run.parallel.processes
    if global_batch(run) % unit:
        patch = make_batch_whole(run)
        yield Problem(
            next(iter(patch)),
            f"{global_batch(run)} sequences do not divide by `batch.micro_batch` {batch.micro_batch} x "
            f"`parallel.processes` {run.parallel.processes} = {unit}",
            patch=patch,
        )


@rule("BAT002", Severity.ERROR)
def batch_given_twice(run: RunSpec) -> Problems:
    """global_batch and global_batch_tokens must not contradict each other.

    a run has one batch size, and it is not clear which of the two is meant

    Source: the two keys give the same number (docs/config.md, batch).

    Bad:
        [batch]
        global_batch = 16
        global_batch_tokens = 16384
    Good:
        [batch]
        global_batch = 32
        global_batch_tokens = 16384
    """
    if _contradicts(run):
        tokens = tokens_per_step(run)
        yield suggest(
            "batch.global_batch_tokens",
            f"`batch.global_batch` {run.batch.global_batch} x `data.ctx_tokens` {run.data.ctx_tokens} = {tokens} "
            f"tokens, not {run.batch.global_batch_tokens}",
            None,
            fix="take one of the two out",
        )


@rule("BAT003", Severity.WARNING)
def batch_tokens_ragged(run: RunSpec) -> Problems:
    """global_batch_tokens must be a multiple of ctx_tokens.

    a batch holds whole sequences only: the remaining tokens are not trained on

    It is an error if the whole sequences do not divide by micro_batch x processes, too.

    Source: trainer/data/packing.py, which packs whole sequences.

    Bad:
        [batch]
        micro_batch = 3
        global_batch_tokens = 20000
    Bad:
        [batch]
        global_batch_tokens = 20000
    Bad:
        [batch]
        micro_batch = 1
        global_batch_tokens = 500
    Good:
        [batch]
        global_batch_tokens = 20480
    """
    if run.batch.global_batch is None and _is_ragged(run):
        tokens, ctx_tokens, unit = run.batch.global_batch_tokens or 0, run.data.ctx_tokens, _unit(run)
        what = f"{tokens} tokens are {tokens / ctx_tokens:.2f} sequences of `data.ctx_tokens` {ctx_tokens}"
        severity = None
        if tokens < ctx_tokens or global_batch(run) % unit:
            severity = Severity.ERROR
            what += f", and a step takes multiples of {unit}"
        whole = max(1, round(tokens / (unit * ctx_tokens))) * unit * ctx_tokens
        yield suggest("batch.global_batch_tokens", what, whole, severity=severity)


@rule("BAT021", Severity.ERROR)
def growing_batch_not_whole(run: RunSpec) -> Problems:
    """start_batch must divide global_batch, and be divisible by micro_batch x processes.

    the batch grows by start_batch sequences at a time, and each process takes whole micro-batches of every step

    Source: spec, RunSpec.sequences_of.

    Bad:
        [batch]
        micro_batch = 4
        global_batch = 64
        start_batch = 24
        ramp_steps = 100
    Bad:
        [batch]
        micro_batch = 4
        global_batch = 64
        start_batch = 2
        ramp_steps = 100
    Good:
        [batch]
        micro_batch = 4
        global_batch = 64
        start_batch = 16
        ramp_steps = 100
    """
    batch, unit = run.batch, run.batch.micro_batch * run.parallel.processes
    start, steps = batch.start_batch, batch.ramp_steps
    if start is None or steps is None or global_batch(run) % unit:
        return
    if start % unit or global_batch(run) % start:
        common = math.gcd(start, global_batch(run))
        yield suggest(
            "batch.start_batch",
            f"{start} sequences: `batch.global_batch` {global_batch(run)} divided by them, and they by "
            f"`batch.micro_batch` x `parallel.processes` = {unit}, must have no remainder",
            common if common % unit == 0 else unit,
        )


@rule("BAT022", Severity.WARNING)
def growing_batch_without_effect(run: RunSpec) -> Problems:
    """start_batch and ramp_steps belong together, in a run on text or chats.

    one of them alone changes nothing, and a run that learns from rewards has a step for each set of rollouts

    Source: spec, RunSpec.sequences_of; trainer/loops/grpo.py.

    Bad:
        [batch]
        ramp_steps = 100
    Bad:
        [batch]
        start_batch = 8
    Good:
        [batch]
        start_batch = 8
        ramp_steps = 100
    """
    batch = run.batch
    given = {"batch.start_batch": batch.start_batch, "batch.ramp_steps": batch.ramp_steps}
    learns_from_rewards = policy_of(run) is not None
    if learns_from_rewards or None in given.values():
        why, fix = "the other is unset", "take it out, or set both"
        if learns_from_rewards:
            why, fix = "a run that learns from rewards has no growing batch", "take it out"
        for field, value in given.items():
            if value is not None:
                yield suggest(field, f"{value} is not used: {why}", None, fix=fix)


def make_batch_whole(run: RunSpec) -> dict[str, object]:
    """The patch to the largest batch without a remainder that is not larger than the run's, or to the smallest one."""
    batch, unit = run.batch, _unit(run)
    whole = max(1, global_batch(run) // unit) * unit
    patch: dict[str, object] = {"batch.global_batch": whole}
    if batch.global_batch_tokens is not None:
        patch["batch.global_batch_tokens"] = whole * run.data.ctx_tokens
        if batch.global_batch is None:
            del patch["batch.global_batch"]
    return patch


def _unit(run: RunSpec) -> int:
    """The sequences by which a batch must divide: micro-batches of every process, and the groups of rollouts."""
    unit = run.batch.micro_batch * run.parallel.processes
    policy = policy_of(run)
    return unit if policy is None else math.lcm(unit, policy.group_size)


def _contradicts(run: RunSpec) -> bool:
    batch = run.batch
    if batch.global_batch is None or batch.global_batch_tokens is None:
        return False
    return batch.global_batch * run.data.ctx_tokens != batch.global_batch_tokens


def _is_ragged(run: RunSpec) -> bool:
    return (run.batch.global_batch_tokens or 0) % run.data.ctx_tokens != 0
