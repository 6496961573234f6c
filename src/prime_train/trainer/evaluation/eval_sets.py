"""Measures the loss on eval.sets: sets of text of their own. Refuses those that overlap the training data.

The end-of-text token is no label in a set, so a set has nats and bits of text alone, and models with different
tokenizers can be compared by their bits per byte. Files are compared by identity, size and content, documents by their
tokens, but not those of a source that is too large to be tokenised in advance.
"""

from __future__ import annotations

import hashlib
import math
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import overload

import numpy as np
import torch

from prime_train.core import outside
from prime_train.core.errors import UserError
from prime_train.events import Measured
from prime_train.spec import EvalSet, RunSpec, Source
from prime_train.trainer import draws
from prime_train.trainer.attempt import Attempt
from prime_train.trainer.batch import IGNORED, MicroBatch
from prime_train.trainer.data import sources
from prime_train.trainer.data.corpus import (
    AT_ONCE,
    WHOLE_BYTES,
    Corpus,
    DocumentStart,
    Integers,
    Tokens,
    gather_held_out,
    open_corpora,
    open_unseen,
)
from prime_train.trainer.data.packing import Rows, fill, pack, to_batch
from prime_train.trainer.data.sources import locate, matching_files, required_path
from prime_train.trainer.evaluation.evaluate import measure_held_out_loss
from prime_train.trainer.loops.step import Training
from prime_train.trainer.parallel import World
from prime_train.trainer.tokenizer import LoadedTokenizer

# The characters by which a byte-level vocabulary spells the 256 bytes: printable Latin-1 stands for itself, the other
# 68 bytes have the characters from 256 on. Source: GPT-2 (Radford et al., 2019), bytes_to_unicode in its encoder.py.
_PRINTABLE = (*range(33, 127), *range(161, 173), *range(174, 256))
BYTE_CHARACTERS = frozenset(map(chr, (*_PRINTABLE, *range(256, 256 + 256 - len(_PRINTABLE)))))
_ONE_BYTE = re.compile("<0x[0-9A-F]{2}>")  # of a vocabulary of SentencePiece with byte fallback
_SPACE = "\u2581"  # as SentencePiece spells it


_SEED = 0  # not that of the run: runs with other seeds measure the same documents


LEAST_TOKENS = 32  # shorter documents, such as a line with a licence, are equal by chance
_LEAST_BYTES = 128  # about as many tokens


def count_token_bytes(tokenizer: LoadedTokenizer) -> torch.Tensor:
    """Bytes of UTF-8 of each token, (V,) int64, which sum up to those of a text; 0 for control tokens."""
    control = {*tokenizer.control_tokens.values(), tokenizer.eos_id}
    tokens = range(tokenizer.vocab_size)
    spelled = ["" if token in control else tokenizer.spelling(token) or "" for token in tokens]  # (V,)
    if BYTE_CHARACTERS.issuperset("".join(spelled)):
        return torch.tensor([len(spelling) for spelling in spelled])
    texts = ["?" if _ONE_BYTE.fullmatch(spelling) else spelling.replace(_SPACE, " ") for spelling in spelled]
    return torch.tensor([len(text.encode()) for text in texts])


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
        what = "its documents have no two tokens of text"
        why = "the model predicts every token of a document but the first"
        raise UserError(what, f"eval.sets.{number}: {asked.name}", why, "name sources with text")
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


def prepare_sets(run: RunSpec, tokenizer: LoadedTokenizer, world: World) -> tuple[TextSet, ...]:
    """The sets of eval.sets, which one rank of each machine compares with the training data. Called by every rank."""
    if not run.eval.sets:
        return ()
    return world.load_in_turn(partial(_prepare, run, tokenizer)) or open_sets(run, tokenizer)


def _prepare(run: RunSpec, tokenizer: LoadedTokenizer) -> tuple[TextSet, ...]:
    refuse_same_files(run)
    sets = open_sets(run, tokenizer)
    if run.run.kind == "pretrain":  # chats have other tokens than text
        refuse_same_documents(run, tokenizer)
    return sets


