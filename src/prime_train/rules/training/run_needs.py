"""The field to which a finding about a whole run points, and how many GPUs a run takes. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prime_train.rules.rule import known
from prime_train.spec import RunSpec
from prime_train.spec.answers import prime_rl_of, replicas_of
from prime_train.spec.decoder_size import Architecture, architecture_from_fields

if TYPE_CHECKING:
    from prime_train.facts.facts import Facts


def anchor(run: RunSpec) -> str:
    """The RunSpec field that sets how much of the machine a run takes, out of those that its format has."""
    parts = prime_rl_of(run)
    if run.recipe is not None:
        return "recipe.model_name"
    if parts.deployment is not None and parts.deployment.train_gpu_ids is not None:
        return "deployment.train_gpu_ids"
    if parts.deployment is not None and parts.deployment.train_gpus is not None:
        return "deployment.train_gpus"
    if parts.rollout is not None:
        return "rollout.batch_rollouts"
    if run.inference is not None:
        return "inference.model_name"
    if parts.trainer is not None:
        return "trainer.model_name"
    return "parallel.processes"


_PROCESS_BYTES = 2**29  # measured: 544 MiB resident after importing torch 2.13, before any model
_TRAINED_BYTES = 16  # per parameter in fp32: weight, gradient, two moments (ZeRO, arXiv 1910.02054, s. 3.1)
_SAVED_BYTES = 12  # per parameter in fp32: weight and two moments
_LOGIT_BYTES = 8  # per position and token of the vocabulary: the fp32 logit and its gradient


def architecture(run: RunSpec, facts: Facts) -> Architecture | None:
    """The decoder of this run; None if the facts do not define it. Needs model_folder, tokenizer_folder."""
    folder = known(facts.model_folder)
    if folder is not None:
        return folder.architecture
    tokenizer = known(facts.tokenizer_folder)
    vocab_size = run.tokenizer.vocab_size if tokenizer is None else tokenizer.vocab_size
    return None if vocab_size is None else architecture_from_fields(run.model, vocab_size)


def training_bytes(run: RunSpec, decoder: Architecture) -> int:
    """Memory of all processes on one machine, activations left out."""
    state = _TRAINED_BYTES * decoder.parameters * replicas_of(run) // run.parallel.machines
    logits = _LOGIT_BYTES * run.batch.micro_batch * run.data.ctx_tokens * decoder.vocab_size
    return state + run.parallel.processes_here * (logits + _PROCESS_BYTES)


def checkpoint_bytes(decoder: Architecture) -> int:
    return _SAVED_BYTES * decoder.parameters


def checkpoints_at_once(run: RunSpec) -> int:
    """The most checkpoints that are on the disk at one time: those kept, and the one being written."""
    interval, max_steps = run.checkpoint.interval_steps, run.run.max_steps
    written = 1 + (max_steps // interval if interval is not None else 0)  # 1 for the save at the end
    every = run.checkpoint.keep_every_steps
    kept_for_ever = max_steps // every if every is not None else 0
    return min(written, run.checkpoint.keep_last + 1 + kept_for_ever)
