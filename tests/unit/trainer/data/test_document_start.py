"""document_start = "eos": each document comes after the end-of-text token."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prime_train.core.errors import UserError
from prime_train.spec import EvalSet, RunSpec
from prime_train.trainer.batch import IGNORED, MicroBatch
from prime_train.trainer.data.corpus import StartedDocuments, WholeTokens, open_corpora
from prime_train.trainer.data.stream import TrainStream, held_out_batches, prepare
from prime_train.trainer.evaluation.eval_sets import open_sets
from prime_train.trainer.loops.work import encode_prompt
from prime_train.trainer.tokenizer import LoadedTokenizer
from tests.system.trainer.data.test_stream import refused_change, same, take
from tests.unit.trainer.data.small_runs import files, small_run, text, write_texts

EOS = 1000


@settings(deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 99), max_size=12), min_size=1, max_size=6).filter(any),
    st.booleans(),
    st.data(),
)
def test_every_part_is_that_of_the_text_after_the_token(
    documents: list[list[int]], is_cut: bool, data: st.DataObject
) -> None:
    ends = np.cumsum([len(document) for document in documents])
    tokens = np.asarray([token for document in documents for token in document], dtype=np.uint16)
    source = StartedDocuments(WholeTokens(tokens, ends), EOS, is_cut)
    expected = [
        [EOS, *document] if document and (number == 0 or not is_cut) else document
        for number, document in enumerate(documents)
    ]
    every = np.arange(len(documents))
    lengths = source.lengths(every)
    assert lengths.tolist() == list(map(len, expected))
    starts = np.asarray([data.draw(st.integers(0, length)) for length in lengths.tolist()])
    wanted = np.asarray([data.draw(st.integers(0, left)) for left in (lengths - starts).tolist()])
    found = source.pieces(every, starts, wanted)
    assert [piece.tolist() for piece in found] == [
        document[start : start + length]
        for document, start, length in zip(expected, starts.tolist(), wanted.tolist(), strict=True)
    ]


@pytest.fixture
def run(tmp_path: Path) -> RunSpec:
    """Documents that are shorter than a sequence."""
    folder = tmp_path / "texts"
    folder.mkdir()
    for number in range(30):
        (folder / f"{number:04d}.txt").write_text(text(number, number % 9), encoding="utf-8")
    return small_run(files(folder), document_start="eos", ctx_tokens=128)


def texts_in(batches: list[MicroBatch], tokenizer: LoadedTokenizer) -> list[tuple[list[int], list[int]]]:
    """(tokens, labels) of each document in the batches, without padding."""
    found = []
    for batch in batches:
        for row in range(len(batch.tokens)):
            for number in sorted(set(batch.documents[row].tolist())):
                mine = batch.documents[row] == number
                tokens, labels = batch.tokens[row][mine].tolist(), batch.labels[row][mine].tolist()
                if set(tokens) != {tokenizer.eos_id}:
                    found.append((tokens, labels))
    return found


def test_the_first_token_of_each_document_is_predicted_from_the_end_of_text(run: RunSpec) -> None:
    tokenizer = prepare(run)
    found = texts_in(take(TrainStream(run, tokenizer, 0, 1, None), 5), tokenizer)
    found += texts_in(held_out_batches(run, tokenizer), tokenizer)
    assert len(found) > 20
    for tokens, labels in found:
        assert tokens[0] == tokens[-1] == tokenizer.eos_id
        assert labels == [*tokens[1:], IGNORED]
        assert tokens[1:-1] == tokenizer.encode(tokenizer.decode(tokens[1:-1]))


def test_without_it_the_first_token_is_no_label(run: RunSpec) -> None:
    plain = replace(run, data=replace(run.data, document_start="none"))
    tokenizer = prepare(plain)
    for tokens, _ in texts_in(take(TrainStream(plain, tokenizer, 0, 1, None), 5), tokenizer):
        assert tokens[0] != tokenizer.eos_id


def test_a_single_document_begins_once(tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text(text(1, 40_000), encoding="utf-8")
    run = small_run(files(tmp_path / "one.txt"), document_start="eos")
    tokenizer = prepare(run)
    (opened,) = open_corpora(run, tokenizer)
    assert len(opened.train) > 2
    firsts = [int(opened.gather(np.asarray([section]))[0][0]) for section in opened.train.tolist()]
    assert [first == tokenizer.eos_id for first in firsts] == [True, *[False] * (len(firsts) - 1)]


def test_the_tokens_of_the_text_are_cached_once(run: RunSpec, cache: Path) -> None:
    prepare(run)
    prepare(replace(run, data=replace(run.data, document_start="none")))
    assert len(list(cache.glob("tokens/*/index"))) == 1


def test_prompts_begin_as_documents_do(run: RunSpec) -> None:
    tokenizer = prepare(run)
    assert encode_prompt(run, tokenizer, "alpha") == [tokenizer.eos_id, *tokenizer.encode("alpha")]
    assert encode_prompt(run, tokenizer, "") == [tokenizer.eos_id]
    plain = replace(run, data=replace(run.data, document_start="none"))
    assert encode_prompt(plain, tokenizer, "alpha") == tokenizer.encode("alpha")


def test_a_set_of_text_counts_first_tokens_too(run: RunSpec, tmp_path: Path) -> None:
    asked = EvalSet(name="other", sources=(files(write_texts(tmp_path / "other", 9, seed=4)),), tokens=100_000)
    started = replace(run, eval=replace(run.eval, sets=(asked,)))
    plain = replace(started, data=replace(run.data, document_start="none"))
    tokenizer = prepare(run)
    (first,), (second,) = open_sets(started, tokenizer), open_sets(plain, tokenizer)
    labels = [sum(batch.labelled_tokens for batch in one.batches) for one in (first, second)]
    assert labels[0] - labels[1] == 9
    whole = sum(len(file.read_bytes()) for file in (tmp_path / "other").iterdir())
    assert second.size_bytes < first.size_bytes <= whole


def test_a_change_on_resume_is_refused_by_name(run: RunSpec) -> None:
    refused = refused_change(run, document_start="none")
    assert refused.what == "data.document_start is none, was eos"
    assert refused.fix.startswith("data.document_start = eos")


def test_a_position_without_the_setting_is_one_of_documents_without_a_start(run: RunSpec) -> None:
    plain = replace(run, data=replace(run.data, document_start="none"))
    tokenizer = prepare(plain)
    stream = TrainStream(plain, tokenizer, 0, 1, None)
    take(stream, 2)
    position = stream.position()
    del position["made_by"]["data.document_start"], position["made_by"]["data.sampling_unit"]
    assert same(take(TrainStream(plain, tokenizer, 0, 1, position), 3), take(stream, 3))
    with pytest.raises(UserError, match=r"data\.document_start is eos, was none"):
        TrainStream(run, tokenizer, 0, 1, position)
