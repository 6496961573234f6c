"""sampling_unit = "tokens": each source has its part of all tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prime_train.core.errors import UserError
from prime_train.spec import RunSpec
from prime_train.trainer.data import corpus, tokenised, worker_count
from prime_train.trainer.data.corpus import Corpus, WholeTokens
from prime_train.trainer.data.order import BufferPlan, DocumentOrder
from prime_train.trainer.data.stream import TrainStream, plan_by_tokens, prepare
from prime_train.trainer.data.tokenised import ALONE
from tests.system.trainer.data.test_stream import refused_change, same, take, through_json
from tests.unit.trainer.data.small_runs import files, small_run, text


def corpus_of(lengths: list[int]) -> Corpus:
    """Documents with these lengths. No test reads their tokens."""
    ends = np.cumsum(lengths)
    return Corpus("", np.arange(len(lengths)), np.arange(0), WholeTokens(np.zeros(ends[-1], dtype=np.uint16), ends))


def planned(
    lengths: list[list[int]],
    probs: tuple[float, ...],
    start: tuple[int, tuple[int, ...], tuple[int, ...]] | None = None,
    buffer_docs: int = 4,
) -> Iterator[BufferPlan]:
    order = DocumentOrder(5, tuple(map(len, lengths)), probs, buffer_docs)
    zeros = (0,) * len(lengths)
    return plan_by_tokens(order, list(map(corpus_of, lengths)), *(start or (0, zeros, zeros)), ALONE)


SOURCES = st.integers(1, 4).flatmap(
    lambda count: st.tuples(
        st.lists(st.lists(st.integers(1, 500), min_size=1, max_size=9), min_size=count, max_size=count),
        st.lists(st.integers(1, 9), min_size=count, max_size=count),
    )
)


@settings(deadline=None, max_examples=50)
@given(SOURCES)
def test_the_part_of_each_source_is_exact_to_within_documents_at_every_moment(
    drawn: tuple[list[list[int]], list[int]],
) -> None:
    lengths, weights = drawn
    probs = tuple(weight / sum(weights) for weight in weights)
    longest, tokens = max(map(max, lengths)), [0] * len(lengths)
    for plan in islice(planned(lengths, probs), 40):
        for source, document in zip(plan.source.tolist(), plan.document.tolist(), strict=True):
            tokens[source] += lengths[source][document]
            for prob, mine in zip(probs, tokens, strict=True):
                assert mine <= prob * sum(tokens) + longest + 1e-6
                assert mine >= prob * sum(tokens) - prob * (len(lengths) - 1) * longest - 1e-6


@settings(deadline=None, max_examples=50)
@given(SOURCES, st.integers(0, 12))
def test_a_plan_goes_on_from_any_buffer(drawn: tuple[list[list[int]], list[int]], start: int) -> None:
    lengths, weights = drawn
    probs = tuple(weight / sum(weights) for weight in weights)
    straight = list(islice(planned(lengths, probs), 16))
    at = straight[start]
    resumed = islice(planned(lengths, probs, (at.number, at.cursors, at.tokens)), 16 - start)
    for one, other in zip(straight[start:], resumed, strict=True):
        assert (one.number, one.cursors, one.tokens) == (other.number, other.cursors, other.tokens)
        assert one.source.tolist() == other.source.tolist()
        assert one.document.tolist() == other.document.tolist()


def test_each_source_keeps_its_own_epochs() -> None:
    lengths = [[5, 9, 1, 30], [2, 2, 2, 2, 2, 2, 2]]
    found = [
        (source, document)
        for plan in islice(planned(lengths, (0.5, 0.5)), 60)
        for source, document in zip(plan.source.tolist(), plan.document.tolist(), strict=True)
    ]
    for source, count in ((0, 4), (1, 7)):
        mine = [document for which, document in found if which == source]
        assert len(mine) > 2 * count
        for start in range(0, len(mine) - count + 1, count):
            assert sorted(mine[start : start + count]) == list(range(count))


def test_a_source_of_probability_0_is_never_drawn() -> None:
    plans = islice(planned([[3, 3], [3, 3]], (0.0, 1.0)), 20)
    assert all((plan.source == 1).all() for plan in plans)


def write(folder: Path, count: int, words: int) -> Path:
    folder.mkdir()
    for number in range(count):
        (folder / f"{number:04d}.txt").write_text(text(number, words), encoding="utf-8")
    return folder


@pytest.fixture
def run(tmp_path: Path) -> RunSpec:
    """Documents of 60 and of 3 words, half of the stream each."""
    sources = files(write(tmp_path / "long", 25, 60)), files(write(tmp_path / "short", 90, 3))
    return small_run(*sources, sampling_probs=(0.5, 0.5), sampling_unit="tokens")


def count_tokens(run: RunSpec, micro_batches: int) -> list[int]:
    """Tokens of each source in a stream: its documents begin with their number, and only short ones have few."""
    stream = TrainStream(run, prepare(run), 0, 1, None)
    take(stream, micro_batches)
    (opened, other) = corpus.open_corpora(run, prepare(run))
    cursors = stream.position()["cursors"]
    order = DocumentOrder(run.run.seed, (len(opened.train), len(other.train)), run.data.sampling_probs, 4)
    return [
        int(one.source.lengths(one.train[order.documents(number, 0, cursors[number])]).sum())
        for number, one in enumerate((opened, other))
    ]


def test_the_stream_has_half_of_its_tokens_from_each_source(run: RunSpec) -> None:
    long, short = count_tokens(run, 200)
    assert abs(long / (long + short) - 0.5) < 0.03
    by_documents = replace(run, data=replace(run.data, sampling_unit="documents"))
    long, short = count_tokens(by_documents, 200)
    assert long / (long + short) > 0.8


@pytest.mark.parametrize("whole_bytes", [0, 2**20])
@pytest.mark.parametrize("ranks", [2, 8])
def test_any_number_of_ranks_sees_the_rows_of_one(
    run: RunSpec, monkeypatch: pytest.MonkeyPatch, ranks: int, whole_bytes: int
) -> None:
    monkeypatch.setattr(corpus, "WHOLE_BYTES", whole_bytes)
    monkeypatch.setattr(tokenised, "PATIENCE_S", 0.0)
    tokenizer = prepare(run)
    one = take(TrainStream(run, tokenizer, 0, 1, None), 64)
    streams = [TrainStream(run, tokenizer, rank, ranks, None) for rank in range(ranks)]
    assert same([stream.next_micro_batch() for _ in range(64 // ranks) for stream in streams], one)


def test_a_run_goes_from_1_to_2_to_1_ranks(run: RunSpec) -> None:
    tokenizer = prepare(run)
    straight = take(TrainStream(run, tokenizer, 0, 1, None), 40)
    first = TrainStream(run, tokenizer, 0, 1, None)
    rows = take(first, 10)
    pair = [TrainStream(run, tokenizer, rank, 2, through_json(first.position())) for rank in (0, 1)]
    rows += [stream.next_micro_batch() for _ in range(10) for stream in pair]
    last = TrainStream(run, tokenizer, 0, 1, through_json(pair[0].position()))
    assert same([*rows, *take(last, 10)], straight)
    assert last.position()["tokens"][0] > 0


def test_another_number_of_workers_in_the_middle_changes_nothing(run: RunSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus, "WHOLE_BYTES", 0)
    monkeypatch.setattr(worker_count, "PROBE_S", 0.0)  # looks after the first step
    monkeypatch.setattr(worker_count, "count_cores", lambda: 4)
    tokenizer = prepare(run)
    straight = take(TrainStream(run, tokenizer, 0, 1, None), 60)
    stream = TrainStream(replace(run, data=replace(run.data, loader_workers="auto")), tokenizer, 0, 1, None)
    assert stream.workers == 3
    batches = take(stream, 60)
    assert stream.workers == 1
    stream.close()
    assert same(batches, straight)


def test_a_source_without_a_token_is_an_error(run: RunSpec, tmp_path: Path) -> None:
    for file in (tmp_path / "short").iterdir():
        file.write_text(" \n")
    with pytest.raises(UserError, match="no text"):
        TrainStream(run, prepare(run), 0, 1, None).next_micro_batch()


def test_a_change_of_the_unit_is_refused(run: RunSpec) -> None:
    refused = refused_change(run, sampling_unit="documents")
    assert refused.what == "data.sampling_unit is documents, was tokens"
    assert refused.fix.startswith("data.sampling_unit = tokens")
