"""Batch sizes that a run cannot take or does not take as written. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from prime_train.findings import Problem, Severity
from prime_train.rules.base import rule
from prime_train.spec import RunSpec


@rule("BAT001", Severity.ERROR)
def batch_not_divisible(run: RunSpec) -> Iterator[Problem]:
    """The global batch must divide by micro_batch x processes.

    each process takes whole micro-batches, the same number as every other: no remainder can be placed

    Source: trainer/data/batch.py, which deals whole micro-batches to the ranks.

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
    """
    batch, ctx_tokens = run.batch, run.data.ctx_tokens
    if _contradicts(run) or (batch.global_batch is None and _is_ragged(run)):
        return
    unit = batch.micro_batch * run.parallel.processes
    if run.global_batch % unit == 0:
        return
    whole = max(1, run.global_batch // unit) * unit
    what = (
        f"{run.global_batch} sequences do not divide by `batch.micro_batch` {batch.micro_batch} x "
        f"`parallel.processes` {run.parallel.processes} = {unit}"
    )
    if batch.global_batch is not None:
        patch = {"batch.global_batch": whole}
        if batch.global_batch_tokens is not None:
            patch["batch.global_batch_tokens"] = whole * ctx_tokens
        yield Problem("batch.global_batch", what, patch=patch)
    else:
        yield Problem("batch.global_batch_tokens", what, patch={"batch.global_batch_tokens": whole * ctx_tokens})


@rule("BAT002", Severity.ERROR)
def batch_given_twice(run: RunSpec) -> Iterator[Problem]:
    """global_batch and global_batch_tokens must not contradict each other.

    a run has one batch size, and which of the two was meant cannot be known

    Source: the two keys say the same number (docs/config.md, batch).

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
        tokens = run.tokens_per_step
        yield Problem(
            "batch.global_batch_tokens",
            f"`batch.global_batch` {run.batch.global_batch} x `data.ctx_tokens` {run.data.ctx_tokens} = {tokens} "
            f"tokens, not {run.batch.global_batch_tokens}",
            fix="take one of the two out",
            patch={"batch.global_batch_tokens": None},
        )


@rule("BAT003", Severity.WARNING)
def batch_tokens_ragged(run: RunSpec) -> Iterator[Problem]:
    """global_batch_tokens must be a multiple of ctx_tokens.

    a batch is made of whole sequences: the tokens that are over are not trained on

    Less than one sequence is an error.

    Source: trainer/data/packing.py, which packs whole sequences.

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
        tokens, ctx_tokens = run.batch.global_batch_tokens or 0, run.data.ctx_tokens
        unit = run.batch.micro_batch * run.parallel.processes * ctx_tokens
        whole = max(1, round(tokens / unit)) * unit
        yield Problem(
            "batch.global_batch_tokens",
            f"{tokens} tokens are {tokens / ctx_tokens:.2f} sequences of `data.ctx_tokens` {ctx_tokens}",
            patch={"batch.global_batch_tokens": whole},
            severity=Severity.ERROR if tokens < ctx_tokens else None,
        )


def _contradicts(run: RunSpec) -> bool:
    batch = run.batch
    if batch.global_batch is None or batch.global_batch_tokens is None:
        return False
    return batch.global_batch * run.data.ctx_tokens != batch.global_batch_tokens


def _is_ragged(run: RunSpec) -> bool:
    return (run.batch.global_batch_tokens or 0) % run.data.ctx_tokens != 0
