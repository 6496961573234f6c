"""One micro-batch of tokens with their labels: what every loss and every attention plan takes. Reads nothing.

Letters: B sequences, T tokens in a sequence.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

IGNORED = -100  # torch.nn.functional.cross_entropy ignores this label by default


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """One micro-batch. Labels are shifted: `labels[:, t]` is the token after `tokens[:, t]`, or IGNORED."""

    tokens: torch.Tensor  # (B, T) int64
    labels: torch.Tensor  # (B, T) int64
    positions: torch.Tensor  # (B, T) int64, from 0 in each piece
    documents: torch.Tensor  # (B, T) int64, from 0 in each row; padding has its own number

    @property
    def labelled_tokens(self) -> int:
        """Positions that count in the loss."""
        return int((self.labels != IGNORED).sum())


def blank_out(batch: MicroBatch) -> MicroBatch:
    """The same without labels: for a rank without rows, which must compute as often as the others."""
    return replace(batch, labels=torch.full_like(batch.labels, IGNORED))
