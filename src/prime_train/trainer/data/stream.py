"""Yields the micro-batches of a training run in an order that depends only on the seed. Reads no clock, no device.

The stream is a sequence of rows: buffer 0, buffer 1, ... One micro-batch of all ranks together is the next
`micro_batch x world_size` rows; rank r uses the r-th part of them. So optimizer step s uses rows
[s * global_batch, (s + 1) * global_batch) for any number of ranks, workers and attempts.
"""

from __future__ import annotations

import heapq
import itertools
import os
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from prime_train.core.errors import UserError
from prime_train.spec import RunSpec
from prime_train.trainer import draws
from prime_train.trainer.batch import MicroBatch
from prime_train.trainer.data import order
from prime_train.trainer.data.corpus import Corpus, gather_held_out, open_corpora
from prime_train.trainer.data.loader import Buffer, Buffers, Loader, MakePlans, plans
from prime_train.trainer.data.order import BufferPlan, DocumentOrder
from prime_train.trainer.data.packing import Rows, fill, join, pack, to_batch
from prime_train.trainer.data.tables import no_text_error
from prime_train.trainer.data.text_tokenizer import load_tokenizer
from prime_train.trainer.data.tokenised import NOTHING, Made, Share, sum_made
from prime_train.trainer.data.transforms import choose, load_transforms, restore
from prime_train.trainer.data.worker_count import AutoWorkers
from prime_train.trainer.tokenizer import LoadedTokenizer

Probs = tuple[float, ...] | None


