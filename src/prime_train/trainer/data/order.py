"""Chooses the training documents and their order. Pure: indices and seeds, no text, no files."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from prime_train.trainer.draws import EPOCH, SOURCE, generator

Integers = NDArray[np.int64]
Hashes = NDArray[np.uint64]

# Rounds of a permutation without a table. Four make a large range look random (Luby and Rackoff, SIAM J. Comput. 17(2),
# 1988). A range of a few numbers needs more: with 16 all 120 permutations of 5 documents are equally likely
# (chi-square, 12,000 keys), with 12 they are not.
ROUNDS = 16

# How the documents of an epoch are permuted. A run keeps the version that it began with.
TABLE, FEISTEL = 1, 2  # by a table of all documents, which takes 8 bytes for each; without one


@dataclass(frozen=True, slots=True)
class BufferPlan:
    """The documents of one buffer. `cursors` and `tokens` count those of each source in earlier buffers."""

    number: int
    cursors: tuple[int, ...]
    source: Integers  # (D,)
    document: Integers  # (D,) in 0..count of its source
    tokens: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class DocumentOrder:
    """The endless sequence of training documents, cut into buffers."""

    seed: int
    counts: tuple[int, ...]  # training documents of each source
    probs: tuple[float, ...] | None  # None = in proportion to counts
    most_buffer_docs: int
    version: int = FEISTEL

    @property
    def buffer_docs(self) -> int:
        """Documents in a buffer: at most as many as exist, or one buffer would hold five books two hundred times."""
        return min(self.most_buffer_docs, sum(self.counts))

    def plan_buffer(self, number: int, cursors: tuple[int, ...]) -> BufferPlan:
        """The documents of a buffer: sources are drawn at random, and each source has a permutation per epoch."""
        weights = np.asarray(self.probs if self.probs is not None else self.counts, dtype=np.float64)
        # From the number of the buffer alone, so that a resumed run draws the same again.
        draw = generator(self.seed, SOURCE, number)
        source = draw.choice(len(self.counts), size=self.buffer_docs, p=weights / weights.sum())
        document = np.empty(self.buffer_docs, dtype=np.int64)
        for which, cursor in enumerate(cursors):
            mine = np.flatnonzero(source == which)
            document[mine] = self.documents(which, cursor, len(mine))
        return BufferPlan(number, cursors, source, document)

    def next_cursors(self, plan: BufferPlan) -> tuple[int, ...]:
        taken = np.bincount(plan.source, minlength=len(plan.cursors)).tolist()
        return tuple(cursor + count for cursor, count in zip(plan.cursors, taken, strict=True))

    def documents(self, source: int, cursor: int, wanted: int) -> Integers:
        """The documents [cursor, cursor + wanted) of the endless sequence of a source."""
        count = self.counts[source]
        parts: list[Integers] = []
        while wanted > 0:
            epoch, place = divmod(cursor, count)
            part = self._of_epoch(source, epoch, np.arange(place, min(place + wanted, count)))
            parts.append(part)
            cursor += len(part)
            wanted -= len(part)
        return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)

    def _of_epoch(self, source: int, epoch: int, places: Integers) -> Integers:
        count = self.counts[source]
        if self.version == TABLE:
            return _table(self.seed, source, epoch, count)[places]
        return permute(places, count, _keys(self.seed, source, epoch))


@lru_cache(maxsize=8)
def _table(seed: int, source: int, epoch: int, count: int) -> Integers:
    return generator(seed, EPOCH, source, epoch).permutation(count)


@lru_cache(maxsize=256)
def _keys(seed: int, source: int, epoch: int) -> Hashes:
    return generator(seed, EPOCH, source, epoch).integers(0, 2**62, size=ROUNDS, dtype=np.uint64)


def permute(places: Integers, count: int, keys: Hashes) -> Integers:
    """Where a permutation of 0..count-1 takes the places. `keys`: ROUNDS random numbers, one for each round.

    A place is a pair of numbers, one below `columns` and one below `rows`. Each round moves one of the two by a hash of
    the other, which can be undone, so the rounds are a permutation of all pairs. There are a few more pairs than
    places: a place that leaves the range goes through the rounds again until it is back. Source: Black and Rogaway,
    Ciphers with Arbitrary Finite Domains, CT-RSA 2002, s. 4 (cycle walking) and s. 5 (generalised Feistel network).
    """
    columns = math.isqrt(count - 1) + 1 if count else 1
    rows = -(-count // columns)
    found = _shuffle(places.astype(np.uint64), columns, rows, keys)
    while len(outside := np.flatnonzero(found >= count)):
        found[outside] = _shuffle(found[outside], columns, rows, keys)
    return found.astype(np.int64)


def _shuffle(values: Hashes, columns: int, rows: int, keys: Hashes) -> Hashes:
    """A permutation of 0..columns * rows - 1."""
    left, right = np.divmod(values, np.uint64(rows))  # below columns, below rows
    for number, key in enumerate(keys):
        if number % 2:
            right = (right + _mix(left + key)) % np.uint64(rows)
        else:
            left = (left + _mix(right + key)) % np.uint64(columns)
    return left * np.uint64(rows) + right


def _mix(values: Hashes) -> Hashes:
    """A hash of 62 bits of each value. Source: the finaliser of SplitMix64, Steele, Lea and Flood, OOPSLA 2014."""
    mixed = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (mixed ^ (mixed >> np.uint64(31))) >> np.uint64(2)  # so that the sum with a value has 64 bits
