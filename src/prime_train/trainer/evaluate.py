"""Measures the loss on held-out text and lets the model continue prompts. Leaves model and generators as they were."""

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
def held_out_loss(training: Training, batches: Sequence[Batch]) -> tuple[float, int]:
    """Mean cross-entropy per held-out token in nats, and the number of those tokens. The same on every rank.

    Each rank takes its share of the batches. They all call the model equally often: a sharded one
    gathers its weights from all ranks at every call.
    """
    world = training.world
    model = training.model if parallel.sharded(training.model) else parallel.bare(training.model)
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
    """This rank's batches; where it has one fewer than others, its last call is of one that does not count."""
    for start in range(0, len(batches), size):
        mine = start + rank
        yield batches[min(mine, len(batches) - 1)], mine < len(batches)


def samples(training: Training, tokenizer: Tokenizer, attempt: Attempt, step: int) -> list[str]:
    """How the model goes on from each of the run's prompts, the same at every try of this step."""
    settings = attempt.run.eval
    sampling = Sampling(
        new_tokens=settings.sample_tokens,
        ctx_tokens=attempt.run.data.ctx_tokens,
        temperature=settings.temperature,
        seed=seed.mix(attempt.run.run.seed, "samples", step),
        stop_token=tokenizer.eos_id,
    )
    prompts = [tokenizer.encode(prompt) or [tokenizer.eos_id] for prompt in settings.prompts]
    model = training.model if parallel.sharded(training.model) else parallel.bare(training.model)
    with training.device.autocast():
        return [tokenizer.decode(tokens) for tokens in generate(model, prompts, sampling, training.device.torch)]


def evaluate(training: Training, tokenizer: Tokenizer, batches: Sequence[Batch], attempt: Attempt, step: int) -> float:
    """Both, told as events; the held-out loss."""
    loss, tokens = held_out_loss(training, batches)
    attempt.tell(Evaluated(attempt.number, step, loss, tokens))
    if attempt.rank == 0 or parallel.sharded(training.model):
        texts = samples(training, tokenizer, attempt, step)
        for prompt, text in zip(attempt.run.eval.prompts, texts, strict=True):
            attempt.tell(Sampled(attempt.number, step, prompt, text))
    return loss
