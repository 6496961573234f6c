from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from prime_train.trainer.data.batch import IGNORED
from prime_train.trainer.rl.batch import (
    Demonstration,
    Sample,
    share_prompts,
    share_rows,
    to_imitation_batch,
    to_policy_batch,
)
from tests.trainer.rl.rollouts import alone, group, rollout


def test_each_position_has_the_values_of_the_token_that_it_predicts() -> None:
    made = rollout(1, version=7)
    batch = to_policy_batch(alone([Sample(made, 0.5)]), version=7)
    for place in range(len(made.tokens) - 1):
        label = made.tokens[place + 1] if made.sampled[place + 1] else IGNORED
        assert batch.labels[0, place] == label
        assert batch.engine_logprobs[0, place] == torch.tensor(made.logprobs[place + 1])
        assert batch.tokens[0, place] == made.tokens[place]
    assert (batch.labels[0, len(made.tokens) - 1 :] == IGNORED).all()
    assert batch.labelled_tokens == made.answer_tokens
    written = batch.labels != IGNORED
    assert (batch.advantages[written] == 0.5).all()
    assert batch.fresh[written].all()
    assert batch.parts is None


def test_a_sample_that_does_not_count_has_no_label() -> None:
    batch = to_policy_batch(alone([Sample(rollout(1), 0.5, counts=False)]), version=1)
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


@given(
    sizes=st.lists(st.tuples(st.integers(1, 5), st.integers(1, 30), st.integers(1, 3)), max_size=4),
    most=st.integers(1, 6),
)
def test_every_rollout_is_in_one_row_that_computes_no_more_than_rows_of_their_own(
    sizes: list[tuple[int, int, int]], most: int
) -> None:
    samples = [
        Sample(made, 1.0)
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
    rows = alone(Sample(rollout(seed), 1.0) for seed in range(count))
    shares = [share_rows(rows, micro_batch=micro_batch, rank=rank, ranks=ranks) for rank in range(ranks)]
    assert len({len(share) for share in shares}) == 1
    parts = [part for share in shares for part in share]
    assert all(len(part) <= micro_batch for part in parts)
    assert sorted(row.samples[0].rollout.task for part in parts for row in part) == list(range(count))
