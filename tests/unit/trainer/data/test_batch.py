from __future__ import annotations

import numpy as np
import torch

from prime_train.trainer.batch import IGNORED
from prime_train.trainer.data.packing import Rows, join, to_batch

# Two rows of 6: pieces of 3 and 2 with one position of padding; one piece of 6 without padding.
ROWS = Rows(
    tokens=np.asarray([[5, 6, 7, 8, 9, 0], [1, 2, 3, 4, 5, 6]], dtype=np.uint16),
    lengths=np.asarray([3, 2, 1, 6, 0]),
    first=np.asarray([0, 3, 5]),
)


def test_labels_stay_within_a_piece() -> None:
    batch = to_batch(ROWS)
    assert batch.tokens.tolist() == [[5, 6, 7, 8, 9, 0], [1, 2, 3, 4, 5, 6]]
    assert batch.labels.tolist() == [[6, 7, IGNORED, 9, IGNORED, IGNORED], [2, 3, 4, 5, 6, IGNORED]]
    assert batch.labelled_tokens == 8


def test_positions_restart_and_padding_is_a_document_of_its_own() -> None:
    batch = to_batch(ROWS)
    assert batch.positions.tolist() == [[0, 1, 2, 0, 1, 0], [0, 1, 2, 3, 4, 5]]
    assert batch.documents.tolist() == [[0, 0, 0, 1, 1, 2], [0, 0, 0, 0, 0, 0]]
    assert {values.dtype for values in (batch.tokens, batch.labels, batch.positions, batch.documents)} == {torch.int64}


def test_padding_of_several_positions_has_no_labels() -> None:
    rows = Rows(np.asarray([[3, 4, 0, 0, 0, 0]]), np.asarray([2, 4]), np.asarray([0, 2]))
    assert to_batch(rows).labels.tolist() == [[4, *[IGNORED] * 5]]


def test_rows_can_be_sliced_reordered_and_joined() -> None:
    whole = to_batch(ROWS)
    parts = to_batch(join([ROWS.slice(0, 1), ROWS.slice(1, 2)]))
    turned = to_batch(ROWS.take(np.asarray([1, 0])))
    for name in ("tokens", "labels", "positions", "documents"):
        assert torch.equal(getattr(parts, name), getattr(whole, name))
        assert torch.equal(getattr(turned, name), getattr(whole, name).flip(0))
