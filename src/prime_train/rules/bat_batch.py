"""Batch sizes that a run cannot use, or not as written. Pure."""

from __future__ import annotations

import math

from prime_train.core.findings import Problem, Severity
from prime_train.rules.rule import Problems, rule, suggest
from prime_train.spec import RunSpec


@rule("BAT001", Severity.ERROR)
def batch_not_divisible(run: RunSpec) -> Problems:
    """The global batch must divide by micro_batch x processes.

    every process takes the same number of whole micro-batches, so a remainder has no place

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
        yield suggest("batch.global_batch_tokens", what, whole * ctx_tokens)


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
        tokens = run.tokens_per_step
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

    Less than one sequence is an error.

    Source: trainer/data/batch.py, which packs whole sequences.

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
        yield suggest(
            "batch.global_batch_tokens",
            f"{tokens} tokens are {tokens / ctx_tokens:.2f} sequences of `data.ctx_tokens` {ctx_tokens}",
            whole,
            severity=Severity.ERROR if tokens < ctx_tokens else None,
        )


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
    if start is None or steps is None or run.global_batch % unit:
        return
    if start % unit or run.global_batch % start:
        common = math.gcd(start, run.global_batch)
        yield suggest(
            "batch.start_batch",
            f"{start} sequences: `batch.global_batch` {run.global_batch} divided by them, and they by "
            f"`batch.micro_batch` x `parallel.processes` = {unit}, must have no remainder",
            common if common % unit == 0 else unit,
        )


@rule("BAT022", Severity.WARNING)
def growing_batch_without_effect(run: RunSpec) -> Problems:
    """start_batch and ramp_steps belong together, in a run on text or chats.

    one of them alone changes nothing, and a run that learns from rewards has a step for each set of rollouts

    Source: spec, RunSpec.sequences_of; trainer/grpo.py.

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
    if run.learns_from_rewards or None in given.values():
        why = "a run that learns from rewards has no growing batch" if run.learns_from_rewards else "the other is unset"
        for field, value in given.items():
            if value is not None:
                yield suggest(field, f"{value} is not used: {why}", None, fix="take it out, or set both")


@rule("BAT010", Severity.ERROR)
def sequences_not_whole_micro_batches(run: RunSpec) -> Problems:
    """A fine-tuning batch must be made of whole micro-batches.

    gradients are accumulated over whole micro-batches: prime-rl refuses a batch that ends in a part of one

    Source: prime-rl's sft validator on batch_size and micro_batch_size.

    Bad (prime-rl 2026-08 sft):
        [data]
        micro_batch_size = 5
    Good (prime-rl 2026-08 sft):
        [data]
        micro_batch_size = 4
    """
    finetune = run.finetune
    if finetune is None or finetune.batch_sequences is None or not finetune.micro_batch_sequences:
        return
    if finetune.batch_sequences % finetune.micro_batch_sequences:
        yield suggest(
            "finetune.micro_batch_sequences",
            f"`finetune.batch_sequences` {finetune.batch_sequences} does not divide by "
            f"{finetune.micro_batch_sequences}",
            math.gcd(finetune.batch_sequences, finetune.micro_batch_sequences),
        )


@rule("BAT017", Severity.ERROR)
def sequences_not_shared_by_the_ranks(run: RunSpec) -> Problems:
    """A fine-tuning batch must divide by micro-batch x data-parallel ranks.

    each rank takes an equal part of the batch: prime-rl's trainer asserts it at its start, on every rank

    Ranks are the GPUs, divided by `trainer.context_parallel`.

    Source: prime-rl, trainer/sft/train.py, grad_accum_steps.

    Bad (prime-rl 2026-08 sft):
        [deployment]
        num_train_gpus = 3
    Good (prime-rl 2026-08 sft):
        [deployment]
        num_train_gpus = 8
    """
    finetune, deployment = run.finetune, run.deployment
    gpus = deployment.all_train_gpus if deployment is not None else None
    if finetune is None or run.trainer is None or not finetune.batch_sequences or not gpus:
        return
    micro = finetune.micro_batch_sequences or 1
    ranks = max(1, gpus // ((run.trainer.context_parallel or 1) * (run.trainer.tensor_parallel or 1)))
    if finetune.batch_sequences % micro == 0 and finetune.batch_sequences % (micro * ranks):
        whole = max(1, round(finetune.batch_sequences / (micro * ranks))) * micro * ranks
        yield suggest(
            "finetune.batch_sequences",
            f"{finetune.batch_sequences} does not divide by {micro} per rank x {ranks} ranks = {micro * ranks}",
            whole,
        )


@rule("BAT011", Severity.ERROR)
def micro_batch_under_context_parallel(run: RunSpec) -> Problems:
    """Under context parallelism a micro-batch is one sequence.

    the ranks of a context-parallel group share one sequence at a time: prime-rl refuses more

    Source: prime-rl's sft validator (micro batch 1 with context parallelism).

    Bad (prime-rl 2026-08 sft):
        [data]
        micro_batch_size = 2
        [model]
        cp = 2
        [deployment]
        num_train_gpus = 2
    Good (prime-rl 2026-08 sft):
        [data]
        micro_batch_size = 1
        [model]
        cp = 2
        [deployment]
        num_train_gpus = 2
    """
    finetune, trainer = run.finetune, run.trainer
    if finetune is None or trainer is None or (trainer.context_parallel or 1) < 2:
        return
    if (finetune.micro_batch_sequences or 1) > 1:
        yield suggest(
            "finetune.micro_batch_sequences",
            f"{finetune.micro_batch_sequences} sequences, and `trainer.context_parallel` is {trainer.context_parallel}",
            1,
        )


@rule("BAT012", Severity.ERROR)
def finetune_probs_wrong(run: RunSpec) -> Problems:
    """Subsets, splits and probabilities must have the same length, and the probabilities must sum to 1.

    each subset is read from its split and drawn with its probability

    Source: prime-rl's sft validator on subsets, splits and probabilities.

    Bad (prime-rl 2026-08 sft):
        [data]
        subsets = ["math", "code"]
        splits = ["train", "train"]
        probabilities = [1.0]
    Bad (prime-rl 2026-08 sft):
        [data]
        subsets = ["math", "code"]
        splits = ["train", "train"]
        probabilities = [0.5, 0.6]
    Good (prime-rl 2026-08 sft):
        [data]
        subsets = ["math", "code"]
        splits = ["train", "train"]
        probabilities = [0.5, 0.5]
    """
    finetune = run.finetune
    if finetune is None or finetune.sampling_probs is None:
        return
    probs, subsets = finetune.sampling_probs, finetune.subsets or finetune.splits
    total = math.fsum(probs)
    if subsets is not None and len(subsets) != len(probs):
        yield suggest(
            "finetune.sampling_probs",
            f"{len(probs)} probabilities for {len(subsets)} subsets",
            None,
            fix="one for each, or take them out",
        )
    elif abs(total - 1) > 1e-6 and total > 0:
        yield suggest("finetune.sampling_probs", f"they sum to {total:g}, not to 1", [prob / total for prob in probs])


def _contradicts(run: RunSpec) -> bool:
    batch = run.batch
    if batch.global_batch is None or batch.global_batch_tokens is None:
        return False
    return batch.global_batch * run.data.ctx_tokens != batch.global_batch_tokens


def _is_ragged(run: RunSpec) -> bool:
    return (run.batch.global_batch_tokens or 0) % run.data.ctx_tokens != 0
