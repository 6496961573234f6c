"""A stream whose settings change goes on exactly, also where it is opened again in the buffer of the change."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from prime_train.spec import RunSpec
from prime_train.trainer.data.stream import TrainStream, prepare
from tests.system.trainer.data.test_stream import same, take, through_json
from tests.unit.trainer.data.small_runs import files, small_run, write_texts


def two_sources(tmp_path: Path, unit: str, probs: tuple[float, ...] | None) -> RunSpec:
    one, other = (files(write_texts(tmp_path / str(seed), 30, seed)) for seed in range(2))
    return small_run(one, other, sampling_unit=unit, sampling_probs=probs, pack_buffer_docs=8, loader_workers=0)


@pytest.mark.parametrize(
    ("unit", "before"), [("documents", None), ("documents", (0.5, 0.5)), ("tokens", None), ("tokens", (0.5, 0.5))]
)
@pytest.mark.parametrize("stopped_after", [0, 1, 4, 20])
def test_a_change_of_probabilities_is_repeated_exactly(
    tmp_path: Path, unit: str, before: tuple[float, ...] | None, stopped_after: int
) -> None:
    run = two_sources(tmp_path, unit, before)
    changed = replace(run, data=replace(run.data, sampling_probs=(0.9, 0.1)))
    tokenizer = prepare(run)
    straight = TrainStream(run, tokenizer, 0, 1, None)
    take(straight, 3)
    straight.take_settings(changed)
    take(straight, stopped_after)
    position = through_json(straight.position())
    expected = take(straight, 30)

    resumed = TrainStream(run, tokenizer, 0, 1, position)
    resumed.take_settings(changed)
    assert same(take(resumed, 30), expected)
    assert resumed.position() == straight.position()


@pytest.mark.parametrize("unit", ["documents", "tokens"])
@pytest.mark.parametrize(
    "later",
    [{"loader_workers": 1}, {"loader_workers": "auto"}, {"sampling_probs": (0.2, 0.8)}, {"sampling_probs": (0.5, 0.5)}],
)
def test_two_changes_in_one_buffer_are_repeated_exactly(tmp_path: Path, unit: str, later: dict[str, Any]) -> None:
    run = two_sources(tmp_path, unit, (0.5, 0.5))
    once = replace(run, data=replace(run.data, sampling_probs=(0.9, 0.1)))
    twice = replace(once, data=replace(once.data, **later))
    tokenizer = prepare(run)
    straight = TrainStream(run, tokenizer, 0, 1, None)
    take(straight, 1)
    straight.take_settings(once)
    straight.take_settings(twice)
    position = through_json(straight.position())
    expected = take(straight, 40)  # the workers of "auto" change after a probe of 20 steps

    resumed = TrainStream(run, tokenizer, 0, 1, position)
    resumed.take_settings(twice)
    assert same(take(resumed, 40), expected)
    straight.close()
    resumed.close()


def test_the_text_follows_the_probabilities_from_the_change_on(tmp_path: Path) -> None:
    run = two_sources(tmp_path, "tokens", (0.5, 0.5))
    stream = TrainStream(run, prepare(run), 0, 1, None)
    take(stream, 60)
    half = stream.position()["tokens"]
    stream.take_settings(replace(run, data=replace(run.data, sampling_probs=(0.9, 0.1))))
    take(stream, 4)  # beyond the buffer of the change
    begun = stream.position()["tokens"]
    take(stream, 200)
    drawn = [after - at for after, at in zip(stream.position()["tokens"], begun, strict=True)]
    assert half[0] == pytest.approx(half[1], rel=0.2)
    assert drawn[0] / sum(drawn) == pytest.approx(0.9, abs=0.05)


def test_a_micro_batch_and_workers_that_change_leave_the_rows(tmp_path: Path) -> None:
    run = two_sources(tmp_path, "documents", None)
    tokenizer = prepare(run)
    expected = take(TrainStream(run, tokenizer, 0, 1, None), 24)
    stream = TrainStream(run, tokenizer, 0, 1, None)
    found = take(stream, 8)
    batch, data = replace(run.batch, micro_batch=2 * run.batch.micro_batch), replace(run.data, loader_workers=2)
    stream.take_settings(replace(run, batch=batch, data=data))
    assert stream.workers == 2
    found += take(stream, 8)
    stream.close()
    assert same(found, expected)
