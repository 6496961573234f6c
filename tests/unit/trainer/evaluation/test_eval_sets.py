"""Sets of text of their own: nats per token, bits per byte, and nothing that is trained on."""

from __future__ import annotations

import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from prime_train import spec
from prime_train.core.errors import UserError
from prime_train.events import Measured
from prime_train.spec import EvalSet, RunSpec, Source
from prime_train.trainer import cache
from prime_train.trainer.batch import IGNORED
from prime_train.trainer.data.text_tokenizer import load_tokenizer
from prime_train.trainer.evaluation.eval_sets import count_token_bytes, open_sets, prepare_sets
from prime_train.trainer.loops.step import Training, adamw
from prime_train.trainer.model.decoder import build
from prime_train.trainer.parallel import World
from prime_train.trainer.tokenizer import LoadedTokenizer, read_trained, train_bpe
from tests.unit.trainer import tiny
from tests.unit.trainer.data.small_runs import files, small_run, write_lines, write_texts

ALONE = World(rank=0, size=1)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> LoadedTokenizer:
    folder = tmp_path_factory.mktemp("bpe")
    train_bpe(iter(["the end of the text, größer als 日本 and the other end"] * 20), 300, folder)
    return read_trained(folder)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRIME_TRAIN_CACHE", str(tmp_path / "cache"))


def run_with_sets(tmp_path: Path, *sources: Source, tokens: int = 400, **parts: Any) -> RunSpec:
    run = small_run(files(write_texts(tmp_path / "train", 40)))
    asked = spec.Eval(sets=(EvalSet(name="other", sources=sources, tokens=tokens),))
    return replace(run, eval=asked, **parts)


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=60))
def test_the_tokens_of_a_text_sum_up_to_its_bytes(tokenizer: LoadedTokenizer, text: str) -> None:
    token_bytes = count_token_bytes(tokenizer)
    assert int(token_bytes[tokenizer.encode(text)].sum()) == len(text.encode())


def test_control_tokens_are_no_text_and_sentencepiece_spells_bytes() -> None:
    spelled = ["<s>", "<0xE6>", "\u2581the", "日", "</s>"]
    sentencepiece = LoadedTokenizer(
        encode_batch=lambda texts: [[] for _ in texts],
        decode=lambda _: "",
        vocab_size=6,
        eos_id=4,
        files=(),
        fingerprint="",
        control_tokens={"<s>": 0},
        spelling=dict(enumerate(spelled)).get,
    )
    assert count_token_bytes(sentencepiece).tolist() == [0, 1, 4, 3, 0, 0]


def test_a_set_is_measured_in_nats_per_token_and_bits_per_byte(tmp_path: Path) -> None:
    run = run_with_sets(tmp_path, files(write_texts(tmp_path / "other", 60, seed=3)))
    tokenizer = load_tokenizer(run)
    model = build(replace(tiny.CONFIG, vocab_size=tokenizer.vocab_size), seed=1)
    training = Training(model, adamw(model, spec.Optim()), ALONE, tiny.CPU, None)
    attempt = tiny.attempt(tiny.prepare(tmp_path / "run", run), run)
    (text_set,) = open_sets(run, tokenizer)
    text_set.measure(attempt, training, 5)

    nats, tokens, size_bytes, token_bytes = 0.0, 0, 0, count_token_bytes(tokenizer)
    for batch in text_set.batches:
        for row in range(len(batch.tokens)):
            for document in sorted(set(batch.documents[row].tolist())):
                piece = batch.tokens[row][batch.documents[row] == document]  # (T,)
                if len(piece) < 2 or set(piece.tolist()) == {tokenizer.eos_id}:
                    continue
                at = torch.arange(len(piece) - 1)
                log_probs = model(piece[None, :-1], at[None], None)[0].log_softmax(-1)[at, piece[1:]]  # (T - 1,)
                text = piece[1:] != tokenizer.eos_id
                nats -= float(log_probs[text].sum().detach())
                tokens += int(text.sum())
                size_bytes += int(token_bytes[piece[1:]].sum())
    loss, bits = [event for event in tiny.events(attempt.run_dir) if isinstance(event, Measured)]
    assert (loss.name, loss.metric, loss.step, loss.count) == ("other", "loss", 5, tokens)
    assert (bits.metric, bits.count) == ("bits_per_byte", size_bytes)
    assert loss.value == pytest.approx(nats / tokens, rel=1e-5)
    assert bits.value == pytest.approx(nats / math.log(2) / size_bytes, rel=1e-5)


