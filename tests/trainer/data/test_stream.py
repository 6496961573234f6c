from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from prime_train.core.errors import UserError
from prime_train.spec import RunSpec
from prime_train.trainer.data import corpus, order
from prime_train.trainer.data.batch import Batch
from prime_train.trainer.data.corpus import open_corpora
from prime_train.trainer.data.stream import TrainStream, prepare
from prime_train.trainer.tokenizer import Tokenizer
from tests.trainer.data.small_runs import files, small_run, write_texts

TENSORS = ("tokens", "labels", "positions", "documents")


@pytest.fixture
def run(tmp_path: Path) -> RunSpec:
    """Two sources, so small that 60 micro-batches go through several epochs and many buffers."""
    sources = files(write_texts(tmp_path / "a", 25)), files(write_texts(tmp_path / "b", 9, seed=1))
    return small_run(*sources, sampling_probs=(0.7, 0.3))


@pytest.fixture
def tokenizer(run: RunSpec) -> Tokenizer:
    return prepare(run)


def take(stream: TrainStream, count: int) -> list[Batch]:
    return [stream.next_micro_batch() for _ in range(count)]


def joined(batches: list[Batch]) -> dict[str, torch.Tensor]:
    return {name: torch.cat([getattr(batch, name) for batch in batches]) for name in TENSORS}


def same(left: list[Batch], right: list[Batch]) -> bool:
    a, b = joined(left), joined(right)
    return all(torch.equal(a[name], b[name]) for name in TENSORS)


def through_json(position: dict[str, Any]) -> dict[str, Any]:
    value = json.loads(json.dumps(position))
    assert value == position
    return dict(value)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 1, 2])
def test_a_stream_goes_on_exactly_where_another_left_off(run: RunSpec, tokenizer: Tokenizer, workers: int) -> None:
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


def test_the_number_of_workers_changes_nothing(run: RunSpec, tokenizer: Tokenizer) -> None:
    streams = [
        TrainStream(replace(run, data=replace(run.data, loader_workers=workers)), tokenizer, 0, 1, None)
        for workers in (0, 1, 2)
    ]
    batches = [take(stream, 60) for stream in streams]
    assert same(batches[0], batches[1])
    assert same(batches[0], batches[2])
    assert streams[0].position() == streams[1].position() == streams[2].position()


def test_a_position_may_be_read_before_the_first_batch_and_at_the_end_of_a_buffer(
    run: RunSpec, tokenizer: Tokenizer
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


def test_two_ranks_together_see_the_rows_of_one(run: RunSpec, tokenizer: Tokenizer) -> None:
    one = TrainStream(replace(run, batch=replace(run.batch, micro_batch=4)), tokenizer, 0, 1, None)
    ranks = [TrainStream(run, tokenizer, rank, 2, None) for rank in (0, 1)]
    together = [stream.next_micro_batch() for _ in range(20) for stream in ranks]
    assert same(together, take(one, 20))
    assert one.position() == ranks[0].position() == ranks[1].position()


def test_a_run_goes_on_with_another_number_of_ranks(run: RunSpec, tokenizer: Tokenizer) -> None:
    ranks = [TrainStream(run, tokenizer, rank, 2, None) for rank in (0, 1)]
    for stream in ranks:
        take(stream, 10)
    straight = take(TrainStream(run, tokenizer, 0, 1, None), 30)
    assert same(take(TrainStream(run, tokenizer, 0, 1, ranks[1].position()), 10), straight[20:30])


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


def test_another_seed_gives_other_batches(run: RunSpec, tokenizer: Tokenizer) -> None:
    other = replace(run, run=replace(run.run, seed=8))
    assert not same(
        take(TrainStream(run, tokenizer, 0, 1, None), 5), take(TrainStream(other, tokenizer, 0, 1, None), 5)
    )


def test_the_stream_leaves_the_random_numbers_of_the_model_alone(run: RunSpec, tokenizer: Tokenizer) -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    take(TrainStream(replace(run, data=replace(run.data, loader_workers=1)), tokenizer, 0, 1, None), 3)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_position_of_another_stream_is_refused(run: RunSpec, tokenizer: Tokenizer) -> None:
    stream = TrainStream(run, tokenizer, 0, 1, None)
    take(stream, 3)
    longer = replace(run, data=replace(run.data, ctx_tokens=64))
    with pytest.raises(UserError) as caught:
        TrainStream(longer, tokenizer, 0, 1, stream.position())
    assert caught.value.what == "data.ctx_tokens is 64, was 32"


def test_a_position_in_text_that_changed_is_refused(run: RunSpec, tokenizer: Tokenizer) -> None:
    stream = TrainStream(run, tokenizer, 0, 1, None)
    take(stream, 3)
    path = run.data.sources[0].path
    assert path is not None
    Path(path, "0003.txt").write_text("something else")
    with pytest.raises(UserError, match="the text or the tokenizer has changed"):
        TrainStream(run, tokenizer, 0, 1, stream.position())


@pytest.mark.parametrize("cached_bytes", [0, 2**20])
@pytest.mark.parametrize("workers", [0, 1])
def test_documents_that_are_all_blank_end_the_search_for_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int, cached_bytes: int
) -> None:
    monkeypatch.setattr(corpus, "CACHED_BYTES", cached_bytes)
    folder = write_texts(tmp_path / "texts", 30)
    run = small_run(files(folder), loader_workers=workers)
    train, _ = order.split(30, run.eval.held_out_ratio, run.run.seed, 0)
    for number in train.tolist():
        (folder / f"{number:04d}.txt").write_text(" \n")
    with pytest.raises(UserError, match="no text"):
        TrainStream(run, prepare(run), 0, 1, None).next_micro_batch()


def test_one_document_with_text_among_blank_ones_is_found(tmp_path: Path) -> None:
    folder = write_texts(tmp_path / "texts", 200)
    run = small_run(files(folder), pack_buffer_docs=1)
    train, _ = order.split(200, run.eval.held_out_ratio, run.run.seed, 0)
    for number in train.tolist()[:-1]:
        (folder / f"{number:04d}.txt").write_text("")
    assert all(batch.labelled_tokens > 0 for batch in take(TrainStream(run, prepare(run), 0, 1, None), 5))


@pytest.mark.slow
def test_the_data_path_loads_no_library_that_it_may_not_need() -> None:
    slow = {"transformers", "datasets", "pyarrow", "pandas"}
    imports = "import sys, prime_train.trainer.data.stream, prime_train.trainer.data.stream"
    code = f"{imports}; print({slow} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
