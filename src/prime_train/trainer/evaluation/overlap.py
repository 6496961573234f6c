"""Refuses eval.sets that overlap the training data. Changes neither.

Files are compared by identity, size and content, documents by their tokens. Documents of a source that is too large
to be tokenised in advance are not compared, because that would take as long as the tokenising.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np

from prime_train.core import outside
from prime_train.core.errors import UserError
from prime_train.spec import EvalSet, RunSpec, Source
from prime_train.trainer.data import sources
from prime_train.trainer.data.corpus import AT_ONCE, WHOLE_BYTES, Corpus, Integers, Tokens, open_corpora
from prime_train.trainer.data.sources import locate, matching_files, required_path
from prime_train.trainer.evaluation.eval_sets import TextSet, count_wanted_tokens, open_sets, read_documents
from prime_train.trainer.parallel import World
from prime_train.trainer.tokenizer import LoadedTokenizer

LEAST_TOKENS = 32  # shorter documents, such as a line with a licence, are equal by chance
_LEAST_BYTES = 128  # about as many tokens


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
