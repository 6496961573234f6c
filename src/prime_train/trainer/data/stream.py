"""The micro-batches of a training run, in an order fixed by the seed alone. Never reads the clock or the devices.

The stream is a sequence of rows: buffer 0, buffer 1, ... Each micro-batch of all ranks together takes the next
`micro_batch x world_size` rows, of which rank r takes the r-th part. So optimizer step s uses rows
[s * global_batch, (s + 1) * global_batch), whatever the number of ranks, of workers and of attempts.
"""

from __future__ import annotations

import os
import weakref
from functools import partial
from typing import Any

from prime_train.errors import UserError
from prime_train.spec import RunSpec
from prime_train.trainer.data.batch import Batch, Rows, join, to_batch
from prime_train.trainer.data.corpus import Corpus, open_corpora
from prime_train.trainer.data.loader import Buffers, Loader, plans
from prime_train.trainer.data.order import DocumentOrder
from prime_train.trainer.data.tables import no_text
from prime_train.trainer.tokenizer import Tokenizer, load_tokenizer


def prepare(run: RunSpec) -> Tokenizer:
    """Trains and caches the tokenizer and the tokenised text, so that other ranks find them. Returns the tokenizer."""
    tokenizer = load_tokenizer(run)
    open_corpora(run, tokenizer)
    return tokenizer


class TrainStream:
    """The micro-batches of one rank. `position` is what `position()` gave where the run left off."""

    def __init__(
        self, run: RunSpec, tokenizer: Tokenizer, rank: int, world_size: int, position: dict[str, Any] | None
    ) -> None:
        # Said before the tokenizer starts threads, or each forked worker would warn of them.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
        self._micro_batch = run.batch.micro_batch
        self._rank = rank
        self._world_size = world_size
        corpora = open_corpora(run, tokenizer)
        self._made_by = made_by(run, corpora)
        if position is not None:
            check_position(position, self._made_by)
        start = position or {"buffer": 0, "row": 0, "cursors": [0] * len(corpora)}
        self._number: int = start["buffer"]
        self._row: int = start["row"]
        self._cursors: tuple[int, ...] = tuple(start["cursors"])
        self._rows: Rows | None = None  # of this buffer; none until the first row is asked for
        counts = tuple(len(corpus.train) for corpus in corpora)
        order = DocumentOrder(run.run.seed, counts, run.data.sampling_probs, run.data.pack_buffer_docs)
        self._most_empty_buffers = 2 * sum(counts) // order.buffer_docs  # as many as hold each document once, surely
        buffers = Buffers(corpora, run.run.seed, run.data.ctx_tokens, tokenizer.eos_id)
        planned = partial(plans, order, self._number, self._cursors)
        self._buffers = Loader(buffers, planned, run.data.loader_workers)
        # Ends the workers: when it is called, when the stream is dropped, or at exit.
        self.close = weakref.finalize(self, self._buffers.close)

    def next_micro_batch(self) -> Batch:
        """This rank's part of the next micro-batch of all ranks."""
        self._advance(self._rank * self._micro_batch)
        rows = join(self._advance(self._micro_batch))
        self._advance((self._world_size - 1 - self._rank) * self._micro_batch)
        return to_batch(rows)

    def position(self) -> dict[str, Any]:
        """What has been consumed by all ranks: JSON-able, the same on each of them."""
        return {"buffer": self._number, "row": self._row, "cursors": [*self._cursors], "made_by": self._made_by}

    def _advance(self, count: int) -> list[Rows]:
        """The next rows, in parts where they lie in several buffers."""
        parts: list[Rows] = []
        while count > 0:
            if self._rows is None or self._row == len(self._rows):
                self._take_buffer()
                continue
            part = self._rows.slice(self._row, min(self._row + count, len(self._rows)))
            parts.append(part)
            self._row += len(part)
            count -= len(part)
        return parts

    def _take_buffer(self) -> None:
        """Go on to the next buffer that has rows. Raises UserError where all documents have passed without one."""
        buffer = next(self._buffers)
        empty = 0
        while not len(buffer.rows):
            empty += 1
            if empty > self._most_empty_buffers:
                raise no_text("data.sources, but for what is held out")
            buffer = next(self._buffers)
        if self._rows is not None:
            self._row = 0
        self._number, self._cursors, self._rows = buffer.number, buffer.cursors, buffer.rows


def made_by(run: RunSpec, corpora: tuple[Corpus, ...]) -> dict[str, Any]:
    """All that fixes the rows of the stream: a position means nothing where one of these differs."""
    return {
        "run.seed": run.run.seed,
        "data.ctx_tokens": run.data.ctx_tokens,
        "data.pack_buffer_docs": run.data.pack_buffer_docs,
        "data.sampling_probs": None if run.data.sampling_probs is None else list(run.data.sampling_probs),
        "eval.held_out_ratio": run.eval.held_out_ratio,
        "text and tokenizer": [corpus.identity for corpus in corpora],
    }


def check_position(position: dict[str, Any], expected: dict[str, Any]) -> None:
    """Raises UserError where the position comes from another stream."""
    for name, value in expected.items():
        before = position["made_by"].get(name)
        if before != value:
            is_setting = "." in name
            raise UserError(
                what=f"{name} is {value}, was {before}" if is_setting else "the text or the tokenizer has changed",
                where="the data position in the checkpoint",
                why="the run would go on with other text than it left off",
                fix=f"{name} = {before}, or another run.name to begin anew"
                if is_setting
                else "bring back the data that the run began with, or take another run.name to begin anew",
            )
