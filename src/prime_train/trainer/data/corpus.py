"""The tokens of a data source by document, and which documents are for training. Never packs, never orders.

A source of up to WHOLE_BYTES, or of a single document, is tokenised before the first step, and its identity is the hash
of its tokens. Documents of a larger source are tokenised when they are needed. Both are kept in the cache
(token_parts.py). Ready-made tokens are read from their files (token_files.py).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from prime_train.core import outside
from prime_train.core.errors import UserError
from prime_train.core.installation import cache_path
from prime_train.core.rundir import write_atomic
from prime_train.spec import RunSpec, Source
from prime_train.trainer import cache, draws
from prime_train.trainer.data import tokenised
from prime_train.trainer.data.progress import SourceProgress
from prime_train.trainer.data.sources import Documents, locate, open_documents, token_files
from prime_train.trainer.data.tables import no_text_error
from prime_train.trainer.data.token_files import open_token_files
from prime_train.trainer.data.token_parts import TokenParts
from prime_train.trainer.data.tokenised import ALONE, NOTHING, Made, Share, TokenSource
from prime_train.trainer.data.transforms import Transforms, change_documents
from prime_train.trainer.tokenizer import LoadedTokenizer


@dataclass(frozen=True, slots=True)
class StartedDocuments:
    """The documents of `source`, each after the token `start`. Blank documents stay blank."""

    source: TokenSource
    start: int
    is_cut: bool  # the documents are sections of a single one, and only the first section is a start

    @property
    def made(self) -> Made:
        return self.source.made

    def make_own(self, documents: Integers, share: Share = ALONE) -> None:
        self.source.make_own(documents, share)

    def lengths(self, documents: Integers, share: Share = ALONE) -> Integers:
        lengths = self.source.lengths(documents, share)
        return lengths + (self._have_start(documents) & (lengths > 0))

    def pieces(self, documents: Integers, starts: Integers, lengths: Integers) -> list[Tokens]:
        have_start = self._have_start(documents)
        is_first = have_start & (starts == 0) & (lengths > 0)
        # The source does not have the start token, so everything behind it is one place earlier there.
        pieces = self.source.pieces(documents, starts - (have_start & (starts > 0)), lengths - is_first)
        for number in np.flatnonzero(is_first).tolist():
            pieces[number] = np.insert(pieces[number], 0, self.start)
        return pieces

    def _have_start(self, documents: Integers) -> NDArray[np.bool_]:
        return documents == 0 if self.is_cut else np.ones(len(documents), dtype=np.bool_)


WHOLE_BYTES = 16 * 2**20  # about 10 s of tokenising on one core
FORMAT = 3  # of the cached files; another number makes them again
REPORT_EVERY_S = 2.0
AT_ONCE = 4096  # documents, where all of a source are read
HELD_OUT_AT_ONCE = 1024  # documents, until there are enough tokens

Integers = NDArray[np.int64]
Tokens = NDArray[np.integer]
DocumentStart = Literal["none", "eos"]  # data.document_start


@dataclass(frozen=True, slots=True)
class Corpus:
    """One source. `hash_content`: makes the hash of all tokens, which is the identity in earlier versions.

    `open_changed`: the tokens of the documents after transformations; None where the source has no documents of text.
    """

    identity: str  # must be the same in a resumed run
    train: Integers
    held_out: Integers
    source: TokenSource
    hash_content: Callable[[], str] | None = None
    open_changed: Callable[[Transforms], TokenSource] | None = None

    def change(self, transforms: Transforms) -> Corpus:
        """The same documents after transformations. Raises UserError where they have no text."""
        if not transforms:
            return self
        if self.open_changed is None:
            why, fix = "ready-made tokens and chats have no text to change", "take data.transforms out"
            raise UserError("a source has no documents of text", "data.transforms", why, fix)
        return replace(self, source=self.open_changed(transforms))

    def identify_as(self, before: str | None) -> str:
        """The identity, of the same kind as that of an earlier position: a hash of the content has 64 digits."""
        if self.hash_content is not None and before is not None and len(before) == 64:
            return self.hash_content()
        return self.identity

    def gather(self, documents: Integers) -> tuple[Tokens, Integers]:
        """The tokens of the documents in sequence, and the length of each."""
        lengths = self.source.lengths(documents)
        return np.concatenate(self.source.pieces(documents, np.zeros_like(lengths), lengths)), lengths


def open_corpora(run: RunSpec, tokenizer: LoadedTokenizer) -> tuple[Corpus, ...]:
    """One corpus for each of data.sources. Raises UserError where there is no text to train on or to hold out."""
    return tuple(_open(run, number, tokenizer) for number in range(len(run.data.sources)))


def open_unseen(source: Source, tokenizer: LoadedTokenizer, document_start: DocumentStart = "none") -> Corpus:
    """A source that no run trains on: all of its documents are held out, and a single one is not cut."""
    origin = locate(source)
    if source.kind == "tokens":
        files, identity = open_token_files(origin, token_files(source)[1], tokenizer, None)
        return Corpus(identity, np.arange(0), np.arange(files.count), _start(files, document_start, tokenizer))
    key = [FORMAT, origin.fingerprint, tokenizer.fingerprint, "unseen"]
    tokens, about = _open_tokens(origin.name, key, origin.open, tokenizer)
    started = _start(tokens, document_start, tokenizer)
    return Corpus(origin.identity, np.arange(0), np.arange(about.count), started)


def _start(
    source: TokenSource, document_start: DocumentStart, tokenizer: LoadedTokenizer, is_cut: bool = False
) -> TokenSource:
    return source if document_start == "none" else StartedDocuments(source, tokenizer.eos_id, is_cut)


def _open(run: RunSpec, number: int, tokenizer: LoadedTokenizer) -> Corpus:
    asked, ratio, seed = run.data.sources[number], run.eval.held_out_ratio, run.run.seed
    origin, start = locate(asked), run.data.document_start
    if asked.kind == "tokens":
        files, identity = open_token_files(origin, token_files(asked)[1], tokenizer, ratio)
        split = draws.split(files.count, ratio, seed, number, files.held_out)
        return Corpus(identity, *split, _start(files, start, tokenizer, bool(files.held_out)))
    key = [FORMAT, origin.fingerprint, tokenizer.fingerprint]
    source, about = _open_tokens(origin.name, key, partial(open_documents, origin, ratio), tokenizer, ratio)
    split = draws.split(about.count, ratio, seed, number, about.held_out)
    hash_content = partial(_hash_content, source, origin.name)
    started = _start(source, start, tokenizer, bool(about.held_out))

    def open_changed(transforms: Transforms) -> TokenSource:
        versions = [[one.name, one.version] for one in transforms]
        opener = lambda: change_documents(open_documents(origin, ratio), transforms, origin.name)  # noqa: E731
        changed, about = _open_tokens(origin.name, [*key, versions], opener, tokenizer, ratio)
        changed.open()
        return _start(changed, start, tokenizer, bool(about.held_out))

    if origin.size_bytes <= WHOLE_BYTES or about.held_out:
        return Corpus(hash_content(), *split, started, open_changed=open_changed)
    source.open()
    identity = cache.digest([origin.identity, tokenizer.fingerprint])
    return Corpus(identity, *split, started, hash_content, open_changed)


def _open_tokens(
    name: str, key: list[Any], opener: Callable[[], Documents], tokenizer: LoadedTokenizer, ratio: float | None = None
) -> tuple[tokenised.TokenisedSource, _About]:
    """The tokens of the documents in the cache under `key`, and under `ratio` too where they are sections."""
    folder = Path(cache_path("tokens", cache.digest(key)))
    about, opener = _describe(folder, opener)
    if about.held_out:  # a single document, whose sections depend on the ratio
        folder = Path(cache_path("tokens", cache.digest([*key, ratio])))
        about, opener = _describe(folder, opener)
    with cache.writing(folder):
        parts = TokenParts(folder, tokenised.token_kind(tokenizer))
    progress = SourceProgress(folder, name, about.count, "sections" if about.held_out else "documents", about.skipped)
    return tokenised.TokenisedSource(parts, progress, opener, tokenizer, about.count), about


@dataclass(frozen=True, slots=True)
class _About:
    """What a run needs to know of the documents before it reads one."""

    count: int
    held_out: int  # the last sections of a single document; 0 = whole documents
    skipped: int  # files that are not text


def _describe(folder: Path, opener: Callable[[], Documents]) -> tuple[_About, Callable[[], Documents]]:
    """What the cache knows of the documents; else they are opened, and the opener returns these."""
    file = folder / "about.json"
    with suppress(OSError, ValueError, TypeError):
        return _About(**outside.read_json(file, outside.MARK_BYTES, within=folder)), opener
    documents = opener()
    about = _About(documents.count, documents.held_out, documents.skipped)
    with cache.writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(file, json.dumps(asdict(about)), is_private=False)
    return about, lambda: documents


def _hash_content(source: tokenised.TokenisedSource, name: str) -> str:
    """The SHA-256 of all tokens of a source and of the ends of its documents. Tokenises what is missing."""
    folder = source.parts.folder
    file = folder / "content.json"
    with suppress(OSError, ValueError, TypeError, KeyError):
        return str(outside.read_json(file, outside.MARK_BYTES, within=folder)["sha256"])
    content, ends = hashlib.sha256(), np.zeros(source.count, dtype=np.int64)
    for start in range(0, source.count, AT_ONCE):
        documents = np.arange(start, min(start + AT_ONCE, source.count))
        ends[documents] = lengths = source.lengths(documents)
        for piece in source.pieces(documents, np.zeros_like(lengths), lengths):
            content.update(piece.tobytes())
    if not ends.any():
        raise no_text_error(name)
    content.update(np.cumsum(ends).tobytes())
    with cache.writing(folder):
        source.parts.sync()
        write_atomic(file, json.dumps({"sha256": content.hexdigest()}), is_private=False)
    return content.hexdigest()


def gather_held_out(corpora: Sequence[Corpus], seed: int, wanted_tokens: int) -> tuple[Tokens, Integers]:
    """At least `wanted_tokens`, or all, from many held-out documents, so that none dominates; and each length."""
    documents = np.concatenate([corpus.held_out for corpus in corpora])
    source = np.repeat(np.arange(len(corpora)), [len(corpus.held_out) for corpus in corpora])
    shuffled = draws.generator(seed, draws.HELD_OUT).permutation(len(documents))
    parts: list[tuple[Tokens, Integers]] = []
    gathered_tokens = 0
    for start in range(0, len(shuffled), HELD_OUT_AT_ONCE):
        chosen = shuffled[start : start + HELD_OUT_AT_ONCE]
        for number, corpus in enumerate(corpora):
            mine = documents[chosen[source[chosen] == number]]
            if len(mine):
                parts.append(corpus.gather(mine))
                gathered_tokens += len(parts[-1][0])
        if gathered_tokens >= wanted_tokens:
            break
    if not parts:  # no source has held-out documents; the caller refuses that with a reason
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    return np.concatenate([tokens for tokens, _ in parts]), np.concatenate([lengths for _, lengths in parts])


@dataclass(frozen=True, slots=True)
class WholeTokens:
    """The tokens of all documents in one file, and where each document ends."""

    tokens: Tokens
    ends: Integers
    made: Made = NOTHING

    def make_own(self, documents: Integers, share: Share = ALONE) -> None:
        """Nothing: all is made."""

    def lengths(self, documents: Integers, share: Share = ALONE) -> Integers:  # noqa: ARG002 - all is made
        return self.ends[documents] - self._starts(documents)

    def pieces(self, documents: Integers, starts: Integers, lengths: Integers) -> list[Tokens]:
        begin = self._starts(documents) + starts
        return [self.tokens[start:stop] for start, stop in zip(begin.tolist(), (begin + lengths).tolist(), strict=True)]

    def _starts(self, documents: Integers) -> Integers:
        return np.where(documents > 0, self.ends[documents - 1], 0)


def read_tokens(folder: Path) -> tuple[dict[str, Any], WholeTokens]:
    """What `write_tokens` wrote."""
    about: dict[str, Any] = outside.read_json(folder / "about.json", outside.RECORD_BYTES, within=folder)
    return about, WholeTokens(np.load(folder / "tokens.npy", mmap_mode="r"), np.load(folder / "ends.npy"))


def write_tokens(folder: Path, parts: Sequence[Tokens], about: dict[str, Any]) -> None:
    """Write the tokens of each document, and `about` with their SHA-256."""
    tokens = np.concatenate(parts)
    ends = np.cumsum([len(part) for part in parts], dtype=np.int64)
    np.save(folder / "tokens.npy", tokens)
    np.save(folder / "ends.npy", ends)
    about = about | {"sha256": hashlib.sha256(tokens.tobytes() + ends.tobytes()).hexdigest()}
    (folder / "about.json").write_text(json.dumps(about), encoding="utf-8")
