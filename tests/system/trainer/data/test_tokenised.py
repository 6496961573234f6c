from __future__ import annotations

import multiprocessing
import os
import resource
import signal
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing.synchronize import Barrier
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_train.core.errors import UserError
from prime_train.trainer.cache import take_remade
from prime_train.trainer.data import tokenised
from prime_train.trainer.data.progress import SourceProgress
from prime_train.trainer.data.sources import Documents
from prime_train.trainer.data.token_parts import TokenParts
from prime_train.trainer.data.tokenised import Share, TokenisedSource, tokenise
from prime_train.trainer.tokenizer import LoadedTokenizer

FORK = multiprocessing.get_context("fork")


def encode(texts: Sequence[str]) -> list[list[int]]:
    return [list(text.encode()) for text in texts]


BYTES = LoadedTokenizer(
    encode, lambda tokens: bytes(tokens).decode(), vocab_size=256, eos_id=0, files=(), fingerprint="bytes"
)


def text_of(document: int) -> str:
    return f"document {document} " * (document % 5)


def open_source(folder: Path, count: int = 2000, tokenizer: LoadedTokenizer = BYTES) -> TokenisedSource:
    documents = Documents(count, lambda indices: [text_of(index) for index in indices])
    progress = SourceProgress(folder, "books", count, "documents")
    return TokenisedSource(TokenParts(folder, np.uint16), progress, lambda: documents, tokenizer, count)


def read(source: TokenisedSource, documents: list[int]) -> list[str]:
    wanted = np.asarray(documents, dtype=np.int64)
    lengths = source.lengths(wanted)
    assert all(length == 0 or length == len(text_of(each)) + 1 for each, length in zip(documents, lengths, strict=True))
    pieces = source.pieces(wanted, np.zeros_like(lengths), np.maximum(lengths - 1, 0))
    return [BYTES.decode(piece.tolist()) for piece in pieces]


@given(calls=st.lists(st.lists(st.integers(0, 1999), min_size=1, max_size=40), max_size=5))
def test_any_documents_have_their_tokens_and_are_tokenised_once(
    tmp_path_factory: pytest.TempPathFactory, calls: list[list[int]]
) -> None:
    source = open_source(tmp_path_factory.mktemp("tokens"))
    for documents in calls:
        assert read(source, documents) == [text_of(document) for document in documents]
    assert source.made.documents == len({document for documents in calls for document in documents})


def test_a_piece_is_a_part_of_a_document(tmp_path: Path) -> None:
    source = open_source(tmp_path)
    wanted = np.asarray([9, 3, 9])
    source.lengths(wanted)
    found = source.pieces(wanted, np.asarray([2, 0, 5]), np.asarray([3, 4, 1]))
    assert [BYTES.decode(piece.tolist()) for piece in found] == [text_of(9)[2:5], text_of(3)[:4], text_of(9)[5]]


def take_share(folder: Path, share: Share, together: Barrier, results: multiprocessing.SimpleQueue[int]) -> None:
    """Go through 30 buffers of 256 documents in step with the other processes, as trainers do."""
    source = open_source(folder, 100_000)
    draw = np.random.default_rng(0).permutation(100_000)
    for number in range(30):
        together.wait()
        source.lengths(draw[number * 256 : (number + 1) * 256], share.at(number))
    results.put(source.made.tokens)


@given(of=st.integers(1, 40), chunks=st.integers(1, 20), calls=st.integers(1, 60))
def test_each_chunk_has_one_owner_and_all_own_the_same(of: int, chunks: int, calls: int) -> None:
    owned = [
        sum(Share(number, of).at(call).owns(chunk, chunks) for call in range(calls) for chunk in range(chunks))
        for number in range(of)
    ]
    assert sum(owned) == calls * chunks
    assert max(owned) - min(owned) <= 1


