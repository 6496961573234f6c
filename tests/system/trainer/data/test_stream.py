from __future__ import annotations

import json
import multiprocessing
import os
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from prime_train.core.errors import UserError
from prime_train.spec import RunSpec
from prime_train.trainer import draws
from prime_train.trainer.batch import MicroBatch
from prime_train.trainer.data import corpus, order, tokenised, worker_count
from prime_train.trainer.data.corpus import open_corpora
from prime_train.trainer.data.loader import plans
from prime_train.trainer.data.order import DocumentOrder
from prime_train.trainer.data.packing import Rows, fill, join, pack, to_batch
from prime_train.trainer.data.progress import SourceProgress
from prime_train.trainer.data.stream import TrainStream, held_out_batches, prepare
from prime_train.trainer.data.text_tokenizer import load_tokenizer
from prime_train.trainer.tokenizer import LoadedTokenizer
from tests.unit.trainer.data.small_runs import files, small_run, text, write_lines, write_texts

TENSORS = ("tokens", "labels", "positions", "documents")


@pytest.fixture
def run(tmp_path: Path) -> RunSpec:
    """Two sources, so small that 60 micro-batches go through several epochs and many buffers."""
    sources = files(write_texts(tmp_path / "a", 25)), files(write_texts(tmp_path / "b", 9, seed=1))
    return small_run(*sources, sampling_probs=(0.7, 0.3))


@pytest.fixture
def tokenizer(run: RunSpec) -> LoadedTokenizer:
    return prepare(run)


def take(stream: TrainStream, count: int) -> list[MicroBatch]:
    return [stream.next_micro_batch() for _ in range(count)]


def joined(batches: list[MicroBatch]) -> dict[str, torch.Tensor]:
    return {name: torch.cat([getattr(batch, name) for batch in batches]) for name in TENSORS}


def same(left: list[MicroBatch], right: list[MicroBatch]) -> bool:
    a, b = joined(left), joined(right)
    return all(torch.equal(a[name], b[name]) for name in TENSORS)


def through_json(position: dict[str, Any]) -> dict[str, Any]:
    value = json.loads(json.dumps(position))
    assert value == position
    return dict(value)


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_a_stream_goes_on_exactly_where_another_left_off(
    run: RunSpec, tokenizer: LoadedTokenizer, workers: int
) -> None:
    run = replace(run, data=replace(run.data, loader_workers=workers))
    straight = take(TrainStream(run, tokenizer, 0, 1, None), 60)
    stream = TrainStream(run, tokenizer, 0, 1, None)
    assert stream.position()["row"] == 0
    for consumed in (0, 1, 7, 30):
        stream = TrainStream(run, tokenizer, 0, 1, None)
        take(stream, consumed)
        position = through_json(stream.position())
        stream.close()
        assert same(take(TrainStream(run, tokenizer, 0, 1, position), 30), straight[consumed : consumed + 30])


def test_the_number_of_workers_changes_nothing(run: RunSpec, tokenizer: LoadedTokenizer) -> None:
    streams = [
        TrainStream(replace(run, data=replace(run.data, loader_workers=workers)), tokenizer, 0, 1, None)
        for workers in (0, 1, 2)
    ]
    batches = [take(stream, 60) for stream in streams]
    assert same(batches[0], batches[1])
    assert same(batches[0], batches[2])
    assert streams[0].position() == streams[1].position() == streams[2].position()


def test_a_position_may_be_read_before_the_first_batch_and_at_the_end_of_a_buffer(
    run: RunSpec, tokenizer: LoadedTokenizer
) -> None:
    run = replace(run, batch=replace(run.batch, micro_batch=1))
    straight = take(TrainStream(run, tokenizer, 0, 1, None), 80)
    stream = TrainStream(run, tokenizer, 0, 1, None)
    for consumed in range(78):
        resumed = TrainStream(run, tokenizer, 0, 1, stream.position())
        assert resumed.position() == stream.position()
        assert same(take(resumed, 2), straight[consumed : consumed + 2])
        take(stream, 1)
    assert stream.position()["buffer"] > 1


