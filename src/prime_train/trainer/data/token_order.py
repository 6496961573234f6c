"""Draws the sources of the stream in proportion to tokens, for sampling_unit = "tokens". Draws nothing at random.

The next document always comes from the source whose tokens so far, divided by its probability, are the fewest; of
equal ones the first. So after every document the tokens of a source differ from their part of all tokens by less than
two of the longest documents, for ever: the part is exact in the long run, without knowing lengths in advance. The
documents of a source have the order of its epochs, as with documents as the unit. The state is two numbers for each
source, documents and tokens so far, which a position holds. Source: stride scheduling, Waldspurger and Weihl,
MIT/LCS/TM-528, 1995.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from prime_train.trainer.data.corpus import Corpus
from prime_train.trainer.data.order import BufferPlan, DocumentOrder
from prime_train.trainer.data.tokenised import Share


def plan_by_tokens(
    order: DocumentOrder,
    corpora: Sequence[Corpus],
    number: int,
    cursors: tuple[int, ...],
    tokens: tuple[int, ...],
    share: Share,
) -> Iterator[BufferPlan]:
    """The endless plans from buffer `number` on. Tokenises this process's share of the documents ahead."""
    assert order.probs is not None
    upcoming = [
        _lengths_ahead(order, source, corpus, cursor, share)
        for source, (corpus, cursor) in enumerate(zip(corpora, cursors, strict=True))
    ]
    # A heap, because every document comes from the source that is furthest behind its probability.
    queue = [
        (tokens[source] / prob, source) for source, prob in enumerate(order.probs) if prob > 0
    ]  # (tokens so far by probability, source)
    heapq.heapify(queue)
    for following in itertools.count(number):
        # Copies, because the plan has the sums before its buffer.
        drawn, taken = list(tokens), list(cursors)
        sources, documents = [], []
        for _ in range(order.buffer_docs):
            source = queue[0][1]
            document, length = next(upcoming[source])
            drawn[source] += length
            taken[source] += 1
            heapq.heapreplace(queue, (drawn[source] / order.probs[source], source))
            sources.append(source)
            documents.append(document)
        yield BufferPlan(following, cursors, np.asarray(sources), np.asarray(documents), tokens)
        cursors, tokens = tuple(taken), tuple(drawn)


def _lengths_ahead(
    order: DocumentOrder, source: int, corpus: Corpus, cursor: int, share: Share
) -> Iterator[tuple[int, int]]:
    """(document, tokens) of the documents of a source from `cursor` on. Lengths are needed before the buffer is known,
    so the next documents of the source are tokenised in blocks, which any buffer will use in this order.
    """
    size = min(order.buffer_docs, order.counts[source])
    block = order.documents(source, cursor, size)
    for turn in itertools.count():
        following = order.documents(source, cursor + (turn + 1) * size, size)
        corpus.source.make_own(corpus.train[block], share.at(turn))
        corpus.source.make_own(corpus.train[following], share.at(turn + 1))  # before the wait for other processes
        lengths = corpus.source.lengths(corpus.train[block], share.at(turn))
        yield from zip(block.tolist(), lengths.tolist(), strict=True)
        block = following
