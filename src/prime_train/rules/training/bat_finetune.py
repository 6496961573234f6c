"""Batches of a fine-tuning by prime-rl: whole micro-batches, equal parts for the ranks, and the mixture. Pure."""

from __future__ import annotations

import math

from prime_train.core.findings import Severity
from prime_train.rules.rule import Problems, rule, suggest, values_of
from prime_train.spec import RunSpec
from prime_train.spec.answers import prime_rl_of


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
    batch, micro = values_of(run, "finetune.batch_sequences", "finetune.micro_batch_sequences") or (0, 0)
    if micro and batch % micro:
        what = f"`finetune.batch_sequences` {batch} does not divide by {micro}"
        yield suggest("finetune.micro_batch_sequences", what, math.gcd(batch, micro))


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
    parts = prime_rl_of(run)
    finetune, deployment = parts.finetune, parts.deployment
    gpus = deployment.all_train_gpus if deployment is not None else None
    if finetune is None or parts.trainer is None or not finetune.batch_sequences or not gpus:
        return
    micro = finetune.micro_batch_sequences or 1
    ranks = max(1, gpus // ((parts.trainer.context_parallel or 1) * (parts.trainer.tensor_parallel or 1)))
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
    parts = prime_rl_of(run)
    finetune, trainer = parts.finetune, parts.trainer
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
    finetune = prime_rl_of(run).finetune
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
