"""Tokenises documents when they are needed, each once per machine, and reads their tokens from the cache.

The processes of a machine share the work: a chunk of documents belongs to one of them, which makes it while the others
make theirs. A chunk whose owner does not come is made by the first process that needs it. A chunk in work has a lock
that ends with its process, so that a chunk of a dead process is made by another.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from prime_train.core.errors import UserError, explain_disk_error
from prime_train.core.units import counted
from prime_train.trainer import cache
from prime_train.trainer.data.progress import SourceProgress
from prime_train.trainer.data.sources import Documents
from prime_train.trainer.data.token_parts import Entries, Integers, TokenParts, Tokens
from prime_train.trainer.tokenizer import LoadedTokenizer

CHUNK_DOCS = 64  # at most; a claim and its entries take 0.5 ms, 64 documents of 1,000 tokens take 160 ms
CHUNKS_OF_A_SOURCE = 100  # at least, so that a kill loses less than 2 % of any source
PATIENCE_S = 1.0  # for a chunk that its owner has not begun
POLL_S = 0.01


class Share(NamedTuple):
    """This process is number `number` of the `of` processes that tokenise the same documents in the same order."""

    number: int = 0
    of: int = 1
    turn: int = 0  # the number of the call: the chunks of all calls are dealt in turn, also where a call has few

    def at(self, turn: int) -> Share:
        return self._replace(turn=turn)

    def owns(self, chunk: int, chunks: int) -> bool:
        """Whether this process makes that one of the chunks of a call."""
        return (chunk + self.turn * chunks) % self.of == self.number


ALONE = Share()


class Made(NamedTuple):
    """What a process has tokenised, and the time that it took."""

    documents: int = 0
    tokens: int = 0
    reading_s: float = 0.0
    tokenising_s: float = 0.0

    @property
    def tokens_per_s(self) -> float | None:
        """The rate of one process at work; None where nothing was made."""
        return self.tokens / max(self.reading_s + self.tokenising_s, 1e-9) if self.tokens else None

    def since(self, before: Made) -> Made:
        """What was made after `before`."""
        return Made(
            self.documents - before.documents,
            self.tokens - before.tokens,
            self.reading_s - before.reading_s,
            self.tokenising_s - before.tokenising_s,
        )


NOTHING = Made()


class TokenSource(Protocol):
    """The tokens of the documents 0, 1, ... A token that is no label, for example of a user's message, is ~token."""

    @property
    def made(self) -> Made:
        """What this process has tokenised."""
        ...

    def make_own(self, documents: Integers, share: Share = ALONE) -> None:
        """Tokenise this process's share of the documents, where the processes of a machine share the work."""
        ...

    def lengths(self, documents: Integers, share: Share = ALONE) -> Integers:
        """Tokens of each document; tokenises those that are missing."""
        ...

    def pieces(self, documents: Integers, starts: Integers, lengths: Integers) -> list[Tokens]:
        """Tokens [start, start + length) of each document."""
        ...


def sum_made(parts: Iterable[Made]) -> Made:
    return Made(*map(sum, zip(NOTHING, *parts, strict=True)))


