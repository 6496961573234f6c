"""Reads ready-made tokens from files: what a file has is checked, and no file is copied into memory. Never tokenises.

A file is a .bin of llm.c or a one-dimensional .npy of unsigned integers. Its documents are what stands between
end-of-text tokens; an end of a file ends a document, too. Each document gets one end-of-text token at its end, as text
does. All files are read once, for `find_documents`, which the cache keeps.
Tokens are read with pread, as in token_parts.py.
"""

from __future__ import annotations

import json
import os
import zlib
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from prime_train.core import outside
from prime_train.core.errors import UserError
from prime_train.trainer import cache
from prime_train.trainer.cache import Origin
from prime_train.trainer.data.progress import report_reading
from prime_train.trainer.data.sources import reading
from prime_train.trainer.data.tables import no_text_error
from prime_train.trainer.data.token_header import TokenFile, read_header
from prime_train.trainer.data.token_parts import Integers, Tokens
from prime_train.trainer.data.tokenised import ALONE, NOTHING, Made, Share, token_kind
from prime_train.trainer.tokenizer import LoadedTokenizer

FORMAT = 1  # of the cached index; another number makes it again
AT_ONCE = 2**22  # tokens, where all of a file are read
OPEN_FILES = 128  # descriptors; a process may have 1,024 in all
SECTION_TOKENS = 2**14  # as sections of text: longer than most sequences, and a thousand fit easily in memory
LEAST_TOKENS = 4  # of a document that is cut: two on each side are one to predict
LONGEST_TOKENS = 2**24  # of a source without an end of a document; a long book has a hundredth of that
ENTRY = np.dtype([("start", "<i8"), ("length", "<i8")])


@dataclass(slots=True)
class TokenFiles:
    """The documents 0, 1, ... of the files, which follow each other."""

    files: Sequence[TokenFile]
    ends: Sequence[int]  # the tokens of all files up to the end of each
    index: int  # a descriptor of the entries of all documents
    count: int
    eos_id: int
    kind: type[np.integer]
    held_out: int = 0  # the last sections of a single document; 0 = whole documents
    sections: Integers | None = None  # (documents, 2) start and length, where a single document is cut
    made: Made = NOTHING
    _descriptors: dict[int, int] = field(default_factory=dict)  # file -> descriptor

    def make_own(self, documents: Integers, share: Share = ALONE) -> None:
        """Nothing: all is made."""

    def lengths(self, documents: Integers, share: Share = ALONE) -> Integers:  # noqa: ARG002 - all is made
        """Tokens of each document with its end-of-text token."""
        _, lengths = self.find(documents)
        return lengths + (documents == self.count - 1 if self.sections is not None else 1)

    def pieces(self, documents: Integers, starts: Integers, lengths: Integers) -> list[Tokens]:
        """Tokens [start, start + length) of each document."""
        first, in_file = self.find(documents)
        rows = zip((first + starts).tolist(), (in_file - starts).tolist(), lengths.tolist(), strict=True)
        return [self._read(place, min(left, length), length) for place, left, length in rows]

    def _read(self, place: int, count: int, length: int) -> Tokens:
        """`count` tokens from a place on; with the end-of-text token where `length` is one more."""
        tokens = np.full(length, self.eos_id, dtype=self.kind)
        if count:
            number = bisect_right(self.ends, place)
            file = self.files[number]
            tokens[:count] = file.read(self._descriptor(number), place - self.ends[number] + file.count, count)
        return tokens

    def find(self, documents: Integers) -> tuple[Integers, Integers]:
        """(first token, tokens) of each document, without its end."""
        if self.sections is not None:
            return self.sections[documents, 0], self.sections[documents, 1]
        size = ENTRY.itemsize
        content = b"".join(os.pread(self.index, size, document * size) for document in documents.tolist())
        entries = np.frombuffer(content, dtype=ENTRY)
        return entries["start"].astype(np.int64), entries["length"].astype(np.int64)

    def _descriptor(self, number: int) -> int:
        if number not in self._descriptors:
            if len(self._descriptors) >= OPEN_FILES:
                os.close(self._descriptors.pop(next(iter(self._descriptors))))
            path = self.files[number].path
            with reading(path):
                self._descriptors[number] = outside.open_descriptor(path)
        return self._descriptors[number]


class TokenFileFacts(NamedTuple):
    """What the tokens of a file are."""

    crc: int
    largest: int
    ends: int  # the tokenizer's end-of-text tokens
    separators: int  # of its format


