"""Measures the loss on held-out text and samples from prompts. Changes neither the model nor the generators."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from prime_train.events import Evaluated, Sampled
from prime_train.trainer import parallel, seed
from prime_train.trainer.attempt import Attempt
from prime_train.trainer.data.batch import Batch
from prime_train.trainer.generate import Sampling, generate
from prime_train.trainer.step import Training, loss_sum
from prime_train.trainer.tokenizer import Tokenizer


@torch.no_grad()
def measure_held_out_loss(training: Training, batches: Sequence[Batch]) -> tuple[float, int]:
    """Mean cross-entropy per held-out token in nats, and the number of held-out tokens. The same on every rank.

    The ranks share the batches. All ranks call the model equally often, because a sharded model gathers its weights
    from all ranks at every call.
    """
    world = training.world
    model = training.model if parallel.is_sharded(training.model) else parallel.unwrap(training.model)
    sums = torch.zeros(2, dtype=torch.float64, device=training.device.torch)  # (2,): nats, tokens
    was_training = model.training
    model.eval()
    try:
        for batch, counts in _share(batches, world.rank, world.size):
            loss = loss_sum(model, batch, training.device)
            if counts:
                sums += torch.stack([loss.double(), torch.tensor(batch.labelled_tokens).to(sums)])
    finally:
        model.train(was_training)
    nats, tokens = world.sum(sums).tolist()
    return nats / tokens, round(tokens)


def _share(batches: Sequence[Batch], rank: int, size: int) -> Iterator[tuple[Batch, bool]]:
    """This rank's batches, and whether each counts; a rank with one batch fewer gets another that does not count."""
    for start in range(0, len(batches), size):
        mine = start + rank
        yield batches[min(mine, len(batches) - 1)], mine < len(batches)


def sample_prompts(training: Training, tokenizer: Tokenizer, attempt: Attempt, step: int) -> list[str]:
    """The model's continuation of each of the run's prompts. Repeating a step gives the same texts."""
    settings = attempt.run.eval
    sampling = Sampling(
        new_tokens=settings.sample_tokens,
        ctx_tokens=attempt.run.data.ctx_tokens,
        temperature=settings.temperature,
        seed=seed.mix(attempt.run.run.seed, "samples", step),
        stop_token=tokenizer.eos_id,
    )
    prompts = [tokenizer.encode(prompt) or [tokenizer.eos_id] for prompt in settings.prompts]
    model = training.model if parallel.is_sharded(training.model) else parallel.unwrap(training.model)
    with training.device.autocast():
        return [tokenizer.decode(tokens) for tokens in generate(model, prompts, sampling, training.device.torch)]


def evaluate(training: Training, tokenizer: Tokenizer, batches: Sequence[Batch], attempt: Attempt, step: int) -> float:
    """Measure the held-out loss and sample from the prompts, emit both as events, and return the loss."""
    loss, tokens = measure_held_out_loss(training, batches)
    attempt.emit(Evaluated(attempt.number, step, loss, tokens))
    if attempt.rank == 0 or parallel.is_sharded(training.model):
        texts = sample_prompts(training, tokenizer, attempt, step)
        for prompt, text in zip(attempt.run.eval.prompts, texts, strict=True):
            attempt.emit(Sampled(attempt.number, step, prompt, text))
    return loss