@dataclass(slots=True)
class TokenisedSource:
    """The tokens of one source. `open_documents` is called when the first missing document is needed."""

    parts: TokenParts
    progress: SourceProgress
    open_documents: Callable[[], Documents]
    tokenizer: LoadedTokenizer
    count: int
    made: Made = NOTHING
    _documents: Documents | None = None
    _damaged: dict[int, bytes] = field(default_factory=dict)  # document -> the entry whose tokens are damaged
    _owners_come: bool = True

    def open(self) -> None:
        """Open the documents if some are missing, so that workers find them open."""
        if self._documents is None and self.progress.total().documents < self.count:
            self._documents = self.open_documents()

    def make_own(self, documents: Integers, share: Share = ALONE) -> None:
        """Tokenise this process's share of the documents."""
        chunks = self._chunks(documents)
        for number, chunk in enumerate(chunks):
            if share.owns(number, len(chunks)):
                self._make(chunk)

    def lengths(self, documents: Integers, share: Share = ALONE) -> Integers:
        """Tokens of each document, when all of them are in the cache: makes those that no other process makes."""
        self.make_own(documents, share)
        self._wait(documents, share)
        found = self.parts.find(documents)
        if self._note_damage(documents, found):
            return self.lengths(documents, share)
        return found["length"].astype(np.int64)

    def pieces(self, documents: Integers, starts: Integers, lengths: Integers) -> list[Tokens]:
        """Tokens [start, start + length) of each document."""
        found = self.parts.find(documents)
        if not found["part"].all():
            self.lengths(documents)
            found = self.parts.find(documents)
        rows = zip(found["part"].tolist(), (found["start"] + starts).tolist(), lengths.tolist(), strict=True)
        pieces = [self.parts.read(part, start, length) for part, start, length in rows]
        if any(len(piece) < length for piece, length in zip(pieces, lengths.tolist(), strict=True)):
            self.lengths(documents)  # a part was cut since the lengths were asked for: makes it again
            return self.pieces(documents, starts, lengths)
        return pieces

    def _wait(self, documents: Integers, share: Share) -> None:
        """Wait for the other processes, and make what none of them makes."""
        pending, began_s, before = self._chunks(documents), time.monotonic(), self.made
        while pending := [chunk for chunk in pending if self._missing(chunk).any()]:
            waited_s = time.monotonic() - began_s
            is_late = share.of == 1 or not self._owners_come or waited_s >= PATIENCE_S
            if not (is_late and any(self._make(chunk) for chunk in pending)):
                time.sleep(POLL_S)
        self._owners_come = self.made == before

    def _chunks(self, documents: Integers) -> list[Integers]:
        size = max(1, min(CHUNK_DOCS, self.count // CHUNKS_OF_A_SOURCE))
        return [documents[start : start + size] for start in range(0, len(documents), size)]

    def _missing(self, documents: Integers) -> NDArray[np.bool_]:
        found = self.parts.find(documents)
        missing: NDArray[np.bool_] = found["part"] == 0
        if self._damaged:
            is_damaged = [
                self._damaged.get(document) == entry.tobytes()
                for document, entry in zip(documents.tolist(), found, strict=True)
            ]
            missing |= np.asarray(is_damaged, dtype=np.bool_)
        return missing

    def _make(self, documents: Integers) -> bool:
        """Tokenise those of the documents that are missing; False where another process does so now."""
        if not self._missing(documents).any():
            return True
        with self.parts.claim(documents) as claimed:
            if claimed:
                missing = documents[self._missing(documents)]  # another process may have made them meanwhile
                if len(missing):
                    self._tokenise(np.unique(missing))
            return claimed

    def _tokenise(self, documents: Integers) -> None:
        if self._documents is None:
            self._documents = self.open_documents()
        self.progress.begin()  # the first rate is without the time that the opening takes
        began_s = time.perf_counter()
        texts = self._documents.texts(documents.tolist())
        read_s = time.perf_counter()
        tokens = tokenise(self._documents, self.tokenizer, documents.tolist(), texts)
        count, ended_s = sum(map(len, tokens)), time.perf_counter()
        with writing_cache(self.parts.folder):
            self.parts.add(documents, tokens)
            self.made = sum_made([self.made, Made(len(documents), count, read_s - began_s, ended_s - read_s)])
            self.progress.add(len(documents), count)

    def _note_damage(self, documents: Integers, found: Entries) -> int:
        """How many of the documents have damaged tokens. They count as missing from now on."""
        damaged = {
            document: entry.tobytes()
            for document, entry in zip(documents.tolist(), found, strict=True)
            if not self.parts.is_whole(entry)
        }
        if again := damaged.keys() & self._damaged.keys():
            raise UserError(
                what=f"the tokens of {counted(len(again), 'document')} were written again and are damaged again",
                where=str(self.parts.folder),
                why="the disk returns other bytes than were written",
                fix="see `dmesg | tail`; set PRIME_TRAIN_CACHE to a directory on another disk",
            )
        if damaged:
            self._damaged |= damaged
            cache.report_damage(self.parts.folder, f"those of {counted(len(damaged), 'document')}")
        return len(damaged)


@contextmanager
def writing_cache(folder: Path) -> Iterator[None]:
    """Convert an OSError in the block to a UserError that names the folder and the cause."""
    try:
        yield
    except OSError as error:
        found = explain_disk_error(error.errno or 0, folder)
        raise UserError(
            what=f"cannot write the cache: {error.strerror}: {found.what}",
            where=str(folder),
            why=f"{found.why}; tokenised text is kept there, so that each document is tokenised once",
            fix=f"{found.fix}; or set PRIME_TRAIN_CACHE to another directory",
        ) from error


def tokenise(
    documents: Documents, tokenizer: LoadedTokenizer, indices: Sequence[int], texts: Sequence[str]
) -> list[Tokens]:
    """The tokens of each document with the end-of-text token; no tokens for a blank document.

    In a single document only the last section gets the end-of-text token.
    """
    if not documents.held_out:
        # Of a single document every character counts; of others a blank one teaches nothing.
        texts = ["" if text.isspace() else text for text in texts]
    encoded = tokenizer.encode_batch(texts)
    kind = token_kind(tokenizer)
    ended = [not documents.held_out or index + 1 == documents.count for index in indices]
    return [
        np.asarray([*ids, tokenizer.eos_id] if ids and end else ids, dtype=kind)
        for ids, end in zip(encoded, ended, strict=True)
    ]


def token_kind(tokenizer: LoadedTokenizer) -> type[np.integer]:
    return np.uint16 if tokenizer.vocab_size <= 2**16 else np.uint32
