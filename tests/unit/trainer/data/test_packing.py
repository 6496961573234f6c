from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from prime_train.trainer.data.packing import Bins, fill, pack

lengths_and_capacity = st.tuples(st.lists(st.integers(0, 200), max_size=120), st.integers(1, 64))


def spans(bins: Bins) -> list[tuple[int, int, int]]:
    return list(zip(bins.document.tolist(), bins.start.tolist(), bins.length.tolist(), strict=True))


def naive_bins(lengths: list[int], capacity: int) -> int:
    """Best-fit-decreasing as the textbook has it: one piece and one bin at a time."""
    pieces = [min(capacity, length - start) for length in lengths for start in range(0, length, capacity)]
    spaces: list[int] = []
    for piece in sorted(pieces, reverse=True):
        fitting = [space for space in spaces if space >= piece]
        if fitting:
            spaces.remove(min(fitting))
            spaces.append(min(fitting) - piece)
        else:
            spaces.append(capacity - piece)
    return len(spaces)


@settings(deadline=None)
@given(lengths_and_capacity)
def test_every_token_is_packed_once(case: tuple[list[int], int]) -> None:
    lengths, capacity = case
    packed = sorted(
        (document, start + at) for document, start, length in spans(pack(np.asarray(lengths), capacity))
        for at in range(length)
    )  # fmt: skip
    assert packed == [(document, at) for document, length in enumerate(lengths) for at in range(length)]


@settings(deadline=None)
@given(lengths_and_capacity)
def test_no_bin_is_empty_or_over_capacity(case: tuple[list[int], int]) -> None:
    lengths, capacity = case
    bins = pack(np.asarray(lengths), capacity)
    sizes = [int(bins.length[a:b].sum()) for a, b in zip(bins.first[:-1], bins.first[1:], strict=True)]
    assert all(0 < size <= capacity for size in sizes)


@settings(deadline=None)
@given(lengths_and_capacity)
def test_only_documents_longer_than_a_sequence_are_cut_and_no_more_than_they_must(case: tuple[list[int], int]) -> None:
    lengths, capacity = case
    bins = pack(np.asarray(lengths), capacity)
    pieces = np.bincount(bins.document, minlength=len(lengths)).tolist()
    assert pieces == [-(-length // capacity) for length in lengths]


@settings(deadline=None)
@given(lengths_and_capacity)
def test_as_few_bins_as_the_textbook_needs(case: tuple[list[int], int]) -> None:
    lengths, capacity = case
    assert len(pack(np.asarray(lengths), capacity)) == naive_bins(lengths, capacity)


@settings(deadline=None)
@given(lengths_and_capacity)
def test_the_same_lengths_give_the_same_bins(case: tuple[list[int], int]) -> None:
    lengths, capacity = case
    once, again = pack(np.asarray(lengths), capacity), pack(np.asarray(lengths), capacity)
    assert spans(once) == spans(again)
    assert once.first.tolist() == again.first.tolist()


@settings(deadline=None)
@given(lengths_and_capacity)
def test_filled_rows_hold_the_tokens_of_their_pieces_and_then_padding(case: tuple[list[int], int]) -> None:
    lengths, capacity = case
    bins = pack(np.asarray(lengths), capacity)
    tokens = np.arange(1, sum(lengths) + 1, dtype=np.uint16)
    begins = np.cumsum([0, *lengths])
    rows = fill(bins, tokens, np.asarray(lengths, dtype=np.int64), capacity, padding=0)
    assert rows.tokens.shape == (len(bins), capacity)
    for number in range(len(bins)):
        expected: list[int] = []
        for document, start, length in spans(bins)[bins.first[number] : bins.first[number + 1]]:
            begin = begins[document] + start
            expected += tokens[begin : begin + length].tolist()
        padding = capacity - len(expected)
        assert rows.tokens[number].tolist() == expected + [0] * padding
        assert rows.lengths[rows.first[number] : rows.first[number + 1]].sum() == capacity
        assert rows.lengths[rows.first[number + 1] - 1] == padding


def test_a_large_buffer_is_nearly_free_of_padding() -> None:
    lengths = np.clip(np.random.default_rng(0).lognormal(6.2, 1.1, 8192), 8, 60_000).astype(np.int64)
    bins = pack(lengths, 2048)
    fewest = -(-int(lengths.sum()) // 2048)
    assert len(bins) <= fewest + 2
