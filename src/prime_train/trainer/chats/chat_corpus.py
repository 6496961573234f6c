"""Tokenises the chats of data.sources, with labels for the assistant's tokens. Never packs, never orders.

A document longer than data.ctx_tokens keeps its beginning, as in TRL's SFTTrainer. A document without a token to learn
is left out.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np

from prime_train.core.errors import UserError
from prime_train.spec import RunSpec
from prime_train.trainer import cache, draws
from prime_train.trainer.cache import Origin
from prime_train.trainer.chats.chat_sources import locate_chats
from prime_train.trainer.chats.chat_tokens import ChatTokenizer
from prime_train.trainer.chats.demonstrations import Chats, open_chats
from prime_train.trainer.chats.labels import LabelledTokens, label
from prime_train.trainer.data.corpus import REPORT_EVERY_S, Corpus, Tokens, read_tokens, write_tokens

FORMAT = 1  # of the cached files; another number makes them again


def open_chat_corpora(run: RunSpec, tokenizer: ChatTokenizer) -> tuple[Corpus, ...]:
    """One corpus for each of data.sources. Raises UserError if a row is no chat, or no chat has a token to learn."""
    return tuple(_open(run, number, tokenizer) for number in range(len(run.data.sources)))


def _open(run: RunSpec, number: int, tokenizer: ChatTokenizer) -> Corpus:
    source = run.data.sources[number]
    origin = locate_chats(run, source)
    key = cache.digest([FORMAT, origin.fingerprint, source.messages_field, tokenizer.fingerprint, run.data.ctx_tokens])
    folder = cache.entry("tokens", key, partial(_write, origin, tokenizer, run.data.ctx_tokens))
    about, tokens = read_tokens(folder)
    chat_of = np.load(folder / "chats.npy")  # (documents,)
    train, held_out = draws.split(about["chats"], run.eval.held_out_ratio, run.run.seed, number)
    documents = np.flatnonzero(np.isin(chat_of, train)), np.flatnonzero(np.isin(chat_of, held_out))
    return Corpus(about["sha256"], *documents, tokens)


def _write(origin: Origin[Chats], tokenizer: ChatTokenizer, ctx_tokens: int, folder: Path) -> None:
    chats = open_chats(origin)
    sys.stderr.write(f"tokenising {chats.count} chats of {origin.name}\n")
    parts: list[Tokens] = []
    chat_of: list[int] = []
    cut = 0
    for chat, document in _label_all(chats, tokenizer, origin.name):
        kept = document.cut(ctx_tokens)
        if any(kept.learned[1:]):  # the first token of a sequence has no token before it to predict it from
            tokens = np.asarray(kept.tokens, dtype=np.int32)
            parts.append(np.where(kept.learned, tokens, ~tokens))  # as a Corpus has them: ~token is no label
            chat_of.append(chat)
            cut += len(kept.tokens) < len(document.tokens)
    if not parts:
        raise UserError(
            what=f"none of its {chats.count} chats has a token to learn",
            where=origin.name,
            why=f"the model learns the assistant's tokens among the first {ctx_tokens} of a chat",
            fix="give chats with messages of the assistant, or raise data.ctx_tokens",
        )
    left_out = chats.count - len(set(chat_of))
    if cut or left_out:
        sys.stderr.write(
            f"{origin.name}: {cut} documents are cut to {ctx_tokens} tokens, {left_out} of {chats.count} chats are "
            "left out, because their assistant has no token in it\n"
        )
    about = {"source": origin.name, "chats": chats.count, "cut": cut, "left_out": left_out}
    np.save(folder / "chats.npy", np.asarray(chat_of, dtype=np.int64))
    write_tokens(folder, parts, about)


def _label_all(chats: Chats, tokenizer: ChatTokenizer, name: str) -> Iterator[tuple[int, LabelledTokens]]:
    """(chat, document) for each document of each chat."""
    reported_s = time.monotonic()
    for index in range(chats.count):
        chat = chats.read(index)
        try:
            documents = label(chat, tokenizer)
        except UserError as error:
            raise UserError(**error.parts() | {"where": f"{chats.where(index)} with {error.where}"}) from error
        for document in documents:
            yield index, document
        if time.monotonic() - reported_s > REPORT_EVERY_S:
            reported_s = time.monotonic()
            sys.stderr.write(f"tokenised {index + 1} of {chats.count} chats of {name}\n")
