"""Packs documents into rows, and converts rows to the tensors of a micro-batch. Reads no file and no token's value.

A row is one training sequence: pieces of documents in sequence, then padding. Pieces do not affect each other:
`documents` is the piece of each position for the attention mask, `positions` restart with each piece, and the last
position of a piece has no label.

Letters: B sequences, T tokens in a sequence, P pieces over all rows (the padding of a row counts as its last piece).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

IGNORED = -100  # torch.nn.functional.cross_entropy ignores this label by default


@dataclass(frozen=True, slots=True)
class Batch:
    """One micro-batch. Labels are shifted: `labels[:, t]` is the token after `tokens[:, t]`, or IGNORED."""

    tokens: torch.Tensor  # (B, T) int64
    labels: torch.Tensor  # (B, T) int64
    positions: torch.Tensor  # (B, T) int64, from 0 in each piece
    documents: torch.Tensor  # (B, T) int64, from 0 in each row; padding has its own number

    @property
    def labelled_tokens(self) -> int:
        """Positions that count in the loss."""
        return int((self.labels != IGNORED).sum())


@dataclass(frozen=True, slots=True)
class Rows:
    """Packed sequences in a compact form for sending between processes."""

    tokens: NDArray[np.integer]  # (B, T)
    lengths: NDArray[np.int64]  # (P,); the last of each row is its padding and may be 0
    first: NDArray[np.int64]  # (B + 1,): row b owns lengths[first[b]:first[b + 1]]

    def __len__(self) -> int:
        return len(self.tokens)

    def slice(self, start: int, stop: int) -> Rows:
        """Rows [start, stop), as a view."""
        first = self.first[start : stop + 1]
        return Rows(self.tokens[start:stop], self.lengths[first[0] : first[-1]], first - first[0])

    def take(self, order: NDArray[np.int64]) -> Rows:
        """The rows with the indices in `order`."""
        pieces_per_row = np.diff(self.first)[order]
        first = np.concatenate([[0], np.cumsum(pieces_per_row)])
        pieces = np.repeat(self.first[:-1][order] - first[:-1], pieces_per_row) + np.arange(first[-1])
        return Rows(self.tokens[order], self.lengths[pieces], first)


def join(parts: Sequence[Rows]) -> Rows:
    """The rows of all parts, in order."""
    if len(parts) == 1:
        return parts[0]
    pieces_per_row = np.concatenate([np.diff(part.first) for part in parts])
    return Rows(
        np.concatenate([part.tokens for part in parts]),
        np.concatenate([part.lengths for part in parts]),
        np.concatenate([[0], np.cumsum(pieces_per_row)]),
    )


def to_batch(rows: Rows) -> Batch:
    sequences, ctx_tokens = rows.tokens.shape
    size = sequences * ctx_tokens
    starts = np.cumsum(rows.lengths) - rows.lengths  # (P,) of each piece in the flattened batch
    pieces_per_row = np.diff(rows.first)  # (B,)
    place_in_row = np.arange(len(rows.lengths)) - np.repeat(rows.first[:-1], pieces_per_row)  # (P,)

    tokens = rows.tokens.astype(np.int64).reshape(size)
    labels = np.full(size, IGNORED, dtype=np.int64)
    labels[:-1] = tokens[1:]
    labels[(starts + rows.lengths - 1)[rows.lengths > 0]] = IGNORED
    is_padding = np.zeros(len(rows.lengths), dtype=np.bool_)
    is_padding[rows.first[1:] - 1] = True
    labels[np.repeat(is_padding, rows.lengths)] = IGNORED
    positions = np.arange(size) - np.repeat(starts, rows.lengths)
    documents = np.repeat(place_in_row, rows.lengths)

    def tensor(values: NDArray[np.int64]) -> torch.Tensor:
        return torch.from_numpy(values.reshape(sequences, ctx_tokens))  # (B, T)

    return Batch(tensor(tokens), tensor(labels), tensor(positions), tensor(documents))
