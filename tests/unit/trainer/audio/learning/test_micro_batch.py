"""What is random is a function of seed and place; labels that cannot be learned are refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from prime_train.core.errors import UserError
from prime_train.spec.audio import AudioObjective
from prime_train.trainer.audio.learning.micro_batch import draw
from tests.unit.trainer.audio.learning import small


@pytest.mark.parametrize("objective", ["masked_autoencoder", "lejepa"])
def test_draws_are_those_of_the_place(objective: AudioObjective) -> None:
    audio = small.config(objective)
    together = draw(audio, 3, np.arange(8))
    ranks = [draw(audio, 3, np.arange(8)[half]) for half in (slice(0, 4), slice(4, 8))]  # of two ranks
    for number in range(1 if objective == "masked_autoencoder" else 2):  # not the directions, of a whole micro-batch
        assert torch.equal(together[number], torch.cat([drawn[number] for drawn in ranks]))
    assert all(map(torch.equal, draw(audio, 3, np.arange(4)), ranks[0]))
    assert not torch.equal(draw(audio, 4, np.arange(8))[0], together[0])
    assert len({tuple(row.flatten().tolist()) for row in together[0]}) == 8


@settings(max_examples=20)
@given(st.integers(0, 2**40))
def test_views_are_windows_without_repeats(place: int) -> None:
    audio = small.config("lejepa")
    views = draw(audio, 0, np.array([place]))[0][0]  # (V, K)
    assert views.shape == (4, 9)  # three quarters of 3 times with 4 pitches
    for view in views:
        assert len(set(view.tolist())) == 9
        assert int(view.min()) >= 0
        assert int(view.max()) < 24
        assert int(view.max()) // 4 - int(view.min()) // 4 < 3


@settings(max_examples=20)
@given(st.integers(0, 2**40))
def test_orders_are_permutations(place: int) -> None:
    (order,) = draw(small.config("masked_autoencoder"), 0, np.array([place]))
    assert sorted(order[0].tolist()) == list(range(24))


def test_clips_without_labels_count_where_labels_are_not_needed() -> None:
    labels = [[1], [-1], [4]]
    found = [
        small.micro_batch(small.config(objective), 3, labels=labels).labelled_tokens for objective in small.OBJECTIVES
    ]
    assert found == [2, 3, 3]


@pytest.mark.parametrize(
    ("labels", "where", "fix"),
    [
        ([[0], [7]], "audio.classes", "audio.classes = 8"),
        ([[0, -1], [1, 2]], "audio.multi_label", "audio.multi_label = true"),
    ],
)
def test_other_labels_are_refused(labels: list[list[int]], where: str, fix: str) -> None:
    with pytest.raises(UserError) as caught:
        small.micro_batch(small.AUDIO, 2, labels=labels)
    assert (caught.value.where, caught.value.fix) == (where, fix)
