from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prime_train.trainer.data.order import DocumentOrder
from prime_train.trainer.draws import split


def documents(order: DocumentOrder, buffers: int) -> list[tuple[int, int]]:
    cursors = (0,) * len(order.counts)
    found: list[tuple[int, int]] = []
    for number in range(buffers):
        plan = order.plan_buffer(number, cursors)
        found += zip(plan.source.tolist(), plan.document.tolist(), strict=True)
        cursors = order.next_cursors(plan)
    return found


@settings(deadline=None)
@given(st.integers(2, 500), st.floats(0.001, 0.499), st.integers(0, 2**31))
def test_a_document_is_trained_on_or_held_out_and_both_have_some(count: int, ratio: float, seed: int) -> None:
    train, held_out = split(count, ratio, seed, source=0)
    assert sorted([*train.tolist(), *held_out.tolist()]) == list(range(count))
    assert len(train) >= 1
    assert abs(len(held_out) - max(1, count * ratio)) <= 1


def test_a_single_document_is_trained_on() -> None:
    train, held_out = split(1, 0.1, seed=0, source=0)
    assert (train.tolist(), held_out.tolist()) == ([0], [])


def test_each_epoch_is_another_permutation_of_all_documents() -> None:
    found = [document for _, document in documents(DocumentOrder(3, (10,), None, 4), 5)]
    first, second = found[:10], found[10:]
    assert sorted(first) == sorted(second) == list(range(10))
    assert first != second


def test_another_seed_gives_another_order() -> None:
    assert documents(DocumentOrder(1, (50,), None, 50), 1) != documents(DocumentOrder(2, (50,), None, 50), 1)


@pytest.mark.parametrize(("probs", "expected"), [((0.25, 0.75), 0.25), (None, 0.9), ((0.0, 1.0), 0.0)])
def test_sources_are_drawn_by_their_probability_or_their_size(probs: tuple[float, ...] | None, expected: float) -> None:
    drawn = Counter(source for source, _ in documents(DocumentOrder(0, (90, 10), probs, 100), 100))
    # Five standard deviations of a binomial draw of 10,000.
    assert abs(drawn[0] / 10_000 - expected) <= 5 * np.sqrt(expected * (1 - expected) / 10_000)


def test_each_source_keeps_its_own_epochs() -> None:
    found = documents(DocumentOrder(5, (7, 30), (0.5, 0.5), 16), 20)
    for source, count in ((0, 7), (1, 30)):
        mine = [document for which, document in found if which == source]
        for start in range(0, len(mine) - count + 1, count):
            assert sorted(mine[start : start + count]) == list(range(count))


def test_a_buffer_has_no_more_documents_than_there_are() -> None:
    assert sorted(documents(DocumentOrder(1, (5,), None, 1024), 1)) == [(0, number) for number in range(5)]
    assert len(documents(DocumentOrder(1, (3, 2), (1.0, 0.0), 1024), 1)) == 5
