"""Measures the loss on eval.sets: sets of text of their own. Learns nothing from them.

The end-of-text token is no label in a set, so a set has nats and bits of text alone, and models with different
tokenizers can be compared by their bits per byte.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import overload

import torch

from prime_train.core.errors import UserError
from prime_train.events import Measured
from prime_train.spec import EvalSet, RunSpec
from prime_train.trainer import draws
from prime_train.trainer.attempt import Attempt
from prime_train.trainer.batch import IGNORED, MicroBatch
from prime_train.trainer.data.corpus import DocumentStart, Integers, Tokens, gather_held_out, open_unseen
from prime_train.trainer.data.packing import Rows, fill, pack, to_batch
from prime_train.trainer.evaluation.evaluate import measure_held_out_loss
from prime_train.trainer.loops.step import Training
from prime_train.trainer.tokenizer import LoadedTokenizer

# The characters by which a byte-level vocabulary spells the 256 bytes: printable Latin-1 stands for itself, the other
# 68 bytes have the characters from 256 on. Source: GPT-2 (Radford et al., 2019), bytes_to_unicode in its encoder.py.
_PRINTABLE = (*range(33, 127), *range(161, 173), *range(174, 256))
BYTE_CHARACTERS = frozenset(map(chr, (*_PRINTABLE, *range(256, 256 + 256 - len(_PRINTABLE)))))
_ONE_BYTE = re.compile("<0x[0-9A-F]{2}>")  # of a vocabulary of SentencePiece with byte fallback
_SPACE = "\u2581"  # as SentencePiece spells it


def count_token_bytes(tokenizer: LoadedTokenizer) -> torch.Tensor:
    """Bytes of UTF-8 of each token, (V,) int64, which sum up to those of a text; 0 for control tokens."""
    control = {*tokenizer.control_tokens.values(), tokenizer.eos_id}
    tokens = range(tokenizer.vocab_size)
    spelled = ["" if token in control else tokenizer.spelling(token) or "" for token in tokens]  # (V,)
    if BYTE_CHARACTERS.issuperset("".join(spelled)):
        return torch.tensor([len(spelling) for spelling in spelled])
    texts = ["?" if _ONE_BYTE.fullmatch(spelling) else spelling.replace(_SPACE, " ") for spelling in spelled]
    return torch.tensor([len(text.encode()) for text in texts])


_SEED = 0  # not that of the run: runs with other seeds measure the same documents


@dataclass(frozen=True, slots=True)
class TextBatches(Sequence[MicroBatch]):
    """The micro-batches of a set, made when they are needed: as tensors they take 32 bytes a token."""

    rows: Rows
    micro_batch: int
    token_bytes: torch.Tensor  # (V,)

    def __len__(self) -> int:
        return -(-len(self.rows) // self.micro_batch)

    @overload
    def __getitem__(self, number: int) -> MicroBatch: ...
    @overload
    def __getitem__(self, number: slice) -> Sequence[MicroBatch]: ...
    def __getitem__(self, number: int | slice) -> MicroBatch | Sequence[MicroBatch]:
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

    def close(self) -> None:
        """It has started nothing."""


def open_sets(run: RunSpec, tokenizer: LoadedTokenizer) -> tuple[TextSet, ...]:
    """Every set of eval.sets. Raises UserError where one has no text."""
    if not run.eval.sets:
        return ()
    token_bytes = count_token_bytes(tokenizer)
    return tuple(_open(run, tokenizer, token_bytes, number) for number in range(len(run.eval.sets)))


def _open(run: RunSpec, tokenizer: LoadedTokenizer, token_bytes: torch.Tensor, number: int) -> TextSet:
    asked, ctx_tokens = run.eval.sets[number], run.data.ctx_tokens
    wanted_tokens = count_wanted_tokens(asked, ctx_tokens)
    tokens, lengths = read_documents(asked, tokenizer, wanted_tokens, run.data.document_start)
    rows = fill(pack(lengths, ctx_tokens), tokens, lengths, ctx_tokens, tokenizer.eos_id)
    chosen = rows.take(
        draws.generator(_SEED, draws.HELD_OUT, draws.ROWS).permutation(len(rows))[: wanted_tokens // ctx_tokens]
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


def read_documents(
    asked: EvalSet, tokenizer: LoadedTokenizer, wanted_tokens: int, document_start: DocumentStart
) -> tuple[Tokens, Integers]:
    """(tokens in sequence, length of each document) of documents with at least `wanted_tokens`, or of all."""
    corpora = [open_unseen(source, tokenizer, document_start) for source in asked.sources]
    return gather_held_out(corpora, _SEED, wanted_tokens)
