"""Measures the loss on eval.sets: sets of text of their own. Learns nothing from them.

The end-of-text token is no label in a set, so a set has nats and bits of text alone, and models with different
tokenizers can be compared by their bits per byte.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import overload

import numpy as np
import torch

from prime_train.core.errors import UserError
from prime_train.events import Measured
from prime_train.spec import EvalSet, RunSpec
from prime_train.trainer.attempt import Attempt
from prime_train.trainer.data import cache, order
from prime_train.trainer.data.batch import IGNORED, Batch, Rows, fill, pack, to_batch
from prime_train.trainer.data.corpus import DOCUMENTS_AT_ONCE, Integers, Tokens, read_tokens, tokenise, write_tokens
from prime_train.trainer.data.sources import Documents, digest, locate
from prime_train.trainer.data.token_bytes import count_token_bytes
from prime_train.trainer.evaluate import measure_held_out_loss
from prime_train.trainer.step import Training
from prime_train.trainer.tokenizer import Tokenizer

FORMAT = 1  # of the cached files; another number makes them again
_SEED = 0  # not that of the run: runs with other seeds measure the same documents


@dataclass(frozen=True, slots=True)
class TextBatches(Sequence[Batch]):
    """The micro-batches of a set, made when they are needed: as tensors they take 32 bytes a token."""

    rows: Rows
    micro_batch: int
    token_bytes: torch.Tensor  # (V,)

    def __len__(self) -> int:
        return -(-len(self.rows) // self.micro_batch)

    @overload
    def __getitem__(self, number: int) -> Batch: ...
    @overload
    def __getitem__(self, number: slice) -> Sequence[Batch]: ...
    def __getitem__(self, number: int | slice) -> Batch | Sequence[Batch]:
        if isinstance(number, slice):
            return [self[each] for each in range(len(self))[number]]
        start = range(0, len(self.rows), self.micro_batch)[number]
        batch = to_batch(self.rows.slice(start, min(start + self.micro_batch, len(self.rows))))
        is_text = self.token_bytes[batch.labels.clamp(min=0)] > 0  # (B, T)
        return replace(batch, labels=batch.labels.where(is_text, IGNORED))

    def count_bytes(self) -> int:
        """Bytes of the text that all labels stand for."""
        return sum(int(self.token_bytes[batch.labels[batch.labels != IGNORED]].sum()) for batch in self)


@dataclass(frozen=True, slots=True)
class TextSet:
    """One of eval.sets, ready to be measured."""

    name: str
    batches: TextBatches
    size_bytes: int  # of the text of its labels

    def measure(self, attempt: Attempt, training: Training, step: int) -> None:
        """Emit nats per token and bits per byte. Called by every rank."""
        loss, tokens = measure_held_out_loss(training, self.batches)
        bits_per_byte = loss * tokens / math.log(2) / self.size_bytes
        attempt.emit(Measured(attempt.number, step, self.name, "loss", loss, tokens))
        attempt.emit(Measured(attempt.number, step, self.name, "bits_per_byte", bits_per_byte, self.size_bytes))


def open_sets(run: RunSpec, tokenizer: Tokenizer) -> tuple[TextSet, ...]:
    """Every set of eval.sets. Raises UserError where one has no text."""
    if not run.eval.sets:
        return ()
    token_bytes = count_token_bytes(tokenizer)
    return tuple(_open(run, tokenizer, token_bytes, number) for number in range(len(run.eval.sets)))


def _open(run: RunSpec, tokenizer: Tokenizer, token_bytes: torch.Tensor, number: int) -> TextSet:
    asked, ctx_tokens = run.eval.sets[number], run.data.ctx_tokens
    wanted_tokens = count_wanted_tokens(asked, ctx_tokens)
    tokens, lengths = read_documents(asked, tokenizer, wanted_tokens)
    rows = fill(pack(lengths, ctx_tokens), tokens, lengths, ctx_tokens, tokenizer.eos_id)
    chosen = rows.take(
        order.generator(_SEED, order.HELD_OUT, order.ROWS).permutation(len(rows))[: wanted_tokens // ctx_tokens]
    )
    batches = TextBatches(chosen, run.batch.micro_batch, token_bytes)
    size_bytes = batches.count_bytes()
    if not size_bytes:
        raise UserError(
            what="its documents have no two tokens of text",
            where=f"eval.sets.{number}: {asked.name}",
            why="the model predicts every token of a document but the first",
            fix="name sources with text",
        )
    return TextSet(asked.name, batches, size_bytes)


def count_wanted_tokens(asked: EvalSet, ctx_tokens: int) -> int:
    """The tokens of a set in whole sequences."""
    return -(-asked.tokens // ctx_tokens) * ctx_tokens


def read_documents(asked: EvalSet, tokenizer: Tokenizer, wanted_tokens: int) -> tuple[Tokens, Integers]:
    """(tokens in sequence, length of each document) of documents with `wanted_tokens`, or of all. From the cache."""
    origins = [locate(source) for source in asked.sources]
    key = digest([FORMAT, tokenizer.fingerprint, wanted_tokens, [origin.fingerprint for origin in origins]])

    def build(folder: Path) -> None:
        parts = list(_tokenise([origin.open() for origin in origins], tokenizer, wanted_tokens))
        write_tokens(folder, parts, {"set": asked.name})

    _, ends, gather = read_tokens(cache.entry("eval-sets", key, build))
    return gather(np.arange(len(ends)))


def _tokenise(sources: Sequence[Documents], tokenizer: Tokenizer, wanted_tokens: int) -> Iterator[Tokens]:
    """Documents of all sources in one shuffled order, until they have `wanted_tokens`."""
    source = np.repeat(np.arange(len(sources)), [documents.count for documents in sources])
    document = np.concatenate([np.arange(documents.count) for documents in sources])
    shuffled = order.generator(_SEED, order.HELD_OUT).permutation(len(source))
    read = partial(_read, sources, tokenizer)
    gathered_tokens = 0
    for start in range(0, len(shuffled), DOCUMENTS_AT_ONCE):
        chosen = shuffled[start : start + DOCUMENTS_AT_ONCE]
        for tokens in read(source[chosen], document[chosen]):
            yield tokens
            gathered_tokens += len(tokens)
            if gathered_tokens >= wanted_tokens:
                return


def _read(sources: Sequence[Documents], tokenizer: Tokenizer, source: Integers, document: Integers) -> Iterator[Tokens]:
    for number, documents in enumerate(sources):
        mine = document[source == number].tolist()
        if mine:
            yield from tokenise(documents, tokenizer, mine)
