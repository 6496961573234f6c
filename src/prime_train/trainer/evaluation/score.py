"""Scores continuations of contexts by their likelihood under the model in training. Changes neither.

Shapes: B rows, T positions, V vocabulary, N labelled positions of all rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from prime_train.trainer import parallel
from prime_train.trainer.batch import IGNORED
from prime_train.trainer.evaluation.evaluate import share
from prime_train.trainer.loops.step import Training

_LENGTH_STEP = 32  # lengths are rounded up to this, so that a compiled model sees few shapes


class ScoreRequest(NamedTuple):
    """A continuation to score. Both have at least one token, and the continuation has at most ctx_tokens."""

    context: Sequence[int]
    continuation: Sequence[int]


class Scored(NamedTuple):
    """The log-probability of a continuation in nats, and whether each of its tokens is the most probable one."""

    log_prob: float
    is_greedy: bool


class BenchmarkValue(NamedTuple):
    """One value of a benchmark, a mean over so many examples."""

    name: str  # "hellaswag"
    metric: str  # "acc_norm"
    value: float
    examples: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Scorer:
    """The model in training, which all ranks call together. A micro-batch has at most `batch_tokens`."""

    training: Training
    ctx_tokens: int
    batch_tokens: int
    report: Callable[[int, int], None] = lambda _done, _all: None  # after each micro-batch, so that it is no hang

    @torch.no_grad()
    def score(self, requests: Sequence[ScoreRequest]) -> list[Scored]:
        """The scores in the order of the requests, on every rank. A context that is too long loses its beginning."""
        training, world = self.training, self.training.world
        portions = self._portion(requests)
        found = torch.zeros(len(requests), 2, dtype=torch.float64, device=training.device.torch)  # (requests, 2)
        for done, (portion, counts) in enumerate(share(portions, world.rank, world.size), start=1):
            scores = self._score([requests[number] for number in portion])  # (B, 2)
            if counts:
                found[torch.tensor(portion, device=found.device)] = scores
            self.report(min(done * world.size, len(portions)), len(portions))
        return [Scored(log_prob, is_greedy > 0) for log_prob, is_greedy in world.sum(found).tolist()]

    def _portion(self, requests: Sequence[ScoreRequest]) -> list[list[int]]:
        """The numbers of the requests of each micro-batch, longest first: memory runs out at once or never."""
        lengths = [self._row_tokens(request) for request in requests]
        portions: list[list[int]] = []
        most = 0
        for number in sorted(range(len(requests)), key=lambda number: (-lengths[number], number)):
            if not portions or len(portions[-1]) == most:
                portions.append([])
                most = max(1, self.batch_tokens // lengths[number])
            portions[-1].append(number)
        return portions

    def _row_tokens(self, request: ScoreRequest) -> int:
        inputs = len(request.context) + len(request.continuation) - 1
        return min(self.ctx_tokens, -(-inputs // _LENGTH_STEP) * _LENGTH_STEP)

    def _score(self, requests: Sequence[ScoreRequest]) -> Tensor:
        """Log-probability, and 1 where greedy; (B, 2) fp64."""
        device = self.training.device
        length = max(map(self._row_tokens, requests))
        tokens = torch.zeros(len(requests), length, dtype=torch.int64)  # (B, T)
        labels = torch.full_like(tokens, IGNORED)  # (B, T)
        for row, (context, continuation) in enumerate(requests):
            inputs = [*context, *continuation][-(self.ctx_tokens + 1) : -1]
            tokens[row, : len(inputs)] = torch.tensor(inputs)
            labels[row, len(inputs) - len(continuation) : len(inputs)] = torch.tensor(continuation)
        positions = torch.arange(length).expand_as(tokens)  # (B, T)
        labelled = (labels != IGNORED).to(device.torch)  # (B, T)
        wanted = labels.to(device.torch)[labelled]  # (N,)
        with device.autocast():
            # No mask: padding is behind every token of a row, where causal attention does not look.
            logits = parallel.unwrap(self.training.model)(tokens.to(device.torch), positions.to(device.torch), None)
        logits = logits[labelled].float()  # (N, V)
        log_probs = logits.log_softmax(-1).gather(1, wanted[:, None])[:, 0]  # (N,)
        row_of = labelled.nonzero()[:, 0]  # (N,)
        sums = torch.zeros(2, len(requests), dtype=torch.float64, device=device.torch)  # (2, B)
        sums[0].index_add_(0, row_of, log_probs.double())
        sums[1].index_add_(0, row_of, (logits.argmax(-1) != wanted).double())
        return torch.stack([sums[0], (sums[1] == 0).double()], -1)  # (B, 2)