def test_two_ranks_together_see_the_rows_of_one(run: RunSpec, tokenizer: LoadedTokenizer) -> None:
    one = TrainStream(replace(run, batch=replace(run.batch, micro_batch=4)), tokenizer, 0, 1, None)
    ranks = [TrainStream(run, tokenizer, rank, 2, None) for rank in (0, 1)]
    together = [stream.next_micro_batch() for _ in range(20) for stream in ranks]
    assert same(together, take(one, 20))
    assert one.position() == ranks[0].position() == ranks[1].position()


def test_a_run_goes_on_with_another_number_of_ranks(run: RunSpec, tokenizer: LoadedTokenizer) -> None:
    ranks = [TrainStream(run, tokenizer, rank, 2, None) for rank in (0, 1)]
    for stream in ranks:
        take(stream, 10)
    straight = take(TrainStream(run, tokenizer, 0, 1, None), 30)
    assert same(take(TrainStream(run, tokenizer, 0, 1, ranks[1].position()), 10), straight[20:30])


def reference_batches(
    run: RunSpec, tokenizer: LoadedTokenizer, count: int, version: int = order.FEISTEL
) -> Iterator[MicroBatch]:
    """The micro-batches of one rank as a loop over whole buffers makes them: read all, pack all, shuffle, cut."""
    corpora = open_corpora(run, tokenizer)
    documents = DocumentOrder(
        run.run.seed,
        tuple(len(corpus.train) for corpus in corpora),
        run.data.sampling_probs,
        run.data.pack_buffer_docs,
        version,
    )
    buffers: list[Rows] = []
    for plan in plans(documents, 0, (0,) * len(corpora)):
        if sum(map(len, buffers)) >= count * run.batch.micro_batch:
            break
        parts = [
            corpus.gather(corpus.train[plan.document[plan.source == number]])
            for number, corpus in enumerate(corpora)
            if (plan.source == number).any()
        ]
        tokens, lengths = (np.concatenate(each) for each in zip(*parts, strict=True))
        rows = fill(pack(lengths, run.data.ctx_tokens), tokens, lengths, run.data.ctx_tokens, tokenizer.eos_id)
        shuffled = draws.generator(run.run.seed, draws.ROWS, plan.number).permutation(len(rows))
        buffers.append(rows.take(shuffled))
    every, size = join(buffers), run.batch.micro_batch
    for number in range(count):
        yield to_batch(every.slice(number * size, (number + 1) * size))


