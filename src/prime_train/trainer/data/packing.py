"""Packs documents into rows, and converts rows to the tensors of a micro-batch. Reads no file and no token's value.

A row is one training sequence: pieces of documents in sequence, then padding. Pieces do not affect each other:
`documents` is the piece of each position for the attention, `positions` restart with each piece, and the last
position of a piece has no label.
Letters: B sequences, T tokens in a sequence, P pieces over all rows (the padding of a row counts as its last piece).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from prime_train.trainer.batch import IGNORED, MicroBatch


@dataclass(frozen=True, slots=True)
class Rows:
    """Packed sequences in a compact form for sending between processes."""

    tokens: NDArray[np.integer]  # (B, T); ~token for a token that is no label
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


def to_batch(rows: Rows) -> MicroBatch:
    sequences, ctx_tokens = rows.tokens.shape
    size = sequences * ctx_tokens
    starts = np.cumsum(rows.lengths) - rows.lengths  # (P,) of each piece in the flattened batch
    pieces_per_row = np.diff(rows.first)  # (B,)
    place_in_row = np.arange(len(rows.lengths)) - np.repeat(rows.first[:-1], pieces_per_row)  # (P,)

    stored = rows.tokens.astype(np.int64).reshape(size)
    tokens = np.where(stored < 0, ~stored, stored)
    labels = np.full(size, IGNORED, dtype=np.int64)
    labels[:-1] = np.where(stored < 0, IGNORED, stored)[1:]
    # All rows are shifted at once, so the last position of a piece has got a token of the next piece.
    labels[(starts + rows.lengths - 1)[rows.lengths > 0]] = IGNORED
    is_padding = np.zeros(len(rows.lengths), dtype=np.bool_)
    is_padding[rows.first[1:] - 1] = True
    labels[np.repeat(is_padding, rows.lengths)] = IGNORED
    positions = np.arange(size) - np.repeat(starts, rows.lengths)
    documents = np.repeat(place_in_row, rows.lengths)

    def tensor(values: NDArray[np.int64]) -> torch.Tensor:
        return torch.from_numpy(values.reshape(sequences, ctx_tokens))  # (B, T)

    return MicroBatch(tensor(tokens), tensor(labels), tensor(positions), tensor(documents))


Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Bins:
    """Pieces in the order of their bins. Letters: P pieces, N bins."""

    document: Integers  # (P,) index into `lengths`
    start: Integers  # (P,) first token of the piece in its document
    length: Integers  # (P,)
    first: Integers  # (N + 1,): bin n holds pieces [first[n], first[n + 1])

    def __len__(self) -> int:
        return len(self.first) - 1

    def slice(self, start: int, stop: int) -> Bins:
        """Bins [start, stop), as a view."""
        first = self.first[start : stop + 1]
        pieces = slice(int(first[0]), int(first[-1]))
        return Bins(self.document[pieces], self.start[pieces], self.length[pieces], first - first[0])

    def take(self, order: Integers) -> Bins:
        """The bins with the indices in `order`."""
        pieces_per_bin = np.diff(self.first)[order]
        first = np.concatenate([[0], np.cumsum(pieces_per_bin)])
        pieces = np.repeat(self.first[:-1][order] - first[:-1], pieces_per_bin) + np.arange(first[-1])
        return Bins(self.document[pieces], self.start[pieces], self.length[pieces], first)


def pack(lengths: NDArray[np.integer], capacity: int) -> Bins:
    """Bins of at most `capacity` tokens that hold every token of documents with these lengths, best fit decreasing.

    Only a document longer than a bin is cut: into pieces that each fill a bin, and a tail. Documents of equal length
    and bins of equal free space are handled as groups, so the time grows with the number of distinct lengths. The same
    lengths give the same bins. A document of length 0 is in no bin. Source: arXiv 2404.10830, s. 3.
    """
    document, start, length = cut(np.asarray(lengths, dtype=np.int64), capacity)
    # Stable, because the same lengths must give the same bins on every machine.
    descending = np.argsort(-length, kind="stable")
    bin_of = _best_fit(length[descending], capacity)
    pieces = descending[np.argsort(bin_of, kind="stable")]
    first = np.concatenate([[0], np.cumsum(np.bincount(bin_of))]).astype(np.int64)
    return Bins(document[pieces], start[pieces], length[pieces], first)


def cut(lengths: Integers, capacity: int) -> tuple[Integers, Integers, Integers]:
    """(document, start, length) of each piece: full pieces of `capacity` and the tail, in document order."""
    pieces_per_document = -(-lengths // capacity)
    document = np.repeat(np.arange(len(lengths)), pieces_per_document)
    before = np.cumsum(pieces_per_document) - pieces_per_document
    start = (np.arange(len(document)) - before[document]) * capacity
    return document, start, np.minimum(lengths[document] - start, capacity)


def _best_fit(lengths: Integers, capacity: int) -> Integers:
    """The bin of each piece; `lengths` descend.

    The bin with the least sufficient space s takes s // length pieces in a row, because after each of them it is
    still the fullest bin that fits. So all neighbouring bins with that space, or as many empty bins as needed, are
    filled at once.
    """
    waiting: dict[int, list[tuple[int, int]]] = {}  # free space -> (first, count) of neighbouring bins with it
    spaces = 0  # bit s is set where waiting[s] exists
    bins = 0
    filled: list[tuple[int, int, int]] = []  # (first bin, bins, pieces in each), in the order of the pieces

    def put_back(space: int, first: int, count: int) -> None:
        nonlocal spaces
        if space > 0 and count > 0:
            waiting.setdefault(space, []).append((first, count))
            spaces |= 1 << space

    for length, left in _runs(lengths):
        while left > 0:
            # The lowest bit that is set is the fullest bin that fits, so no bin has to be searched for.
            fitting = spaces >> length
            if fitting:
                space = length + (fitting & -fitting).bit_length() - 1
                first, count = waiting[space].pop()
                if not waiting[space]:
                    del waiting[space]
                    spaces ^= 1 << space
            else:
                space, first, count = capacity, bins, -(-left // (capacity // length))
                bins += count
            per_bin = space // length
            full = min(count, left // per_bin)
            if full > 0:
                filled.append((first, full, per_bin))
                put_back(space - per_bin * length, first, full)
                left -= full * per_bin
            # Fewer pieces are left than a bin holds, so the next bin is the last one of this length.
            if left > 0 and full < count:
                filled.append((first + full, 1, left))
                put_back(space - left * length, first + full, 1)
                left = 0
                full += 1
            put_back(space, first + full, count - full)
    return _pieces(filled)


def _pieces(filled: list[tuple[int, int, int]]) -> Integers:
    """The bin of each piece, from (first bin, bins, pieces in each)."""
    first, count, per_bin = np.asarray(filled, dtype=np.int64).reshape(-1, 3).T
    bins = np.arange(count.sum()) + np.repeat(first - (np.cumsum(count) - count), count)
    return np.repeat(bins, np.repeat(per_bin, count))


def _runs(lengths: Integers) -> Iterator[tuple[int, int]]:
    """(length, count) of each run of equal lengths."""
    if not len(lengths):
        return
    edges = np.concatenate([[0], np.flatnonzero(np.diff(lengths)) + 1, [len(lengths)]])
    yield from zip(lengths[edges[:-1]].tolist(), np.diff(edges).tolist(), strict=True)


def fill(bins: Bins, tokens: NDArray[np.integer], lengths: Integers, capacity: int, padding: int) -> Rows:
    """The sequences that `bins` describe; `tokens` holds the documents in sequence."""
    source = (np.cumsum(lengths) - lengths)[bins.document] + bins.start  # (P,)
    ranges = zip(source.tolist(), (source + bins.length).tolist(), strict=True)
    return lay_out(bins, [tokens[start:stop] for start, stop in ranges], capacity, padding, tokens.dtype)


def lay_out(
    bins: Bins, pieces: Sequence[NDArray[np.integer]], capacity: int, padding: int, kind: np.dtype[np.integer]
) -> Rows:
    """The sequences that `bins` describe; `pieces` holds the tokens of each piece, in the order of the bins."""
    bin_of = np.repeat(np.arange(len(bins)), np.diff(bins.first))  # (P,)
    used = np.bincount(bin_of, weights=bins.length, minlength=len(bins)).astype(np.int64)  # (N,)
    # Made once: each row takes its padding as a slice of it, which copies nothing.
    filler = np.full(capacity, padding, dtype=kind)
    flow = [filler[:0]]
    for first, last, left in zip(
        bins.first.tolist(), bins.first[1:].tolist(), (capacity - used).tolist(), strict=False
    ):
        flow += pieces[first:last]
        flow.append(filler[:left])  # padding is one more piece of each bin
    rows = np.concatenate(flow).reshape(len(bins), capacity)
    lengths = np.insert(bins.length, bins.first[1:], capacity - used)
    return Rows(rows, lengths, bins.first + np.arange(len(bins) + 1))
