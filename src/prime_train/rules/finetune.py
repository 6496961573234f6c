"""Data of a fine-tuning under prime-rl that cannot be put into batches. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator

from prime_train.findings import Problem, Severity
from prime_train.rules.base import rule
from prime_train.spec import RunSpec


@rule("BAT010", Severity.ERROR)
def sequences_not_whole_micro_batches(run: RunSpec) -> Iterator[Problem]:
    """A fine-tuning batch must be made of whole micro-batches.

    gradients are accumulated over micro-batches: a part of one cannot be computed, and prime-rl refuses

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
        yield Problem(
            "finetune.micro_batch_sequences",
            f"`finetune.batch_sequences` {finetune.batch_sequences} does not divide by "
            f"{finetune.micro_batch_sequences}",
            patch={
                "finetune.micro_batch_sequences": math.gcd(finetune.batch_sequences, finetune.micro_batch_sequences)
            },
        )


@rule("BAT011", Severity.ERROR)
def micro_batch_under_context_parallel(run: RunSpec) -> Iterator[Problem]:
    """Under context parallelism a micro-batch is one sequence.

    the ranks of a group share one sequence at a time, and prime-rl refuses more

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
        yield Problem(
            "finetune.micro_batch_sequences",
            f"{finetune.micro_batch_sequences} sequences, and `trainer.context_parallel` is {trainer.context_parallel}",
            patch={"finetune.micro_batch_sequences": 1},
        )


@rule("BAT012", Severity.ERROR)
def finetune_probs_wrong(run: RunSpec) -> Iterator[Problem]:
    """Subsets, splits and probabilities must be as many, and the probabilities sum to 1.

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
        yield Problem(
            "finetune.sampling_probs",
            f"{len(probs)} probabilities for {len(subsets)} subsets",
            fix="one for each, or take them out",
            patch={"finetune.sampling_probs": None},
        )
    elif abs(total - 1) > 1e-6 and total > 0:
        yield Problem(
            "finetune.sampling_probs",
            f"they sum to {total:g}, not to 1",
            patch={"finetune.sampling_probs": [prob / total for prob in probs]},
        )
