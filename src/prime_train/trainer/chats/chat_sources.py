"""Finds the chats of data.sources, and tokenises them with labels for the assistant's tokens. Never packs or orders.

A document longer than data.ctx_tokens keeps its beginning, as in TRL's SFTTrainer. A document without a token to learn
is left out.
"""

from __future__ import annotations

import bisect
import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from prime_train.core import outside
from prime_train.core.errors import UserError
from prime_train.spec import RunSpec, Source
from prime_train.trainer import cache, draws
from prime_train.trainer.cache import Origin
from prime_train.trainer.chats.chat import Chat, Completion, RowFault, read_row
from prime_train.trainer.chats.chat_tokens import ChatTokenizer
from prime_train.trainer.chats.demonstrations import Chats, locate_demonstrations, open_chats
from prime_train.trainer.chats.labels import LabelledTokens, label
from prime_train.trainer.data import tables
from prime_train.trainer.data.corpus import REPORT_EVERY_S, Corpus, Tokens, read_tokens, write_tokens
from prime_train.trainer.data.sources import locate_dataset, matching_files, origin_of, reading, required_path

FORMAT = 1  # of the cached files; another number makes them again


_WITHOUT_CHATS = {"tokens": "ready-made tokens have", "python-stdlib": "the standard library has"}
SUFFIXES = (".jsonl", ".parquet")
MAX_LINE_BYTES = 2**24  # a longer line is no chat: it has some millions of tokens


def locate_chats(run: RunSpec, source: Source) -> Origin[Chats]:
    """Find the chats of a source without reading them. Raises UserError if there are none."""
    field = source.messages_field
    match source.kind:
        case "files":
            root, files = matching_files(required_path(source), SUFFIXES)
            return origin_of(str(source.path), source, root, files, partial(_open_files, files, field))
        case "hf-dataset":
            return locate_dataset(source, lambda opened: _table_chats(opened.table, opened.where, field))
        case "demonstrations":
            return locate_demonstrations(run, source.count)
        case "python-stdlib" | "tokens" | "audio" | "chirps":
            what = f"{_WITHOUT_CHATS.get(source.kind, 'clips have')} no chats"
            why = "a run of kind sft learns the assistant's part of chats"
            fix = 'run.kind = "pretrain", or a source of kind files, hf-dataset or demonstrations'
            raise UserError(what, f'data.sources kind = "{source.kind}"', why, fix)


def _open_files(files: Sequence[Path], messages_field: str) -> Chats:
    """Each line of a .jsonl and each row of a .parquet file is a chat."""
    return _join(
        [
            _line_chats(file, messages_field)
            if file.suffix == ".jsonl"
            else _table_chats(tables.load_files([file]), str(file), messages_field)
            for file in files
        ]
    )


def _line_chats(file: Path, messages_field: str) -> Chats:
    """The lines are read one by one: a table would give each message the fields of all others."""
    starts: list[tuple[int, int]] = []  # (line, byte) of each line that is not blank
    with reading(file), outside.open_regular(file) as lines:
        place = 0
        for number, line in enumerate(iter(lambda: lines.readline(MAX_LINE_BYTES), b""), start=1):
            if len(line) == MAX_LINE_BYTES:
                what = f"the line has more than {MAX_LINE_BYTES / 2**20:g} MiB"
                why = "each line of a .jsonl file is one chat"
                raise UserError(what, f"{file}:{number}", why, f"drop it: sed -i {number}d {file.name}")
            if line.strip():
                starts.append((number, place))
            place += len(line)

    def read_json(index: int) -> object:
        with reading(file), outside.open_regular(file) as lines:
            lines.seek(starts[index][1])
            line = lines.readline(MAX_LINE_BYTES)
        try:
            return json.loads(line)
        except (ValueError, RecursionError) as error:
            raise RowFault(f"it is no line of JSON: {error}", "correct the line") from error

    return _checked(len(starts), read_json, lambda index: f"{file}:{starts[index][0]}", messages_field)


def _table_chats(table: Any, where: str, messages_field: str) -> Chats:
    return _checked(len(table), table.__getitem__, lambda index: f"{where}, row {index}", messages_field)


def _checked(count: int, read_json: Callable[[int], object], where: Callable[[int], str], messages_field: str) -> Chats:
    """Chats whose faults are reported with their place."""

    def read(index: int) -> Chat | Completion:
        try:
            return read_row(read_json(index), messages_field)
        except RowFault as fault:
            why = f"a chat is a list of messages, or prompt and completion; this is one of {count} rows"
            raise UserError(f"it is no chat: {fault}", where(index), why, fault.fix) from fault

    return Chats(count, read, where)


def _join(parts: Sequence[Chats]) -> Chats:
    ends = list(itertools.accumulate(part.count for part in parts))

    def place(index: int) -> tuple[Chats, int]:
        part = parts[bisect.bisect_right(ends, index)]
        return part, index - ends[bisect.bisect_right(ends, index)] + part.count

    def read(index: int) -> Chat | Completion:
        part, own = place(index)
        return part.read(own)

    def where(index: int) -> str:
        part, own = place(index)
        return part.where(own)

    return Chats(ends[-1], read, where)


def open_chat_corpora(run: RunSpec, tokenizer: ChatTokenizer) -> tuple[Corpus, ...]:
    """One corpus for each of data.sources. Raises UserError if a row is no chat, or no chat has a token to learn."""
    corpora = tuple(_open(run, number, tokenizer) for number in range(len(run.data.sources)))
    if not any(len(corpus.held_out) for corpus in corpora):
        raise _nothing_learned("held-out", run)
    with_rows = [len(corpus.train) > 0 for corpus in corpora]
    # A source with a probability of its own is drawn however few chats it has.
    if not any(with_rows) or (run.data.sampling_probs is not None and not all(with_rows)):
        raise _nothing_learned("training", run)
    return corpora


def _nothing_learned(part: str, run: RunSpec) -> UserError:
    return UserError(
        what=f"none of the {part} chats has a token to learn",
        where=f"data.ctx_tokens = {run.data.ctx_tokens}",
        why=f"the model learns the assistant's tokens among the first {run.data.ctx_tokens} of a chat",
        fix="raise data.ctx_tokens; or eval.held_out_ratio or another run.seed, which hold out other chats",
    )


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
        if kept.least_ctx_tokens is not None:
            tokens = np.asarray(kept.tokens, dtype=np.int32)
            parts.append(np.where(kept.learned, tokens, ~tokens))  # as a Corpus has them: ~token is no label
            chat_of.append(chat)
            cut += len(kept.tokens) < len(document.tokens)
    if not parts:
        what = f"none of its {chats.count} chats has a token to learn"
        why = f"the model learns the assistant's tokens among the first {ctx_tokens} of a chat"
        raise UserError(what, origin.name, why, "give chats with messages of the assistant, or raise data.ctx_tokens")
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
