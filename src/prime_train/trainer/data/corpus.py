"""Tokenises the documents of a source and adds the end-of-text token to each. Never packs, never orders.

A source of up to CACHED_BYTES is tokenised once and memory-mapped from the cache; documents of a larger source are
tokenised when they are needed. Both give the same tokens. A single document is always cached.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prime_train.spec import RunSpec
from prime_train.trainer.data import cache, order
from prime_train.trainer.data.sources import Documents, Origin, digest, locate, open_documents
from prime_train.trainer.data.tables import no_text_error
from prime_train.trainer.tokenizer import Tokenizer

CACHED_BYTES = 256 * 2**20  # half a minute of tokenising on 8 cores, about 160 MB of cache
FORMAT = 2  # of the cached files; another number makes them again
DOCUMENTS_AT_ONCE = 128
REPORT_EVERY_S = 2.0

Integers = NDArray[np.int64]
Tokens = NDArray[np.integer]
Gather = Callable[[Integers], tuple[Tokens, Integers]]


@dataclass(frozen=True, slots=True)
class Corpus:
    """One source. `gather(documents)` returns their tokens in sequence, and the length of each document.

    A token that is no label, for example of a user's message, is stored as ~token.
    """

    identity: str  # must be the same in a resumed run
    train: Integers
    held_out: Integers
    gather: Gather


def open_corpora(run: RunSpec, tokenizer: Tokenizer) -> tuple[Corpus, ...]:
    """One corpus for each of data.sources. Raises UserError where there is no text to train on or to hold out."""
    corpora: list[Corpus] = []
    for number, source in enumerate(run.data.sources):
        origin = locate(source)
        opened = None if origin.size_bytes <= CACHED_BYTES else origin.open()
        # A single document of any size is cached, because it is read as a whole and used in sections.
        if opened is None or opened.count == 1:
            corpus = _open_cached(run, number, origin, tokenizer)
        else:
            split = order.split(opened.count, run.eval.held_out_ratio, run.run.seed, number)
            identity = digest([origin.identity, tokenizer.fingerprint])
            corpus = Corpus(identity, *split, partial(_tokenise_now, opened, tokenizer))
        corpora.append(corpus)
    return tuple(corpora)


def tokenise(documents: Documents, tokenizer: Tokenizer, indices: Sequence[int]) -> list[Tokens]:
    """The tokens of each document with the end-of-text token; no tokens for a blank document.

    In a single document only the last section gets the end-of-text token.
    """
    texts = documents.texts(indices)
    encoded = tokenizer.encode_batch([text if documents.held_out or not text.isspace() else "" for text in texts])
    kind = np.uint16 if tokenizer.vocab_size <= 2**16 else np.uint32
    ended = [not documents.held_out or index + 1 == documents.count for index in indices]
    return [
        np.asarray([*ids, tokenizer.eos_id] if ids and end else ids, dtype=kind)
        for ids, end in zip(encoded, ended, strict=True)
    ]


def _tokenise_now(documents: Documents, tokenizer: Tokenizer, indices: Integers) -> tuple[Tokens, Integers]:
    parts = tokenise(documents, tokenizer, indices.tolist())
    return np.concatenate(parts), np.asarray([len(part) for part in parts], dtype=np.int64)


def _open_cached(run: RunSpec, number: int, origin: Origin[Documents], tokenizer: Tokenizer) -> Corpus:
    ratio = run.eval.held_out_ratio
    key = digest([FORMAT, origin.fingerprint, tokenizer.fingerprint, ratio])  # the ratio splits a single document
    folder = cache.entry("tokens", key, partial(_write, origin, ratio, tokenizer))
    about, ends, gather = read_tokens(folder)
    split = order.split(len(ends), ratio, run.run.seed, number, about["held_out"])
    return Corpus(about["sha256"], *split, gather)


def read_tokens(folder: Path) -> tuple[dict[str, Any], Integers, Gather]:
    """What `write_tokens` wrote: (about, ends of the documents, gather)."""
    tokens = np.load(folder / "tokens.npy", mmap_mode="r")
    ends = np.load(folder / "ends.npy")
    about: dict[str, Any] = json.loads((folder / "about.json").read_text(encoding="utf-8"))
    return about, ends, partial(_gather, tokens, ends)


def _gather(tokens: Tokens, ends: Integers, indices: Integers) -> tuple[Tokens, Integers]:
    starts = np.concatenate([[0], ends])[indices]
    lengths = ends[indices] - starts
    parts = [tokens[start : start + length] for start, length in zip(starts.tolist(), lengths.tolist(), strict=True)]
    return np.concatenate(parts), lengths


def _write(origin: Origin[Documents], held_out_ratio: float, tokenizer: Tokenizer, folder: Path) -> None:
    documents = open_documents(origin, held_out_ratio)
    parts = list(_tokenise_all(documents, tokenizer, origin.name))
    if not any(map(len, parts)):
        raise no_text_error(origin.name)
    about = {
        "source": origin.name,
        "documents": documents.count,
        "held_out": documents.held_out,
        "skipped": documents.skipped,
    }
    write_tokens(folder, parts, about)


def write_tokens(folder: Path, parts: Sequence[Tokens], about: dict[str, Any]) -> None:
    """Write the tokens of each document, and `about` with their SHA-256."""
    tokens = np.concatenate(parts)
    ends = np.cumsum([len(part) for part in parts], dtype=np.int64)
    np.save(folder / "tokens.npy", tokens)
    np.save(folder / "ends.npy", ends)
    about = about | {"sha256": hashlib.sha256(tokens.tobytes() + ends.tobytes()).hexdigest()}
    (folder / "about.json").write_text(json.dumps(about), encoding="utf-8")


def _tokenise_all(documents: Documents, tokenizer: Tokenizer, name: str) -> Iterator[Tokens]:
    reported_s = time.monotonic()
    skipped = f", {documents.skipped} files skipped that are not UTF-8" if documents.skipped else ""
    parts = "sections" if documents.held_out else "documents"
    sys.stderr.write(f"tokenising {documents.count} {parts} of {name}{skipped}\n")
    for start in range(0, documents.count, DOCUMENTS_AT_ONCE):
        indices = range(documents.count)[start : start + DOCUMENTS_AT_ONCE]
        yield from tokenise(documents, tokenizer, indices)
        if time.monotonic() - reported_s > REPORT_EVERY_S:
            reported_s = time.monotonic()
            sys.stderr.write(f"tokenised {indices.stop} of {documents.count} {parts} of {name}\n")