@pytest.mark.parametrize("whole_bytes", [0, 2**20])
@pytest.mark.parametrize("ranks", [1, 2, 8])
def test_the_rows_are_those_of_a_loop_over_whole_buffers(
    run: RunSpec, monkeypatch: pytest.MonkeyPatch, ranks: int, whole_bytes: int
) -> None:
    monkeypatch.setattr(corpus, "WHOLE_BYTES", whole_bytes)
    monkeypatch.setattr(tokenised, "PATIENCE_S", 0.0)
    tokenizer = prepare(run)
    streams = [TrainStream(run, tokenizer, rank, ranks, None) for rank in range(ranks)]
    together = [stream.next_micro_batch() for _ in range(64 // ranks) for stream in streams]
    assert same(together, list(reference_batches(run, tokenizer, 64)))


def test_a_run_goes_from_1_to_2_to_1_ranks_while_its_text_is_tokenised(
    run: RunSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpus, "WHOLE_BYTES", 0)
    tokenizer = prepare(run)
    first = TrainStream(run, tokenizer, 0, 1, None)
    rows = take(first, 10)
    pair = [TrainStream(run, tokenizer, rank, 2, through_json(first.position())) for rank in (0, 1)]
    rows += [stream.next_micro_batch() for _ in range(10) for stream in pair]
    rows += take(TrainStream(run, tokenizer, 0, 1, through_json(pair[0].position())), 10)
    assert same(rows, list(reference_batches(run, tokenizer, 40)))


def test_a_position_of_an_earlier_version_is_continued(run: RunSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sources up to 256 MiB were identified by the hash of all their tokens."""
    tokenizer = prepare(run)
    stream = TrainStream(run, tokenizer, 0, 1, None)
    take(stream, 7)
    position = stream.position()
    assert all(len(identity) == 64 for identity in position["made_by"]["text and tokenizer"])
    monkeypatch.setattr(corpus, "WHOLE_BYTES", 0)
    resumed = TrainStream(run, tokenizer, 0, 1, through_json(position))
    assert resumed.position() == position
    assert same(take(resumed, 5), take(stream, 5))


def test_a_run_of_an_earlier_version_keeps_the_order_that_it_began_with(
    run: RunSpec, tokenizer: LoadedTokenizer
) -> None:
    fresh = TrainStream(run, tokenizer, 0, 1, None)
    position = through_json(fresh.position())
    assert position.pop("order") == order.FEISTEL
    earlier = TrainStream(run, tokenizer, 0, 1, position)
    rows = take(earlier, 20)
    rows += take(TrainStream(run, tokenizer, 0, 1, through_json(earlier.position())), 20)
    assert same(rows, list(reference_batches(run, tokenizer, 40, order.TABLE)))
    assert not same(rows, take(fresh, 40))


def test_an_order_that_is_not_known_is_refused(run: RunSpec, tokenizer: LoadedTokenizer) -> None:
    position = TrainStream(run, tokenizer, 0, 1, None).position() | {"order": 3}
    with pytest.raises(UserError, match="a later version of prime-train has begun the run"):
        TrainStream(run, tokenizer, 0, 1, position)


def test_another_number_of_workers_in_the_middle_changes_nothing(run: RunSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_count, "PROBE_S", 0.0)  # looks after the first step
    monkeypatch.setattr(worker_count, "count_cores", lambda: 4)
    auto = replace(run, data=replace(run.data, loader_workers="auto"))
    tokenizer = prepare(run)
    stream = TrainStream(auto, tokenizer, 0, 1, None)
    assert stream.workers == 3
    batches = take(stream, 60)
    assert stream.workers == 1, "all is in the cache"
    stream.close()
    assert same(batches, list(reference_batches(run, tokenizer, 60)))


def train_in_step(
    run: RunSpec, rank: int, together: Barrier, results: multiprocessing.SimpleQueue[tuple[int, int]]
) -> None:
    """Train as one of 8 ranks, whose steps wait for each other."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # as in a worker: a fork does not copy its threads
    stream = TrainStream(run, load_tokenizer(run), rank, 8, None)
    trained = 0
    for _ in range(150):
        together.wait()
        trained += stream.next_micro_batch().labelled_tokens
    results.put((stream.made().tokens, trained))


def test_each_of_8_ranks_tokenises_little_more_than_it_trains_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpus, "WHOLE_BYTES", 0)
    monkeypatch.setattr(tokenised, "PATIENCE_S", 300.0)  # a rank leaves the others their share, on a busy machine too
    lines = [{"text": text(number, 5 + number % 40)} for number in range(6000)]
    run = small_run(files(write_lines(tmp_path / "lines.jsonl", lines)), pack_buffer_docs=512, micro_batch=4)
    load_tokenizer(run)
    fork = multiprocessing.get_context("fork")
    together, results = fork.Barrier(8), fork.SimpleQueue()
    children = [fork.Process(target=train_in_step, args=(run, rank, together, results)) for rank in range(8)]
    for child in children:
        child.start()
    for made, trained in [results.get() for _ in children]:
        assert 0 < made <= 1.3 * trained
    for child in children:
        child.join()


def test_the_first_step_comes_before_a_twentieth_of_100_files_is_tokenised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    monkeypatch.setattr(corpus, "WHOLE_BYTES", 0)
    for number in range(100):
        texts = [f"{number} {row} alpha beta" for row in range(400)]
        parquet.write_table(pa.table({"text": texts}), tmp_path / f"{number:03d}.parquet")
    run = small_run(files(tmp_path), pack_buffer_docs=64)
    tokenizer = prepare(run)
    stream = TrainStream(run, tokenizer, 0, 1, None)
    held_out_batches(run, tokenizer)
    assert stream.next_micro_batch().labelled_tokens > 0
    (made,) = cache.glob("tokens/*/made")
    done = SourceProgress(made.parent, "", 40_000, "").total().documents
    assert 0 < done < 0.05 * 40_000


def test_no_token_of_an_epoch_is_lost_or_trained_on_twice(tmp_path: Path) -> None:
    run = small_run(files(write_texts(tmp_path / "texts", 40)), pack_buffer_docs=9, micro_batch=1)
    tokenizer = prepare(run)
    (opened,) = open_corpora(run, tokenizer)
    stream = TrainStream(run, tokenizer, 0, 1, None)
    found: list[int] = []
    while True:
        batch = stream.next_micro_batch()
        if stream.position()["buffer"] == 4:  # 36 training documents are 4 buffers of 9
            break
        found += batch.tokens.flatten().tolist()
    tokens, _ = opened.gather(opened.train)
    assert len(opened.train) == 36
    assert stream.position()["cursors"] == [36]
    # The padding of a row and the end of a document are the same token.
    expected = tokens[tokens != tokenizer.eos_id].tolist()
    assert sorted(token for token in found if token != tokenizer.eos_id) == sorted(expected)


def test_another_seed_gives_other_batches(run: RunSpec, tokenizer: LoadedTokenizer) -> None:
    other = replace(run, run=replace(run.run, seed=8))
    assert not same(
        take(TrainStream(run, tokenizer, 0, 1, None), 5), take(TrainStream(other, tokenizer, 0, 1, None), 5)
    )


def test_the_stream_leaves_the_random_numbers_of_the_model_alone(run: RunSpec, tokenizer: LoadedTokenizer) -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    take(TrainStream(replace(run, data=replace(run.data, loader_workers=1)), tokenizer, 0, 1, None), 3)
    assert torch.equal(torch.get_rng_state(), before)


def refused_change(run: RunSpec, **data: Any) -> UserError:
    """The error of a stream that has other values in [data], at a position of the run's stream."""
    tokenizer = prepare(run)
    stream = TrainStream(run, tokenizer, 0, 1, None)
    take(stream, 3)
    with pytest.raises(UserError) as caught:
        TrainStream(replace(run, data=replace(run.data, **data)), tokenizer, 0, 1, stream.position())
    return caught.value


def test_a_position_of_another_stream_is_refused(run: RunSpec) -> None:
    assert refused_change(run, ctx_tokens=64).what == "data.ctx_tokens is 64, was 32"


def test_a_position_in_text_that_changed_is_refused(run: RunSpec, tokenizer: LoadedTokenizer) -> None:
    stream = TrainStream(run, tokenizer, 0, 1, None)
    take(stream, 3)
    path = run.data.sources[0].path
    assert path is not None
    Path(path, "0003.txt").write_text("something else")
    with pytest.raises(UserError, match="the text or the tokenizer has changed"):
        TrainStream(run, tokenizer, 0, 1, stream.position())


@pytest.mark.parametrize("whole_bytes", [0, 2**20])
@pytest.mark.parametrize("workers", [0, 1])
def test_documents_that_are_all_blank_end_the_search_for_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int, whole_bytes: int
) -> None:
    monkeypatch.setattr(corpus, "WHOLE_BYTES", whole_bytes)
    folder = write_texts(tmp_path / "texts", 30)
    run = small_run(files(folder), loader_workers=workers)
    train, _ = draws.split(30, run.eval.held_out_ratio, run.run.seed, 0)
    for number in train.tolist():
        (folder / f"{number:04d}.txt").write_text(" \n")
    with pytest.raises(UserError, match="no text"):
        TrainStream(run, prepare(run), 0, 1, None).next_micro_batch()


def test_one_document_with_text_among_blank_ones_is_found(tmp_path: Path) -> None:
    folder = write_texts(tmp_path / "texts", 200)
    run = small_run(files(folder), pack_buffer_docs=1)
    train, _ = draws.split(200, run.eval.held_out_ratio, run.run.seed, 0)
    for number in train.tolist()[:-1]:
        (folder / f"{number:04d}.txt").write_text("")
    assert all(batch.labelled_tokens > 0 for batch in take(TrainStream(run, prepare(run), 0, 1, None), 5))
