"""Chooses the training documents and their order. Pure: indices and seeds, no text, no files."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from prime_train.trainer.data.permutation import ROUNDS, Hashes, permute
from prime_train.trainer.draws import EPOCH, SOURCE, generator

Integers = NDArray[np.int64]

# How the documents of an epoch are permuted. A run keeps the version that it began with.
TABLE, FEISTEL = 1, 2  # by a table of all documents, which takes 8 bytes for each; without one


@dataclass(frozen=True, slots=True)
class BufferPlan:
    """The documents of one buffer. `cursors` count the documents of each source in earlier buffers, `tokens` their
    tokens; these are empty where the sources are drawn by documents.
    """

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
