"""The last line of a training, and what may follow it."""

from __future__ import annotations

import pytest

from prime_train.programs.command.progress.end_line import EndLine
from prime_train.programs.command.progress.log_progress import LogProgress
from prime_train.programs.command.progress.marks import ProgressMark
from prime_train.registry.trainers import trainer_profile

BAR = "Epoch 0: 100%|██████████| {0}/20 [00:04<00:00,  1.68it/s, v_num=0, train_loss=2.310]\n"
END = "`Trainer.fit` stopped: `max_steps=20` reached.\n"
SEARCH = "Restoring states from the checkpoint path at /content/.lr_find_a774da07.ckpt\n"


def is_seen(log: str) -> bool:
    end_line = EndLine()
    for mark in LogProgress(trainer_profile("lightning").lines).feed(log.encode()):
        end_line.see(mark)
    return end_line.is_seen


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        (BAR.format(20) + END, True),
        (BAR.format(20) + END + BAR.format(20), True),  # the bar is drawn once more
        (BAR.format(20) + END + SEARCH, False),
        (BAR.format(20) + END + SEARCH + BAR.format(3), False),
        (BAR.format(20) + END + BAR.format(1), False),  # a second training in the same script
        (BAR.format(20) + END + SEARCH + BAR.format(20) + END, True),
    ],
)
def test_a_training_after_the_line_makes_it_that_of_another_one(log: str, expected: bool) -> None:
    assert is_seen(log) is expected


def test_the_last_steps_of_another_rank_change_nothing() -> None:
    end_line = EndLine()
    marks = [ProgressMark("step", step, stream="rank0") for step in (90, 100)]
    for mark in (*marks, ProgressMark("exit"), *marks):
        end_line.see(mark)
    assert end_line.is_seen
    end_line.see(ProgressMark("step", 110))
    assert not end_line.is_seen