class BufferPart(NamedTuple):
    """Rows [start, stop) of a buffer, with the reader of that buffer: the next one may have other transformations."""

    reader: Buffers
    buffer: Buffer
    start: int
    stop: int

    def read(self, begin: int, end: int) -> Rows:
        """The rows [begin, end) of this part."""
        return self.reader.read(self.buffer, self.start + begin, self.start + end)

    @property
    def size(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class TakenRows:
    """Rows that a stream has stepped over. Tokens are read when they are needed."""

    parts: tuple[BufferPart, ...]

    @property
    def count(self) -> int:
        return sum(part.size for part in self.parts)

    def read(self, rows: range) -> MicroBatch:
        """The rows at these places, from 0."""
        found, first = [], 0
        for part in self.parts:
            begin, end = max(rows.start - first, 0), min(rows.stop - first, part.size)
            if begin < end:
                found.append(part.read(begin, end))
            first += part.size
        return to_batch(join(found))


def prepare(run: RunSpec) -> LoadedTokenizer:
    """Train and cache the tokenizer and the tokenised text, so that other ranks find them. Returns the tokenizer."""
    tokenizer = load_tokenizer(run)
    open_corpora(run, tokenizer)
    return tokenizer


class TrainStream:
    """The micro-batches of one rank, of `corpora` or the text of data.sources, from the start or from a `position()`.

    `share`: this rank among those of its machine, which share the tokenising; by default all ranks are on one.
    """

    def __init__(
        self,
        run: RunSpec,
        tokenizer: LoadedTokenizer,
        rank: int,
        world_size: int,
        position: dict[str, Any] | None,
        corpora: tuple[Corpus, ...] = (),
        share: Share | None = None,
    ) -> None:
        # Set before the tokenizer starts threads; otherwise each forked worker would print a warning.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
        self._micro_batch = run.batch.micro_batch
        self._rank = rank
        self._world_size = world_size
        corpora = corpora or open_corpora(run, tokenizer)
        self._made_by = describe_stream(run, corpora, position)
        # With other data the same position would be other rows, and nothing would show it.
        if position is not None:
            check_position(position, self._made_by)
        # A run keeps the order with which it began: another one would repeat some documents and leave out others.
        start = position or {"buffer": 0, "row": 0, "cursors": [0] * len(corpora), "order": order.FEISTEL}
        self._number: int = start["buffer"]
        self._row: int = start["row"]
        self._cursors: tuple[int, ...] = tuple(start["cursors"])
        self._tokens: tuple[int, ...] = tuple(start.get("tokens", [0] * len(corpora)))
        self._version: int = start.get("order", order.TABLE)
        self._buffer: Buffer | None = None  # None until the first row is needed
        counts = tuple(len(corpus.train) for corpus in corpora)
        # The buffer of a position is drawn again as it was, also where the probabilities have changed since.
        probs = start.get("probs", run.data.sampling_probs)
        self._drawn_by: Probs = None if probs is None else tuple(probs)
        self._config_probs: Probs = run.data.sampling_probs
        self._order = DocumentOrder(run.run.seed, counts, self._drawn_by, run.data.pack_buffer_docs, self._version)
        self._by_tokens = run.data.sampling_unit == "tokens" and self._drawn_by is not None
        self._most_empty_buffers = 2 * sum(counts) // self._order.buffer_docs  # enough to contain every document
        # Here, because workers are forked: they find the modules that a later change may use.
        self._allowed = load_transforms(run.data.allowed_transforms)
        self._unchanged = Buffers(corpora, run.run.seed, run.data.ctx_tokens, tokenizer.eos_id)
        self._made_before = NOTHING  # by readers of earlier buffers
        # The buffer of a position is made again as it was, also where the transformations have changed since.
        saved = None if position is None else position.get("transforms", ())
        transforms = choose(self._allowed, run.data.transforms) if saved is None else restore(self._allowed, saved)
        self._reader = self._next_reader = self._unchanged.change(
            transforms
        )  # of the present buffer, and of later ones
        planned = self._plan(self._number, self._cursors, self._tokens)
        self._share = share or Share(rank, world_size)
        self._auto: AutoWorkers | None = None  # measures, where it chooses the workers
        self._wanted_workers = run.data.loader_workers
        self._buffers = Loader(self._reader, planned, self._choose_workers(run), self._share)
        # Ends the workers when it is called, when the stream is garbage-collected, or at exit.
        self.close = weakref.finalize(self, self._buffers.close)
        if run.data.transforms != self._next_reader.transform_names:
            self.take_settings(run)

    def _choose_workers(self, run: RunSpec) -> int:
        workers = run.data.loader_workers
        self._auto = AutoWorkers(run, self._world_size, self._share) if workers == "auto" else None
        return self._auto.first_workers() if self._auto is not None else int(workers)

    def take_settings(self, run: RunSpec) -> None:
        """Go on with the micro-batch of `run` at once, with what else it has for the data from the next buffer on."""
        self._micro_batch = run.batch.micro_batch
        probs, wanted, names = run.data.sampling_probs, run.data.loader_workers, run.data.transforms
        if (probs, wanted, names) == (self._order.probs, self._wanted_workers, self._next_reader.transform_names):
            return
        workers = self._buffers.workers
        if wanted != self._wanted_workers:
            self._wanted_workers, workers = wanted, self._choose_workers(run)
        if self._buffer is None:
            self._take_buffer()
        if probs != self._order.probs:
            self._order = replace(self._order, probs=probs)
            self._by_tokens = run.data.sampling_unit == "tokens" and probs is not None
        if names != self._next_reader.transform_names:
            self._next_reader = self._unchanged.change(choose(self._allowed, names))
        self._buffers.restart(self._plan_next(), workers, self._next_reader)

    def next_micro_batch(self) -> MicroBatch:
        """This rank's part of the next micro-batch of all ranks. Reads the tokens of these rows alone."""
        if self._auto is None:
            return self._next_micro_batch()
        if workers := self._auto.enter(self._buffers):
            # From the next buffer on, because this one is packed already.
            self._buffers.restart(self._plan_next(), workers, self._next_reader)
        batch = self._next_micro_batch()
        self._auto.pace.leave()
        return batch

    def _next_micro_batch(self) -> MicroBatch:
        # Each rank steps over the rows of the others without reading them, so all ranks have one position.
        self._advance(self._rank * self._micro_batch)
        rows = [part.read(0, part.size) for part in self._advance(self._micro_batch)]
        self._advance((self._world_size - 1 - self._rank) * self._micro_batch)
        return to_batch(join(rows))

    def take(self, count: int) -> TakenRows:
        """The next `count` rows of the stream, of which any part can be read, also more than once."""
        return TakenRows(tuple(self._advance(count)))

    def position(self) -> dict[str, Any]:
        """The position after the rows that all ranks have used: JSON-able, the same on every rank."""
        position = {"buffer": self._number, "row": self._row, "cursors": [*self._cursors], "made_by": self._made_by}
        if self._by_tokens:
            position["tokens"] = [*self._tokens]
        if self._drawn_by != self._config_probs:
            position["probs"] = None if self._drawn_by is None else [*self._drawn_by]
        if self._reader.transforms:
            position["transforms"] = [[one.name, one.version] for one in self._reader.transforms]
        if self._version != order.TABLE:  # a position of an earlier version has no number
            position["order"] = self._version
        return position

    @property
    def workers(self) -> int:
        """The number of worker processes."""
        return self._buffers.workers

    def made(self) -> Made:
        """What this rank and the workers of it have tokenised of the buffers that it took."""
        return sum_made([self._made_before, self._reader.made(), self._buffers.made()])

    def _advance(self, count: int) -> list[BufferPart]:
        """The next rows, by the buffers that have some of them."""
        parts: list[BufferPart] = []
        while count > 0:
            if self._buffer is None or self._row == len(self._buffer):
                self._take_buffer()
                continue
            stop = min(self._row + count, len(self._buffer))
            parts.append(BufferPart(self._reader, self._buffer, self._row, stop))
            count -= stop - self._row
            self._row = stop
        return parts

    def _plan(self, number: int, cursors: tuple[int, ...], tokens: tuple[int, ...]) -> MakePlans:
        """What yields the plans from buffer `number` on."""
        if self._by_tokens:
            return partial(plan_by_tokens, self._order, self._next_reader.corpora, number, cursors, tokens)
        return partial(plans, self._order, number, cursors)

    def _plan_next(self) -> MakePlans:
        """What yields the plans after the present buffer. They depend on this buffer and the probabilities alone.

        So it does not matter how often the settings have changed in this buffer, or whether a resume lies between.
        """
        assert self._buffer is not None
        cursors, tokens = self._buffer.sums_after()
        if self._drawn_by != self._order.probs:
            # In proportion from here on: a source whose part has grown must not make up for the text before.
            tokens = tuple(round(sum(tokens) * prob) for prob in self._order.probs or ())
        return self._plan(self._number + 1, cursors, tokens)

    def _take_buffer(self) -> None:
        """Take the next buffer with rows. Raises UserError where no document has any."""
        # A buffer may have blank documents alone. So many of them in a row contain every document.
        for _ in range(self._most_empty_buffers + 1):
            buffer = next(self._buffers)
            if len(buffer):
                break
        else:
            raise no_text_error("data.sources, without the held-out documents")
        if self._buffer is not None:
            self._row = 0
        self._number, self._cursors, self._buffer = buffer.number, buffer.cursors, buffer
        self._tokens = buffer.tokens
        self._drawn_by = self._order.probs
        if self._reader is not self._next_reader:
            self._made_before, self._reader = sum_made([self._made_before, self._reader.made()]), self._next_reader


TEXT = "text and tokenizer"
_BEFORE = {"data.sampling_unit": "documents", "data.document_start": "none"}  # of a position without the setting


def describe_stream(run: RunSpec, corpora: tuple[Corpus, ...], position: dict[str, Any] | None) -> dict[str, Any]:
    """Everything that determines the rows of the stream: a position is only valid where all of it is the same."""
    before = position["made_by"].get(TEXT, ()) if position is not None else ()
    return {
        "run.seed": run.run.seed,
        "data.ctx_tokens": run.data.ctx_tokens,
        "data.pack_buffer_docs": run.data.pack_buffer_docs,
        "data.sampling_probs": None if run.data.sampling_probs is None else list(run.data.sampling_probs),
        "data.sampling_unit": run.data.sampling_unit,
        "data.document_start": run.data.document_start,
        "eval.held_out_ratio": run.eval.held_out_ratio,
        TEXT: [corpus.identify_as(was) for corpus, was in itertools.zip_longest(corpora, before[: len(corpora)])],
    }


def check_position(position: dict[str, Any], expected: dict[str, Any]) -> None:
    """Raise UserError where the position comes from another stream."""
    if position.get("order", order.TABLE) not in (order.TABLE, order.FEISTEL):
        what = f"the documents have order {position['order']}"
        why = "a later version of prime-train has begun the run, and this one does not know its order"
        raise UserError(what, "the data position in the checkpoint", why, "pip install -U prime-train")
    for name, value in expected.items():
        before = position["made_by"].get(name, _BEFORE.get(name))
        if before != value:
            is_setting = "." in name
            raise UserError(
                what=f"{name} is {value}, was {before}" if is_setting else "the text or the tokenizer has changed",
                where="the data position in the checkpoint",
                why="the run would continue with other text than before",
                fix=f"{name} = {before}, or another run.name to start a new run"
                if is_setting
                else "restore the data that the run started with, or use another run.name to start a new run",
            )


def held_out_batches(run: RunSpec, tokenizer: LoadedTokenizer, corpora: tuple[Corpus, ...] = ()) -> list[MicroBatch]:
    """The sequences of eval.tokens in micro-batches, from all sources in proportion to held-out documents."""
    wanted = run.eval.sequences(run.data.ctx_tokens)
    held_out = corpora or open_corpora(run, tokenizer)
    tokens, lengths = gather_held_out(held_out, run.run.seed, wanted * run.data.ctx_tokens)
    if not len(tokens):
        what = "the held-out documents have no text"
        fix = "raise eval.held_out_ratio, choose another run.seed, or remove the blank documents"
        raise UserError(what, "eval.held_out_ratio", "they are all blank, so the loss cannot be measured", fix)
    rows = fill(pack(lengths, run.data.ctx_tokens), tokens, lengths, run.data.ctx_tokens, tokenizer.eos_id)
    # Shuffled before the cut, because packing puts the longest documents into the first rows.
    chosen = rows.take(draws.generator(run.run.seed, draws.HELD_OUT, draws.ROWS).permutation(len(rows))[:wanted])
    size = run.batch.micro_batch
    return [to_batch(chosen.slice(start, min(start + size, len(chosen)))) for start in range(0, len(chosen), size)]


def plan_by_tokens(
    order: DocumentOrder,
    corpora: Sequence[Corpus],
    number: int,
    cursors: tuple[int, ...],
    tokens: tuple[int, ...],
    share: Share,
) -> Iterator[BufferPlan]:
    """The endless plans from buffer `number` on, in proportion to tokens. Tokenises this process's share ahead.

    The next document always comes from the source whose tokens so far, divided by its probability, are the fewest; of
    equal ones the first. So after every document the tokens of a source differ from their part of all tokens by less
    than two of the longest documents, for ever: the part is exact in the long run, without knowing lengths in advance.
    Source: stride scheduling, Waldspurger and Weihl, MIT/LCS/TM-528, 1995.
    """
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
    """(document, tokens) of the documents of a source from `cursor` on.

    Lengths are needed before the buffer is known, so the next documents of the source are tokenised in blocks, which
    any buffer will use in this order.
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
