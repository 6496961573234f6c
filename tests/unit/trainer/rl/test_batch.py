"""The micro-batches of rollouts against a list of positions, and how rows are shared."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from prime_train.trainer.batch import IGNORED
from prime_train.trainer.rl.batch import (
    Demonstration,
    JudgedRollout,
    PolicyRow,
    share_prompts,
    share_rows,
    to_imitation_batch,
    to_policy_batch,
)
from tests.unit.trainer.rl.made_rollouts import alone, group, rollout

groups = st.lists(st.tuples(st.integers(1, 5), st.integers(1, 30), st.integers(1, 3)), max_size=4)


class Cell(NamedTuple):
    """One position of a row. The defaults are those of padding."""

    token: int = 0
    position: int = 0
    part: int = -1
    label: int = IGNORED
    logprob: float = 0.0
    advantage: float = 0.0
    fresh: bool = False


def list_cells(row: PolicyRow, version: int) -> Iterator[Cell]:
    """The definition: what is shared, and then each rollout, whose positions have the values of the following token."""
    for place in range(row.shared):
        yield Cell(row.samples[0].rollout.tokens[place], place, 0)
    for number, sample in enumerate(row.samples, 1):
        made = sample.rollout
        for place in range(row.shared, len(made.tokens) - 1):
            label = made.tokens[place + 1] if sample.counts and made.sampled[place + 1] else IGNORED
            fresh = made.version == version
            yield Cell(made.tokens[place], place, number, label, made.logprobs[place + 1], sample.advantage, fresh)


def samples_of(sizes: list[tuple[int, int, int]]) -> list[JudgedRollout]:
    """Groups of rollouts with other versions and advantages, of which some do not count and one has no token."""
    made = [
        each for seed, size in enumerate(sizes) for each in group(seed, size[0], prompt_tokens=size[1], turns=size[2])
    ]
    samples = [
        JudgedRollout(replace(each, version=number % 3), 0.3 * number - 1, counts=number % 4 > 0)
        for number, each in enumerate(made)
    ]
    return [*samples, JudgedRollout(replace(rollout(1), tokens=(), sampled=(), logprobs=()), 1.0)]


def bit_equal(found: Tensor, expected: Tensor) -> bool:
    return found.dtype == expected.dtype and torch.equal(found, expected)


@given(sizes=groups, most=st.integers(1, 6), version=st.integers(0, 3))
def test_a_batch_has_the_values_of_each_position(sizes: list[tuple[int, int, int]], most: int, version: int) -> None:
    rows = share_prompts(samples_of(sizes), most)
    batch = to_policy_batch(rows, version)
    length = batch.tokens.shape[1]
    assert length % 8 == 0
    assert length - 8 < max(1, *(row.length for row in rows)) <= length
    cells = [list(list_cells(row, version)) for row in rows]
    cells = [[*row, *[Cell()] * (length - len(row))] for row in cells]
    assert bit_equal(batch.tokens, torch.tensor([[cell.token for cell in row] for row in cells]))
    assert bit_equal(batch.positions, torch.tensor([[cell.position for cell in row] for row in cells]))
    assert (batch.parts is None) == all(row.shared == 0 for row in rows)
    if batch.parts is not None:
        assert bit_equal(batch.parts, torch.tensor([[cell.part for cell in row] for row in cells]))
    flat = [cell for row in cells for cell in row]
    counted = [cell for cell in flat if cell.label != IGNORED]
    places = [place for place, cell in enumerate(flat) if cell.label != IGNORED]
    assert bit_equal(batch.places, torch.tensor(places, dtype=torch.int64))
    assert bit_equal(batch.labels, torch.tensor([cell.label for cell in counted], dtype=torch.int64))
    assert bit_equal(batch.engine_logprobs, torch.tensor([cell.logprob for cell in counted]))
    assert bit_equal(batch.advantages, torch.tensor([cell.advantage for cell in counted]))
    assert bit_equal(batch.fresh, torch.tensor([cell.fresh for cell in counted], dtype=torch.bool))
    assert batch.labelled_tokens == len(counted)


def test_a_sample_that_does_not_count_has_no_label() -> None:
    batch = to_policy_batch(alone([JudgedRollout(rollout(1), 0.5, counts=False)]), version=1)
    assert batch.labelled_tokens == 0


def test_an_empty_micro_batch_has_one_row_without_labels() -> None:
    assert to_policy_batch([], version=1).labelled_tokens == 0
    assert to_policy_batch([], version=1).tokens.shape[0] == 1
    assert to_imitation_batch([]).labelled_tokens == 0


def test_an_imitated_row_has_the_labels_of_the_assistant() -> None:
    batch = to_imitation_batch([Demonstration((5, 6, 7, 8), (False, False, True, True))])
    assert batch.labels[0, :3].tolist() == [IGNORED, 7, 8]
    assert (batch.labels[0, 3:] == IGNORED).all()
    assert batch.positions[0].tolist() == list(range(batch.tokens.shape[1]))


@given(sizes=groups, most=st.integers(1, 6))
def test_every_rollout_is_in_one_row_that_computes_no_more_than_rows_of_their_own(
    sizes: list[tuple[int, int, int]], most: int
) -> None:
    samples = [
        JudgedRollout(made, 1.0)
        for seed, (count, prompt, turns) in enumerate(sizes)
        for made in group(seed, count, prompt_tokens=prompt, turns=turns)
    ]
    rows = share_prompts(samples, most)
    assert sorted(id(sample) for row in rows for sample in row.samples) == sorted(map(id, samples))
    for row in rows:
        assert row.sequences <= most
        assert row.length <= sum(sample.positions for sample in row.samples)
        assert row.length**2 <= sum(sample.positions**2 for sample in row.samples)
        assert len({sample.rollout.tokens[: row.shared + 1] for sample in row.samples}) == 1
    written = sum(sample.rollout.answer_tokens for sample in samples)
    assert to_policy_batch(rows, version=1).labelled_tokens == written


@given(count=st.integers(0, 20), micro_batch=st.integers(1, 6), ranks=st.integers(1, 4))
def test_the_ranks_share_every_row_once_in_equally_many_micro_batches(count: int, micro_batch: int, ranks: int) -> None:
    rows = alone(JudgedRollout(rollout(seed), 1.0) for seed in range(count))
    shares = [share_rows(rows, micro_batch=micro_batch, rank=rank, ranks=ranks) for rank in range(ranks)]
    assert len({len(share) for share in shares}) == 1
    parts = [part for share in shares for part in share]
    assert all(len(part) <= micro_batch for part in parts)
    assert sorted(row.samples[0].rollout.task for part in parts for row in part) == list(range(count))