def refuse_same_files(run: RunSpec) -> None:
    """UserError where a set and the training data have a source or a file in common."""
    for number, asked in enumerate(run.eval.sets):
        for source in asked.sources:
            for trained in run.data.sources:
                if same := _find_same(source, trained):
                    raise _overlap(number, asked, f"{same} is in data.sources too")


def _find_same(source: Source, trained: Source) -> str:
    """What both sources read; empty where nothing is known to be the same."""
    if source.kind != trained.kind:
        return ""
    if source.kind not in ("files", "tokens"):
        same = (source.path, source.subset, source.split) == (trained.path, trained.subset, trained.split)
        return (source.path or source.kind) if same else ""
    suffixes = sources.TOKEN_SUFFIXES if source.kind == "tokens" else sources.TEXT_SUFFIXES
    find = partial(matching_files, suffixes=suffixes)
    (_, files), (_, others) = find(required_path(source)), find(required_path(trained))
    by_size: dict[int, list[Path]] = {}
    for other in others:
        by_size.setdefault(other.stat().st_size, []).append(other)
    for file in files:
        for other in by_size.get(file.stat().st_size, ()):
            # Short files have the same content by chance.
            is_long = file.stat().st_size >= _LEAST_BYTES
            if file.samefile(other) or (is_long and _hash_file(file) == _hash_file(other)):
                return str(file)
    return ""


def _hash_file(file: Path) -> str:
    with sources.reading(file), outside.open_regular(file) as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def refuse_same_documents(run: RunSpec, tokenizer: LoadedTokenizer) -> None:
    """UserError where a set and the training documents have a document of LEAST_TOKENS tokens in common."""
    corpora = list(_open_judged(run, tokenizer))
    for number, asked in enumerate(run.eval.sets):
        wanted_tokens = count_wanted_tokens(asked, run.data.ctx_tokens)
        documents = read_documents(asked, tokenizer, wanted_tokens, run.data.document_start)
        shared = sum(count_shared(*documents, corpus) for corpus in corpora)
        if shared:
            raise _overlap(number, asked, f"{shared} of its documents are training documents too")


def _open_judged(run: RunSpec, tokenizer: LoadedTokenizer) -> Iterator[Corpus]:
    for source, corpus in zip(run.data.sources, open_corpora(run, tokenizer), strict=True):
        origin = locate(source)
        if origin.size_bytes <= WHOLE_BYTES:
            yield corpus
        else:
            sys.stderr.write(f"the documents of eval.sets are not compared with those of {origin.name}: too many\n")


def count_shared(tokens: Tokens, lengths: Integers, corpus: Corpus) -> int:
    """The different documents among `tokens` that `corpus` trains on, compared by their hashes."""
    wanted = set(_hash_documents(tokens, lengths, lengths))
    found: set[bytes] = set()
    for start in range(0, len(corpus.train), AT_ONCE):
        part = corpus.gather(corpus.train[start : start + AT_ONCE])
        found.update(wanted.intersection(_hash_documents(*part, lengths)))
    return len(found)


def _hash_documents(tokens: Tokens, lengths: Integers, like: Integers) -> Iterator[bytes]:
    """The hash of each document that is as long as one of `like`."""
    ends = np.cumsum(lengths)
    for index in np.flatnonzero((lengths >= LEAST_TOKENS) & np.isin(lengths, like)).tolist():
        content = tokens[ends[index] - lengths[index] : ends[index]].astype(np.uint32).tobytes()
        yield hashlib.blake2b(content, digest_size=16).digest()


def _overlap(number: int, asked: EvalSet, what: str) -> UserError:
    return UserError(
        what=what,
        where=f"eval.sets.{number}: {asked.name}",
        why="the loss on text that the model was trained on does not show how it does on other text",
        fix=f"take that text out of eval.sets.{number}.sources or out of data.sources; text of data.sources that is "
        "held out has a loss of its own, by eval.held_out_ratio",
    )
