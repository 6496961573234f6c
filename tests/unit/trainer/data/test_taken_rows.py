"""Rows that are taken for a step can be read in any division, as often as it is repeated."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from prime_train.trainer.data.stream import TrainStream
from prime_train.trainer.data.text_tokenizer import load_tokenizer
from prime_train.trainer.replicas.division import cut, divide
from tests.unit.trainer.data.small_runs import files, small_run, write_texts


@pytest.mark.parametrize("replicas", [1, 2, 3, 5])
def test_the_rows_of_a_step_are_those_of_one_process(tmp_path: Path, replicas: int) -> None:
    run = small_run(files(write_texts(tmp_path / "texts", 40)), micro_batch=1)
    tokenizer = load_tokenizer(run)
    alone, divided = (TrainStream(run, tokenizer, 0, 1, None) for _ in range(2))
    for _ in range(6):  # steps of 7 rows: many buffers, and steps that begin within one
        expected = torch.cat([alone.next_micro_batch().tokens for _ in range(7)])
        taken = divided.take(7)
        for _ in range(2):  # a step that is repeated
            parts = [divide(7, replicas, rank) for rank in range(replicas)]
            found = [taken.read(rows).tokens for part in parts for rows in cut(part, 2)]
            assert torch.equal(torch.cat(found), expected)
        assert divided.position() == alone.position()