def test_a_set_has_its_tokens_for_every_micro_batch_and_seed(tmp_path: Path) -> None:
    run = run_with_sets(tmp_path, files(write_texts(tmp_path / "other", 60, seed=3)), tokens=300)
    tokenizer = load_tokenizer(run)

    def rows(changed: RunSpec) -> torch.Tensor:
        return torch.cat([batch.tokens for batch in open_sets(changed, tokenizer)[0].batches])

    first = rows(run)
    assert first.shape == (10, 32)  # 300 tokens in whole sequences of 32
    assert torch.equal(first, rows(replace(run, batch=replace(run.batch, micro_batch=7))))
    assert torch.equal(first, rows(replace(run, run=replace(run.run, seed=99))))


def test_the_end_of_text_is_no_label(tmp_path: Path) -> None:
    run = run_with_sets(tmp_path, files(write_texts(tmp_path / "other", 20, seed=3)))
    tokenizer = load_tokenizer(run)
    (text_set,) = open_sets(run, tokenizer)
    labels = torch.cat([batch.labels.flatten() for batch in text_set.batches])
    assert tokenizer.eos_id not in labels.tolist()
    assert (labels != IGNORED).any()


def same_file(tmp_path: Path) -> Source:
    return files(tmp_path / "train" / "0003.txt")


def copied_file(tmp_path: Path) -> Source:
    longest = max((tmp_path / "train").iterdir(), key=lambda file: file.stat().st_size)
    shutil.copyfile(longest, tmp_path / "renamed.txt")
    return files(tmp_path / "renamed.txt")


@pytest.mark.parametrize("overlapping", [same_file, copied_file])
def test_a_file_that_is_trained_on_is_refused(tmp_path: Path, overlapping: Any) -> None:
    write_texts(tmp_path / "train", 40)
    source = overlapping(tmp_path)
    run = run_with_sets(tmp_path, source)
    with pytest.raises(UserError) as refused:
        prepare_sets(run, load_tokenizer(run), ALONE)
    assert refused.value.where == "eval.sets.0: other"
    assert refused.value.what == f"{source.path} is in data.sources too"
    assert "eval.sets.0.sources" in refused.value.fix


def test_documents_that_are_trained_on_are_refused(tmp_path: Path) -> None:
    """The set has other files, another format and other documents beside three of the training data."""
    write_texts(tmp_path / "train", 40)
    texts = [file.read_text() for file in sorted((tmp_path / "train").iterdir())]
    tokenizer = load_tokenizer(small_run(files(tmp_path / "train")))
    longest = sorted(texts, key=lambda text: len(tokenizer.encode(text)))[-12:]
    rows = [{"text": text} for text in (*longest, "a text that no other file has, of more than a few words")]
    run = run_with_sets(tmp_path, files(write_lines(tmp_path / "other.jsonl", rows)), tokens=100_000)
    with pytest.raises(UserError, match="of its documents are training documents too"):
        prepare_sets(run, tokenizer, ALONE)


def test_short_documents_may_be_equal_by_chance(tmp_path: Path) -> None:
    write_texts(tmp_path / "train", 40)
    (tmp_path / "train" / "0040.txt").write_text("MIT licence")
    rows = [{"text": "MIT licence"}, {"text": "a text of its own"}]
    run = run_with_sets(tmp_path, files(write_lines(tmp_path / "other.jsonl", rows)))
    (text_set,) = prepare_sets(run, load_tokenizer(run), ALONE)
    assert text_set.size_bytes > 0


def test_empty_files_are_no_overlap(tmp_path: Path) -> None:
    write_texts(tmp_path / "train", 40)
    (tmp_path / "train" / "0040.txt").write_text("")
    other = write_texts(tmp_path / "other", 5, seed=3)
    (other / "0005.txt").write_text("")
    run = run_with_sets(tmp_path, files(other))
    assert prepare_sets(run, load_tokenizer(run), ALONE)


def test_a_set_without_text_is_refused(tmp_path: Path) -> None:
    run = run_with_sets(tmp_path, files(write_lines(tmp_path / "other.jsonl", [{"text": " "}, {"text": "x"}])))
    with pytest.raises(UserError, match="no two tokens of text"):
        prepare_sets(run, load_tokenizer(run), ALONE)


def test_a_set_is_tokenised_once(tmp_path: Path) -> None:
    cache.take_remade()  # of another test
    run = run_with_sets(tmp_path, files(write_texts(tmp_path / "other", 20, seed=3)))
    tokenizer = load_tokenizer(run)
    (first,) = open_sets(run, tokenizer)
    (second,) = open_sets(run, replace(tokenizer, encode_batch=_refuse))
    assert first.size_bytes == second.size_bytes
    assert cache.take_remade() == []


def _refuse(texts: Any) -> list[list[int]]:
    raise AssertionError(f"{len(texts)} texts are tokenised again")