def test_each_of_8_processes_tokenises_an_eighth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenised, "PATIENCE_S", 300.0)  # the owner of a chunk always comes
    together, results = FORK.Barrier(8), FORK.SimpleQueue()
    children = [
        FORK.Process(target=take_share, args=(tmp_path, Share(rank, 8), together, results)) for rank in range(8)
    ]
    for child in children:
        child.start()
    made = [results.get() for _ in children]
    for child in children:
        child.join()
    wanted = np.random.default_rng(0).permutation(100_000)[: 30 * 256]
    assert sum(made) == sum(len(text_of(document)) + 1 if document % 5 else 0 for document in wanted.tolist())
    assert max(made) <= 1.3 * sum(made) / 8


def test_a_chunk_whose_owner_does_not_come_is_made_by_the_one_that_needs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenised, "PATIENCE_S", 0.0)
    source = open_source(tmp_path)
    documents = np.arange(200)
    source.make_own(documents, Share(1, 3))
    assert 0 < source.made.documents < 100
    source.lengths(documents, Share(1, 3))
    assert source.made.documents == 200


def test_a_chunk_in_work_of_a_killed_process_is_made_by_another(tmp_path: Path) -> None:
    receiving, sending = FORK.Pipe(duplex=False)

    def stop_here(_: Sequence[str]) -> list[list[int]]:
        sending.send("in work")
        signal.pause()
        raise AssertionError

    slow = replace(BYTES, encode_batch=stop_here)
    child = FORK.Process(target=lambda: open_source(tmp_path, tokenizer=slow).lengths(np.arange(10)))
    child.start()
    assert receiving.recv() == "in work"
    source = open_source(tmp_path)
    source.make_own(np.arange(10))
    assert source.made.documents == 0, "another process works on it"
    child.kill()
    child.join()
    assert read(source, list(range(10))) == [text_of(document) for document in range(10)]


def test_damaged_documents_are_made_again_and_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    every = list(range(1, 50))
    read(open_source(tmp_path), every)
    part = tmp_path / "00001.tokens"
    os.truncate(part, part.stat().st_size // 2)
    capsys.readouterr()
    source = open_source(tmp_path)
    assert read(source, every) == [text_of(document) for document in every]
    (line,) = (line for line in capsys.readouterr().err.splitlines() if "damaged" in line)
    assert f"in {tmp_path} are damaged (those of " in line
    assert line in take_remade()
    assert 0 < source.made.documents < len(every)
    again = open_source(tmp_path)
    assert read(again, every) == [text_of(document) for document in every]
    assert again.made.documents == 0


def test_a_part_that_is_cut_after_the_lengths_were_asked_for_is_made_again(tmp_path: Path) -> None:
    source = open_source(tmp_path)
    wanted = np.arange(1, 50)
    lengths = source.lengths(wanted)
    os.truncate(tmp_path / "00001.tokens", 100)
    pieces = source.pieces(wanted, np.zeros_like(lengths), lengths)
    assert [len(piece) for piece in pieces] == lengths.tolist()


def test_a_disk_that_takes_nothing_more_is_reported(tmp_path: Path) -> None:
    receiving, sending = FORK.Pipe(duplex=False)

    def fill() -> None:
        source = open_source(tmp_path)
        resource.setrlimit(resource.RLIMIT_FSIZE, (50, 50))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        try:
            source.lengths(np.arange(100))
        except UserError as error:
            sending.send((error.what, error.fix))

    child = FORK.Process(target=fill)
    child.start()
    child.join()
    assert receiving.poll(), child.exitcode
    what, fix = receiving.recv()
    assert what.startswith("cannot write the cache")
    assert "PRIME_TRAIN_CACHE" in fix


def test_only_the_last_section_of_a_single_document_ends() -> None:
    texts = ["one ", " ", "three"]
    documents = Documents(3, lambda _: texts, held_out=1)
    found = [tokens.tolist() for tokens in tokenise(documents, BYTES, [0, 1, 2], texts)]
    assert found == [list(b"one "), list(b" "), [*b"three", 0]]
