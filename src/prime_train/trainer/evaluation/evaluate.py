"""Measures the loss on held-out text and samples from prompts. Changes neither the model nor the generators."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch
from torch import Tensor, nn

from prime_train.events import Evaluated, Phase, Sampled
from prime_train.trainer import parallel, seed
from prime_train.trainer.attempt import Attempt
from prime_train.trainer.batch import MicroBatch
from prime_train.trainer.loops.step import Training, loss_sum
from prime_train.trainer.tokenizer import LoadedTokenizer


class Evaluation(Protocol):
    """Held-out text, a set of eval.sets, the benchmarks, held-out tasks, or samples."""

    def measure(self, attempt: Attempt, training: Training, step: int) -> float | None:
        """Emit what the model after `step` reaches, on every rank. Returns the run's loss in nats if it has one."""

    def close(self) -> None:
        """End what it has started, such as the processes of its environments."""


def measure_all(attempt: Attempt, training: Training, step: int, evaluations: Sequence[Evaluation]) -> float | None:
    """Measure one after the other. Returns the last loss that one of them has; None where none has a loss."""
    attempt.emit(Phase(attempt.number, "evaluate"))
    with training.spans.host_span("evaluate"):
        # Each rank measures all of them in one order, because each may exchange tensors with the other ranks.
        losses = [evaluation.measure(attempt, training, step) for evaluation in evaluations]
    return next((loss for loss in reversed(losses) if loss is not None), None)


Portion = TypeVar("Portion")


@torch.no_grad()
def measure_held_out_loss(training: Training, batches: Sequence[MicroBatch]) -> tuple[float, int]:
    """Mean cross-entropy per held-out token in nats, and the number of tokens; all ranks call it equally often."""
    model = parallel.unwrap(training.model)
    sums = torch.zeros(2, dtype=torch.float64, device=training.device.torch)  # (2,): nats, tokens
    for batch, counts in share(batches, training.world.rank, training.world.size):
        loss = loss_sum(model, batch, training.device)  # ()
        if counts:
            sums += torch.stack([loss.double(), torch.tensor(batch.labelled_tokens).to(sums)])
    nats, tokens = training.world.sum(sums).tolist()
    return nats / tokens, round(tokens)


def share(portions: Sequence[Portion], rank: int, size: int) -> Iterator[tuple[Portion, bool]]:
    """This rank's portions, and whether each counts; a rank with one fewer gets another that does not count."""
    for mine in range(rank, rank + len(portions), size):
        yield portions[min(mine, len(portions) - 1)], mine < len(portions)


@dataclass(frozen=True, slots=True)
class HeldOut:
    """The held-out part of the training data."""

    batches: Sequence[MicroBatch]

    def measure(self, attempt: Attempt, training: Training, step: int) -> float:
        """Emit the loss, and return it."""
        loss, tokens = measure_held_out_loss(training, self.batches)
        attempt.emit(Evaluated(attempt.number, step, loss, tokens))
        return loss

    def close(self) -> None:
        """It has started nothing."""


@dataclass(frozen=True, slots=True)
class Samples:
    """Continuations of eval.prompts. `prompts`: the tokens of each. `stop_tokens` end a continuation."""

    tokenizer: LoadedTokenizer
    prompts: Sequence[Sequence[int]]
    stop_tokens: frozenset[int]

    def measure(self, attempt: Attempt, training: Training, step: int) -> None:
        """Emit a continuation of each prompt."""
        # One rank with a whole model is enough. A sharded model gathers its weights from all ranks.
        if attempt.rank == 0 or parallel.is_sharded(training.model):
            texts = self.continue_prompts(attempt, training, step)
            for prompt, text in zip(attempt.run.eval.prompts, texts, strict=True):
                attempt.emit(Sampled(attempt.number, step, prompt, text))

    def continue_prompts(self, attempt: Attempt, training: Training, step: int) -> list[str]:
        """The model's continuation of each prompt. Repeating a step gives the same texts."""
        settings = attempt.run.eval
        sampling = Sampling(
            new_tokens=settings.sample_tokens,
            ctx_tokens=attempt.run.data.ctx_tokens,
            temperature=settings.temperature,
            seed=seed.mix(attempt.run.run.seed, "samples", step),
            stop_tokens=self.stop_tokens,
        )
        begun = [prompt or [self.tokenizer.eos_id] for prompt in self.prompts]
        with training.device.autocast():
            continued = generate(parallel.unwrap(training.model), begun, sampling, training.device.torch)
        return [self.tokenizer.decode(tokens) for tokens in continued]

    def close(self) -> None:
        """It has started nothing."""


_LENGTH_STEP = 32  # lengths are rounded up to this, so that a compiled model sees few shapes


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How to continue prompts. `temperature` 0 picks the most likely token; `stop_tokens` end a continuation."""

    new_tokens: int
    ctx_tokens: int
    temperature: float
    seed: int
    stop_tokens: frozenset[int] = frozenset()


@torch.no_grad()
def generate(
    model: nn.Module, prompts: Sequence[Sequence[int]], sampling: Sampling, device: torch.device | str = "cpu"
) -> list[list[int]]:
    """The tokens that follow each prompt, without a stop token, from windows of `ctx_tokens` tokens.

    Without a KV cache 48 tokens cost less than a training step, and the model needs no decoding code. All ranks of a
    sharded model draw the same tokens, because each uses a CPU generator with the same seed.
    """
    if any(not prompt for prompt in prompts):
        raise ValueError("a prompt has no tokens; give each at least the token that starts a document")
    generator = torch.Generator().manual_seed(sampling.seed)
    sequences = [list(prompt) for prompt in prompts]
    live = [True] * len(sequences)
    for _ in range(sampling.new_tokens):
        if not any(live):
            break
        logits = _next_logits(model, sequences, sampling.ctx_tokens, device)  # (B, V)
        for row, token in enumerate(_draw(logits, sampling.temperature, generator)):
            live[row] = live[row] and token not in sampling.stop_tokens
            if live[row]:
                sequences[row].append(token)
    return [sequence[len(prompt) :] for sequence, prompt in zip(sequences, prompts, strict=True)]


def _next_logits(model: nn.Module, sequences: list[list[int]], ctx_tokens: int, device: torch.device | str) -> Tensor:
    """Logits after the last token of each sequence, (B, V) fp32 on the CPU. Rows are padded behind it."""
    windows = [sequence[-ctx_tokens:] for sequence in sequences]
    longest = max(map(len, windows))
    length = min(ctx_tokens, -(-longest // _LENGTH_STEP) * _LENGTH_STEP)
    tokens = torch.zeros(len(windows), length, dtype=torch.int64)  # (B, T)
    for row, window in enumerate(windows):
        tokens[row, : len(window)] = torch.tensor(window)
    positions = torch.arange(length).expand_as(tokens)  # (B, T)
    last = torch.tensor([len(window) - 1 for window in windows])  # (B,)
    logits: Tensor = model(tokens.to(device), positions.to(device), None, last.to(device))
    return logits.float().cpu()


def _draw(logits: Tensor, temperature: float, generator: torch.Generator) -> list[int]:
    """One token per row of (B, V) logits."""
    if temperature == 0:
        drawn = logits.argmax(-1)
    else:
        drawn = torch.multinomial((logits / temperature).softmax(-1), 1, generator=generator).squeeze(-1)
    return list(map(int, drawn))
