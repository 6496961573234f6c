from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

from prime_train.core.errors import UserError
from prime_train.trainer.data import corpus
from prime_train.trainer.data.corpus import open_corpora
from prime_train.trainer.data.sources import locate
from prime_train.trainer.data.text_tokenizer import load_tokenizer
from tests.unit.trainer.data.small_runs import files, small_run, write_texts


def test_documents_are_their_tokens_and_an_end(tmp_path: Path) -> None:
    run = small_run(files(write_texts(tmp_path / "texts", 12)))
    tokenizer = load_tokenizer(run)
    (opened,) = open_corpora(run, tokenizer)
    documents = locate(run.data.sources[0]).open()
    wanted = np.asarray([5, 0, 5])
    tokens, lengths = opened.gather(wanted)
    expected = [[*tokenizer.encode(text), tokenizer.eos_id] for text in documents.texts(wanted.tolist())]
    assert tokens.tolist() == [token for ids in expected for token in ids]
    assert lengths.tolist() == [len(ids) for ids in expected]


def test_text_tokenised_when_it_is_needed_gives_the_same_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    run = small_run(files(write_texts(tmp_path / "texts", 12)))
    tokenizer = load_tokenizer(run)
    (cached,) = open_corpora(run, tokenizer)
    monkeypatch.setattr(corpus, "WHOLE_BYTES", 0)
    monkeypatch.setenv("PRIME_TRAIN_CACHE", str(tmp_path / "another cache"))
    capfd.readouterr()
    (live,) = open_corpora(run, tokenizer)
    assert capfd.readouterr().err == "", "nothing is tokenised before it is needed"
    every = np.arange(12)
    for left, right in zip(cached.gather(every), live.gather(every), strict=True):
        assert left.tolist() == right.tolist()
    assert (cached.train.tolist(), cached.held_out.tolist()) == (live.train.tolist(), live.held_out.tolist())


def test_tokenised_text_is_read_from_the_cache(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run = small_run(files(write_texts(tmp_path / "texts", 12)))
    tokenizer = load_tokenizer(run)
    open_corpora(run, tokenizer)
    assert "tokenising 12 documents" in capfd.readouterr().err
    open_corpora(run, load_tokenizer(run))
    assert capfd.readouterr().err == ""


def test_an_empty_document_has_no_tokens(tmp_path: Path) -> None:
    folder = write_texts(tmp_path / "texts", 3)
    (folder / "0001.txt").write_text("")
    run = small_run(files(folder))
    _, lengths = open_corpora(run, load_tokenizer(run))[0].gather(np.arange(3))
    assert lengths[1] == 0
    assert (lengths[[0, 2]] > 0).all()


@pytest.mark.parametrize("whole_bytes", [0, 2**20])
def test_a_single_document_is_trained_on_but_for_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole_bytes: int
) -> None:
    monkeypatch.setattr(corpus, "WHOLE_BYTES", whole_bytes)
    text = "".join(f"line {number}\n" for number in range(20_000))
    (tmp_path / "input.txt").write_text(text)
    run = small_run(files(tmp_path / "input.txt"))
    tokenizer = load_tokenizer(run)
    (opened,) = open_corpora(run, tokenizer)
    (train, _), (held_out, _) = opened.gather(opened.train), opened.gather(opened.held_out)
    assert tokenizer.decode([*train, *held_out]) == text
    assert len(held_out) == pytest.approx(0.1 * (len(train) + len(held_out)), rel=0.01)
    assert tokenizer.eos_id not in train
    assert np.flatnonzero(held_out == tokenizer.eos_id).tolist() == [len(held_out) - 1]


def test_another_part_held_out_of_a_single_document_is_not_read_from_the_cache(tmp_path: Path) -> None:
    (tmp_path / "input.txt").write_text("".join(f"line {number}\n" for number in range(1000)))
    held_out = []
    for ratio in (0.1, 0.3):
        run = small_run(files(tmp_path / "input.txt"), held_out_ratio=ratio)
        (opened,) = open_corpora(run, load_tokenizer(run))
        held_out.append(len(opened.gather(opened.held_out)[0]))
    assert held_out[1] > 2 * held_out[0]


def test_two_words_are_too_little_text(tmp_path: Path) -> None:
    (tmp_path / "input.txt").write_text("hello world\n")
    run = small_run(files(tmp_path / "input.txt"))
    with pytest.raises(UserError, match="too short to split: 2 words"):
        load_tokenizer(run)


def test_a_document_of_blanks_has_no_tokens(tmp_path: Path) -> None:
    folder = write_texts(tmp_path / "texts", 3)
    (folder / "0001.txt").write_text(" \n\t\n")
    run = small_run(files(folder))
    _, lengths = open_corpora(run, load_tokenizer(run))[0].gather(np.arange(3))
    assert lengths[1] == 0


def test_files_without_text(tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).touch()
    run = small_run(files(tmp_path))
    with pytest.raises(UserError, match="no text"):
        open_corpora(run, load_tokenizer(run))


def test_the_identity_of_an_earlier_position_is_the_hash_of_all_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = small_run(files(write_texts(tmp_path / "texts", 12)))
    tokenizer = load_tokenizer(run)
    (whole,) = open_corpora(run, tokenizer)
    monkeypatch.setattr(corpus, "WHOLE_BYTES", 0)
    (needed,) = open_corpora(run, tokenizer)
    assert (len(whole.identity), len(needed.identity)) == (64, 24)
    assert needed.identify_as(None) == needed.identify_as("0" * 24) == needed.identity
    assert needed.identify_as("0" * 64) == whole.identity


def test_the_hash_of_all_tokens_is_that_of_their_bytes_and_the_ends_of_the_documents(tmp_path: Path) -> None:
    run = small_run(files(write_texts(tmp_path / "texts", 12)))
    (opened,) = open_corpora(run, load_tokenizer(run))
    tokens, lengths = opened.gather(np.arange(12))
    assert tokens.dtype == np.uint16
    assert opened.identity == hashlib.sha256(tokens.tobytes() + np.cumsum(lengths).tobytes()).hexdigest()


def test_a_damaged_description_is_written_again(tmp_path: Path, cache: Path) -> None:
    run = small_run(files(write_texts(tmp_path / "texts", 12)))
    tokenizer = load_tokenizer(run)
    (before,) = open_corpora(run, tokenizer)
    for name in ("about.json", "content.json"):
        (file,) = cache.glob(f"tokens/*/{name}")
        file.write_bytes(bytes(file.stat().st_size))
        (again,) = open_corpora(run, tokenizer)
        assert again.identity == before.identity
        assert file.read_bytes().startswith(b"{")