def open_token_files(
    origin: Origin[Any], paths: Sequence[Path], tokenizer: LoadedTokenizer, held_out_ratio: float | None
) -> tuple[TokenFiles, str]:
    """The documents, a single one cut by `held_out_ratio` unless that is None, and their identity: a hash.

    Raises UserError for files that are not as their headers have it, or that another tokenizer wrote.
    """
    files = [read_header(path) for path in paths]

    def build(folder: Path) -> None:
        with report_reading(origin.name, origin.size_bytes):
            _write_index(files, tokenizer.eos_id, folder)

    folder = cache.entry("token-index", cache.digest([FORMAT, origin.fingerprint, tokenizer.eos_id]), build)
    about = outside.read_json(folder / "about.json", outside.RECORD_BYTES, within=folder)
    found = [TokenFileFacts(*one) for one in about["files"]]
    for file, one in zip(files, found, strict=True):
        _refuse_other_tokenizer(file, one, tokenizer)
    ends, count = [*accumulate(file.count for file in files)], about["documents"]
    if count == 0:
        raise no_text_error(origin.name)
    if ends[-1] > LONGEST_TOKENS and not any(one.ends + one.separators for one in found):
        raise _other_tokenizer(
            origin.name, tokenizer, f"token {tokenizer.eos_id}, the end of a text, is not among {ends[-1]:,} tokens"
        )
    index = outside.open_descriptor(folder / "documents", folder)
    opened = TokenFiles(files, ends, index, count, tokenizer.eos_id, token_kind(tokenizer))
    if count == 1 and held_out_ratio is not None:
        opened = _cut(opened, origin.name, held_out_ratio)
    return opened, cache.digest(
        [FORMAT, [[file.count, one.crc] for file, one in zip(files, found, strict=True)], tokenizer.fingerprint]
    )


def _write_index(files: Sequence[TokenFile], eos_id: int, folder: Path) -> None:
    """Read every file once, and write the place of each document and what the tokens are."""
    documents, before, found = 0, 0, []
    with open(folder / "documents", "wb") as index:
        for file in files:
            one, places = _read_through(file, eos_id)
            starts = np.concatenate([[0], places + 1])
            lengths = np.concatenate([places, [file.count]]) - starts
            entries = np.zeros(np.count_nonzero(lengths), dtype=ENTRY)
            entries["start"], entries["length"] = before + starts[lengths > 0], lengths[lengths > 0]
            index.write(entries.tobytes())
            documents += len(entries)
            before += file.count
            found.append(one)
    (folder / "about.json").write_text(json.dumps({"documents": documents, "files": found}), encoding="utf-8")


def _read_through(file: TokenFile, eos_id: int) -> tuple[TokenFileFacts, Integers]:
    """What the tokens of a file are, and the places of those between documents."""
    separator = eos_id if file.format is None else file.format.separator
    crc = largest = ends = separators = 0
    places: list[Integers] = [np.empty(0, dtype=np.int64)]
    with reading(file.path), outside.open_regular(file.path) as opened:
        for start in range(0, file.count, AT_ONCE):
            tokens = file.read(opened.fileno(), start, min(AT_ONCE, file.count - start))
            is_end, is_separator = tokens == eos_id, tokens == separator
            crc, largest = zlib.crc32(tokens.tobytes(), crc), max(largest, int(tokens.max()))
            ends += int(is_end.sum())
            separators += int(is_separator.sum())
            places.append(start + np.flatnonzero(is_end | is_separator))
    return TokenFileFacts(crc, largest, ends, separators), np.concatenate(places)


def _refuse_other_tokenizer(file: TokenFile, found: TokenFileFacts, tokenizer: LoadedTokenizer) -> None:
    """UserError where the tokens of a file are known to be those of another tokenizer."""
    if found.largest >= tokenizer.vocab_size:
        what = f"it has token {found.largest}, and the vocabulary of the tokenizer has {tokenizer.vocab_size}"
        raise _other_tokenizer(str(file.path), tokenizer, what)
    if file.format is not None and found.separators and tokenizer.eos_id not in file.format.eos_ids:
        of = f"a tokenizer of {file.format.tokenizer}"
        what = f"its documents are divided by token {file.format.separator}, as those of {of} are"
        raise _other_tokenizer(str(file.path), tokenizer, what)


def _other_tokenizer(where: str, tokenizer: LoadedTokenizer, what: str) -> UserError:
    why = f"that of the run ends a text with token {tokenizer.eos_id}, and would take each token for another one"
    fix = "tokenizer.path = the folder of the tokenizer that wrote the files"
    return UserError(f"another tokenizer wrote it: {what}", where, why, fix)


def _cut(whole: TokenFiles, name: str, held_out_ratio: float) -> TokenFiles:
    """The sections of a single document; the last of them are held out."""
    (begin,), (count,) = (each.tolist() for each in whole.find(np.arange(1)))
    if count < LEAST_TOKENS:
        what = f"its only document is too short to split: {count} tokens"
        why = "its beginning is for training and its end is held out to measure the loss"
        raise UserError(what, name, why, "give more text, or a file with end-of-text tokens between its documents")
    split = count - min(max(2, round(count * held_out_ratio)), count - 2)
    starts = np.concatenate([np.arange(0, split, SECTION_TOKENS), np.arange(split, count, SECTION_TOKENS)])
    lengths = np.diff(starts, append=count)
    sections = np.stack([begin + starts, lengths], axis=1)
    return replace(whole, count=len(sections), held_out=int((starts >= split).sum()), sections=sections)
