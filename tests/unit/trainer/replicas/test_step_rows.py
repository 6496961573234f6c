"""Rows of steps that other replicas repeat with another batch: none is lost, none is used twice."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from prime_train.trainer.data.stream import TrainStream
from prime_train.trainer.data.text_tokenizer import load_tokenizer
from prime_train.trainer.replicas.division import cut, divide
from prime_train.trainer.replicas.step_rows import Position, StepRows
from tests.unit.trainer.data.small_runs import files, small_run, write_texts

_PART = 3  # rows of each replica
_STEPS = 30


@pytest.mark.parametrize("seed", range(4))
def test_steps_that_are_repeated_with_another_batch_use_each_row_once(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    sources = [files(write_texts(tmp_path / str(number), 40, number)) for number in range(2)]
    run = small_run(*sources, sampling_probs=(0.5, 0.5))
    tokenizer = load_tokenizer(run)
    changed = replace(run, data=replace(run.data, sampling_probs=(0.9, 0.1)))
    change = chance.randrange(_STEPS)

    def open_rows(position: Position | None) -> TrainStream:
        return TrainStream(run, tokenizer, 0, 1, position)

    rows, straight = StepRows(open_rows, None, open_rows(None)), open_rows(None)
    position: Position | None = None
    in_force, repeated = run, 0
    for step in range(_STEPS):
        if step == change:
            in_force = changed
            rows.take_settings(in_force)
        tries = [chance.randint(1, 3) for _ in range(chance.choice((1, 1, 2, 3)))]
        for present in tries:  # the last one is committed
            taken = rows.take(in_force, present * _PART)
            parts = [divide(present * _PART, present, rank) for rank in range(present)]
            found = torch.cat([taken.read(one).tokens for part in parts for one in cut(part, 2)])
        repeated += len(set(tries)) > 1
        if step == change:
            straight.take_settings(changed)
        assert torch.equal(found, straight.take(len(found)).read(range(len(found))).tokens)
        if chance.random() < 0.1 and position is not None:  # another replica joins before the step is committed
            joined = StepRows(open_rows, position, open_rows(position))
            joined.take_settings(in_force)
            assert torch.equal(joined.take(in_force, len(found)).read(range(len(found))).tokens, found)
        position = rows.commit()
        assert position == straight.position()
    assert repeated > 3
