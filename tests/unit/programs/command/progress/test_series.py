"""The steps, losses and saves of one log, and which profile takes it."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from prime_train.programs.command.progress.check_log import check_log, find_end
from prime_train.programs.command.progress.log_progress import LogProgress
from prime_train.programs.command.progress.marks import ProgressMark
from prime_train.programs.command.progress.recognise_log import recognise_log
from prime_train.programs.command.progress.series import StepSeries, summarise
from prime_train.registry.trainers import trainer_profile
from prime_train.views.trainers import log_json, log_lines

TITAN = "[rank0]:[titan] 2026-05-18 16:08:57,435 - root - INFO - "
HF = "{'loss': '2.1', 'learning_rate': '4e-05', 'epoch': '0.5'}\n"
TRL = "{'loss': '2.1', 'learning_rate': '4e-05', 'num_tokens': '164', 'epoch': '0.5'}\n"


def series(*steps: int, stream: str = "", total: int | None = None) -> StepSeries:
    marks = [ProgressMark("step", step, total, unit="optimizer step", stream=stream) for step in steps]
    found = summarise(marks).steps
    assert found is not None
    return found


def test_a_series_with_a_gap_and_a_restart() -> None:
    found = series(10, 20, 30, 50, 60, 70, 40, 50, 60, 70, 80, 90, 100, total=1000)
    assert (found.first, found.last, found.count, found.stride, found.total) == (10, 100, 13, 10, 1000)
    assert (found.gap_count, found.gaps) == (1, ((30, 50),))
    assert (found.reset_count, found.resets) == (1, ((70, 40),))


def test_the_last_step_of_one_stage_is_not_that_of_the_next() -> None:
    """Without a last step in its lines a second training has none. One that goes on has it again."""
    steps = ((5741, 5742), (5742, 5742), (1, None), (2, None))
    marks = [ProgressMark("step", step, total, unit="optimizer step") for step, total in steps]
    assert [found and (found.last, found.total) for found in (summarise(marks[:2]).steps, summarise(marks).steps)] == [
        (5742, 5742),
        (2, None),
    ]
    again = summarise([*marks[:2], ProgressMark("step", 5700, 5742, unit="optimizer step")]).steps
    assert again is not None
    assert (again.last, again.total) == (5700, 5742)


def test_a_bar_that_is_ahead_of_the_lines_is_no_step_of_theirs() -> None:
    """Standard error comes before standard output where both are in one file."""
    bars = [ProgressMark("step", step, 50, unit="u", from_bar=True) for step in (3, 4)]
    lines = [ProgressMark("step", step, unit="u") for step in (1, 2, 3, 4)]
    found = summarise([*bars, *lines]).steps
    assert found is not None
    assert (found.first, found.last, found.total, found.reset_count) == (1, 4, 50, 0)


def test_steps_that_vary_have_no_gaps() -> None:
    found = series(1, 4, 5, 9, 11, 20)
    assert (found.stride, found.gap_count) == (None, 0)


def test_the_same_step_of_several_ranks_counts_once() -> None:
    marks = [ProgressMark("step", step, unit="u", stream=f"rank{rank}") for step in (1, 2, 3) for rank in (1, 0)]
    found = summarise([*marks, ProgressMark("step", 4, unit="u", stream="rank0")]).steps
    assert found is not None
    assert (found.count, found.first, found.last, found.reset_count) == (4, 1, 4, 0)


@given(st.lists(st.integers(0, 50), min_size=1, max_size=60))
def test_a_series_holds_only_steps_that_were_seen(steps: list[int]) -> None:
    found = series(*steps)
    assert {found.first, found.last} <= set(steps)
    assert found.count <= len(steps)
    assert all(before > after for before, after in found.resets)
    assert all(before < after for before, after in found.gaps)


def test_the_lines_of_one_save_count_once() -> None:
    kinds = ("step", "save_start", "save_start", "save_done", "save_start", "step", "save_start")
    summary = summarise([ProgressMark(kind, 1) for kind in kinds])  # type: ignore[arg-type]
    assert (summary.saves_begun, summary.saves_done) == (3, 1)
    assert summarise([ProgressMark("save_start", step) for step in (5, 5, 10)]).saves_begun == 2


def test_the_profile_with_most_lines_is_found() -> None:
    assert recognise_log([HF.encode() * 3]).name == "hf"
    found = recognise_log([(HF * 5 + TRL * 2).encode()])
    assert (found.name, found.taken) == ("trl", {"hf": 5, "trl": 2})


def test_bars_and_launchers_show_no_trainer() -> None:
    bar = "\r 40%|████      | 8/20 [00:04<00:07,  1.68it/s]"
    failed = "failed (exitcode: 7) local_rank: 1 (pid: 23914) of binary: python\n"
    found = recognise_log([(bar * 20 + "\n" + failed * 5 + "step 5 done\n").encode()])
    assert (found.name, found.lines) == ("", 26)


def test_an_engine_is_named_only_where_no_trainer_is() -> None:
    engine = (
        "[2026-08-22 10:00:00,123] [INFO] [logging.py:128:log_dist] [Rank 0] step=10, skipped=0, lr=[1e-05], mom=[]\n"
    )
    megatron = " iteration       10/  500000 | consumed samples:       256000 | lm loss: 2.345678E+00 |\n"
    assert recognise_log([engine.encode() * 9]).name == "deepspeed"
    assert recognise_log([(engine * 9 + megatron).encode()]).name == "megatron"


def test_what_a_log_shows_and_does_not_show(tmp_path: Path) -> None:
    step = "step: {step:2}  loss:  2.81340  grad_norm:  0.2804  memory:  9.46GiB(64.99%)  tps: 6,939\n"
    log = "".join(TITAN + step.format(step=number) for number in (1, 10, 20, 30))
    (tmp_path / "a.log").write_text(log + TITAN + "Saving the checkpoint.\n" + TITAN + "Training completed\n")
    checked = check_log(tmp_path / "a.log")
    assert checked.trainer == "torchtitan"
    assert checked.summary.steps is not None
    assert (checked.summary.steps.first, checked.summary.steps.last, checked.summary.saves_begun) == (1, 30, 1)
    assert [text.partition(":")[0] for text in checked.unknown] == [
        "the last step",
        "whether each save was completed",
        "whether it finished",
    ]
    assert find_end("torchtitan", checked.summary) is None, "its last line is there also where the data ended early"


def test_the_text_explains_numbers_that_count_from_0(tmp_path: Path) -> None:
    titan = TITAN + "step: 10  loss:  2.81340  grad_norm:  0.2804  memory:  9.46GiB(64.99%)  tps: 6,939\n"
    found = {}
    for name, log in (("nanogpt", "iter 9: loss 2.1, time 1.00ms, mfu 1.00%\n"), ("torchtitan", titan)):
        (tmp_path / name).write_text(log)
        checked = check_log(tmp_path / name)
        assert (checked.trainer, checked.summary.steps and checked.summary.steps.first) == (name, 10)
        found[name] = dict(log_lines(log_json(checked), checked.summary.steps))
    assert found["nanogpt"]["counted"] == "steps that are done; the numbers in the log begin with 0"
    assert "counted" not in found["torchtitan"]


def test_a_run_that_reached_its_last_step_has_finished(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("".join(f"iter {step}: loss 2.1, time 1.00ms, mfu 1.00%\n" for step in range(9)))
    assert check_log(tmp_path / "a.log", "nanogpt").summary.steps == StepSeries(
        "optimizer step", 1, 9, 9, None, 1, 0, (), 0, ()
    )
    (tmp_path / "b.log").write_text(" iteration       20/      20 | consumed samples:  256000 | lm loss: 2.3E+00 |\n")
    checked = check_log(tmp_path / "b.log")
    assert find_end(checked.trainer, checked.summary) == "finished: 20 of 20 optimizer steps"


def test_a_file_of_metrics_is_read_by_its_content(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 5, "loss": 2.5}\n{"step": 10, "loss": 2.25}\n')
    checked = check_log(tmp_path / "metrics.jsonl")
    assert (checked.kind, checked.trainer) == ("jsonl", "")
    assert checked.summary.steps is not None
    assert (checked.summary.steps.first, checked.summary.steps.last) == (5, 10)


def test_a_line_that_many_scripts_have_copied_names_no_trainer() -> None:
    line = b"step 500: train loss 2.6592, val loss 2.6733\n"
    assert recognise_log([line * 5]).name == ""
    assert recognise_log([line * 5 + b"iter 500: loss 2.1, time 1.00ms, mfu 1.00%\n"]).name == "nanogpt"


def test_a_loss_that_each_rank_prints_counts_once() -> None:
    lines = "".join(f"{rank}: {HF}" for _ in range(3) for rank in (0, 1))
    marks = LogProgress(trainer_profile("hf").lines).feed(lines.encode())
    losses = summarise(marks).losses
    assert losses is not None
    assert losses.count == 3


def test_a_save_of_a_worker_of_nemo_rl_is_no_run_of_megatron() -> None:
    log = "Saving checkpoint for step 2...\n"
    log += (
        "(MegatronPolicyWorker[rank=0] pid=37) saving checkpoint at iteration       0 to r/tmp_step_2/policy/weights\n"
    )
    assert recognise_log([log.encode() * 2]).name == "nemo-rl"
