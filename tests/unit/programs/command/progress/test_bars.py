"""Which progress bar counts the steps of a training."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from prime_train.programs.command.progress.log_progress import LogProgress
from prime_train.registry.trainers import trainer_profile

LOSS = "{'loss': '2.1', 'epoch': '0.5'}\n"
EVALUATION = "\n{'eval_loss': '2.1', 'epoch': '0.5'}\n"
END = "{'train_runtime': '11.6', 'epoch': '1.0'}\n"


def bar(step: int, total: int) -> str:
    return f"\r{100 * step // total:3d}%|█▌   | {step}/{total} [00:04<00:07,  1.68it/s]"


def bars(first: int, last: int, total: int) -> str:
    return "".join(bar(step, total) for step in range(first, last + 1))


def steps(log: str, total: int | None = None) -> list[int | None]:
    profile = trainer_profile("hf")
    reader = LogProgress(profile.lines, profile.phases, total)
    marks = reader.feed(log.encode()) + reader.finish()
    return [mark.step for mark in marks if mark.kind == "step"]


def test_a_bar_with_the_last_step_counts_at_once() -> None:
    assert steps(bars(0, 5, 20), total=20) == [1, 2, 3, 4, 5]
    assert steps("  Total optimization steps = 20\n" + bars(0, 5, 20)) == [1, 2, 3, 4, 5]


def test_a_bar_with_another_total_never_counts() -> None:
    assert steps(bars(0, 20, 20), total=50) == []
    assert steps("  Total optimization steps = 1,000\n" + bars(0, 20, 20) + LOSS) == []


def test_a_bar_alone_is_not_certain() -> None:
    assert steps(bars(0, 20, 20)) == []


def test_a_loss_shows_that_the_only_bar_is_that_of_the_training() -> None:
    assert steps(bars(0, 5, 20) + LOSS + bars(6, 7, 20)) == [1, 2, 3, 4, 5, 6, 7]


def test_an_evaluation_inside_the_training_does_not_count() -> None:
    evaluation = bars(0, 11, 11) + EVALUATION
    log = bars(0, 10, 20) + evaluation + bars(10, 20, 20) + evaluation + END
    assert steps(log) == list(range(1, 21))


def test_a_loop_with_another_inside_is_no_training() -> None:
    assert steps("".join(bar(step, 10) + bars(0, 7, 7) for step in range(1, 10))) == []


def test_a_bar_that_was_left_is_not_that_of_the_training() -> None:
    log = bar(2, 3) + bars(281, 283, 873) + LOSS + bars(283, 285, 873)
    assert steps(log) == [281, 282, 283, 284, 285]
    assert steps(bar(2, 3) + bars(281, 285, 873)) == []


def test_an_evaluation_is_not_taken_for_the_training_in_its_second_round() -> None:
    evaluation = bars(0, 9, 11) + EVALUATION
    assert steps(bar(5, 20) + evaluation + bar(5, 20) + evaluation + bar(6, 20)) == [5, 6]


def test_an_evaluation_before_the_training_does_not_count() -> None:
    log = bars(0, 11, 11) + bars(0, 10, 20) + LOSS + bars(11, 12, 20)
    assert steps(log) == list(range(1, 13))


def test_losses_that_arrive_after_the_last_bar_make_no_evaluation_count() -> None:
    """Standard output in a pipe arrives in blocks, long after the bars on standard error."""
    assert steps(bars(0, 20, 20) + bars(0, 11, 11) + LOSS * 4 + END) == []


def test_an_evaluation_with_as_many_batches_as_there_are_steps_does_not_finish_the_run() -> None:
    log = bars(0, 10, 20) + LOSS + bars(11, 12, 20) + bars(0, 20, 20)
    assert steps(log) == list(range(1, 13))
    assert steps(log + bar(12, 20) + LOSS + bars(13, 14, 20)) == list(range(1, 15))


def test_a_training_that_started_again_counts_after_its_next_loss() -> None:
    log = bars(0, 10, 20) + LOSS + bars(11, 12, 20)
    assert steps(log + bars(0, 5, 20)) == list(range(1, 13))
    assert steps(log + bars(0, 5, 20) + LOSS + bars(6, 7, 20)) == [*range(1, 13), 6, 7]


def test_a_second_training_in_the_same_log_counts() -> None:
    first = bars(0, 20, 20) + LOSS + bar(20, 20) + END
    second = bars(0, 5, 30) + LOSS + bars(6, 7, 30)
    assert steps(first + bars(0, 11, 11)) == list(range(1, 21))
    assert steps(first + second) == [*range(1, 21), *range(1, 8)]


def lightning(*batches: tuple[int, int, int]) -> list[int | None]:
    profile = trainer_profile("lightning")
    log = "".join(
        f"\rEpoch {e}: {100 * n // t:3d}%|█▌ | {n}/{t} [00:04<00:07, 1.68it/s, v_num=0]" for e, n, t in batches
    )
    marks = LogProgress(profile.lines, profile.phases).feed(f"{log}\n".encode())
    assert all(not mark.counts_steps for mark in marks), "a step may have several batches"
    return [mark.step for mark in marks]


def test_batches_are_counted_over_epochs() -> None:
    assert lightning((0, 0, 20), (0, 7, 20), (0, 20, 20), (0, 0, 20), (1, 0, 20), (1, 3, 20)) == [7, 20, 23]
    assert lightning((3, 20, 20), (4, 1, 10), (4, 10, 10)) == [80, 81, 90], "the last epoch is shorter"
    assert lightning((2, 5, 20), (1, 5, 20)) == [45, 25], "it started again"


def test_the_first_epoch_may_have_the_number_1() -> None:
    line = "[epoch={0}][batch={1}/100]:\n\t Train loss/train/total: 2.5\n"
    log = "".join(line.format(epoch, batch) for epoch, batch in ((1, 99), (1, 100), (2, 1)))
    marks = LogProgress(trainer_profile("composer").lines).feed(log.encode())
    assert [mark.step for mark in marks if mark.kind == "step"] == [99, 100, 101]


def test_bars_of_lightning_before_2_show_no_step() -> None:
    """Their total has the batches of the validation too, and the first bars look like those of later versions."""
    texts = (
        "0/18 [00:00<?, ?it/s]",
        "1/18 [00:08<02:29,  8.77s/it]",
        "1/18 [00:08<02:29,  8.77s/it, loss=10.4, v_num=1]",
    )
    log = "".join(f"Epoch 0:   6%|▌         | {text}\n" for text in texts)
    profile = trainer_profile("lightning")
    marks = LogProgress(profile.lines, profile.phases).feed(log.encode())
    assert [(mark.kind, mark.step, mark.loss) for mark in marks] == [("loss", None, 10.4)]


@given(
    st.lists(st.tuples(st.sampled_from(["bar", "other", "loss", "end"]), st.integers(0, 25)), max_size=40),
)
def test_no_step_beyond_the_last_is_claimed(events: list[tuple[str, int]]) -> None:
    texts = {"bar": lambda step: bar(step, 20), "other": lambda step: bar(step, 11)}
    log = "".join(texts[kind](step) if kind in texts else LOSS if kind == "loss" else END for kind, step in events)
    assert all(step is not None and 0 < step <= 20 for step in steps(log, total=20))
    assert all(step is not None and 0 < step <= 20 for step in steps(log))
