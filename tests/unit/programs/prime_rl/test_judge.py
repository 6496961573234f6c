from __future__ import annotations

import math
from dataclasses import replace

from prime_train.checkpoints.layout import SavedCheckpoint
from prime_train.events import CheckpointDeleted, CheckpointSaved, CheckpointStarted, Phase, Progress, TrainerFinished
from prime_train.programs.prime_rl.judge import PrimeRlSample
from prime_train.programs.prime_rl.lines import BatchReady, Ended, MetricsRow, Milestone, PartFailed, SaveBegun, Stepped
from tests.unit.programs.prime_rl.samples import RUN, heard, story


def step(number: int, whole: bool = True) -> SavedCheckpoint:
    return SavedCheckpoint(number, f"/o/checkpoints/step_{number}", 4096, "" if whole else "no .metadata")


# --- steps -----------------------------------------------------------------------------------------


def test_rows_of_a_step_are_reported_together() -> None:
    rows = (
        MetricsRow(0, tokens_seen=900),
        MetricsRow(0, tokens_per_s=50.0),
        MetricsRow(0),
        MetricsRow(0, loss=1.5),
        MetricsRow(0, is_last=True),
    )
    _, told = story(PrimeRlSample(1.0, rows=rows[:2]), PrimeRlSample(2.0, rows=rows[2:]))
    assert told == [Progress(1, 0, 1.5, 50.0, 900)]


def test_a_loss_that_is_no_number_is_reported_as_one() -> None:
    """prime-rl leaves a NaN out of its metrics."""
    _, (told,) = story(PrimeRlSample(1.0, rows=(MetricsRow(3, tokens_per_s=50.0), MetricsRow(3, is_last=True))))
    assert isinstance(told, Progress)
    assert math.isnan(told.loss or 0.0)


def test_the_log_is_read_where_there_are_no_metrics_and_only_there() -> None:
    lines = (("trainer", Stepped(0, 1.0, 10.0)), ("trainer", Stepped(1, 0.5, 11.0)))
    _, told = story(heard(1.0, *lines))
    assert told == [Progress(1, 0, 1.0, 10.0, 0), Progress(1, 1, 0.5, 11.0, 0)]
    rows = (MetricsRow(0, loss=1.0, tokens_per_s=10.0), MetricsRow(0, is_last=True))
    _, told = story(PrimeRlSample(1.0, rows=rows), heard(2.0, *lines))
    assert [event.step for event in told if isinstance(event, Progress)] == [0]


def test_a_launcher_may_be_the_trainer_itself() -> None:
    _, told = story(heard(1.0, ("launcher", Stepped(0, 1.0, 1.0)), ("inference", Stepped(5, 1.0, 1.0))))
    assert told == [Progress(1, 0, 1.0, 1.0, 0)]


def test_a_step_is_reported_once_although_a_resume_writes_it_again() -> None:
    _, told = story(heard(1.0, *(("trainer", Stepped(number, 1.0, 1.0)) for number in (4, 5, 4, 5, 6))))
    assert [event.step for event in told if isinstance(event, Progress)] == [4, 5, 6]


def test_a_batch_that_fills_is_reported_now_and_then() -> None:
    samples = [heard(float(second), ("orchestrator", BatchReady(second, 128))) for second in range(31)]
    _, told = story(*samples, heard(60.0, ("orchestrator", BatchReady(30, 128))))
    assert told == [Phase(1, "train", f"{ready} of 128 rollouts") for ready in (0, 10, 20, 30)]


def test_milestones_count_until_the_first_step() -> None:
    lines = (("trainer", Milestone("Initializing model")), ("trainer", Stepped(0, 1.0, 1.0)))
    _, told = story(heard(1.0, *lines), heard(2.0, ("inference", Milestone("Starting again"))))
    assert [event for event in told if isinstance(event, Phase)] == [Phase(1, "setup", "trainer: Initializing model")]


# --- checkpoints -----------------------------------------------------------------------------------


def test_a_checkpoint_is_reported_when_its_last_part_is_there() -> None:
    memory, told = story(
        PrimeRlSample(0.0, checkpoints=(step(10),)),
        PrimeRlSample(2.0, checkpoints=(step(20, whole=False), step(10))),
        PrimeRlSample(4.0, checkpoints=(step(20, whole=False), step(10))),
        PrimeRlSample(6.0, checkpoints=(step(20), step(10))),
        PrimeRlSample(8.0, checkpoints=(step(20),)),
    )
    assert [type(event) for event in told] == [CheckpointStarted, CheckpointSaved, CheckpointDeleted]
    assert told[1] == CheckpointSaved(1, 20, 4096, 4.0, 4.0)
    assert memory.saved.newest == "/o/checkpoints/step_20"


def test_what_the_trainer_states_that_it_waited_counts() -> None:
    rows = (MetricsRow(20, tokens_per_s=1.0), MetricsRow(20, save_s=1.5, is_last=True))
    _, told = story(
        PrimeRlSample(0.0, checkpoints=()), PrimeRlSample(2.0, checkpoints=(step(20, whole=False),), rows=rows),
        PrimeRlSample(6.0, checkpoints=(step(20),)),
    )  # fmt: skip
    assert told[-1] == CheckpointSaved(1, 20, 4096, 1.5, 4.0)


def test_half_a_checkpoint_of_an_earlier_start_is_old_news() -> None:
    _, told = story(
        PrimeRlSample(0.0, checkpoints=(step(20, whole=False),)),
        PrimeRlSample(2.0, checkpoints=(step(20, whole=False),)),
    )
    assert told == []


def test_a_save_is_a_phase_until_it_is_whole() -> None:
    saving, empty = heard(1.0, ("trainer", SaveBegun(40))), PrimeRlSample(0.0, checkpoints=())
    _, told = story(empty, saving)
    assert told == [Phase(1, "checkpoint", "step 40")]
    _, told = story(
        empty, saving, PrimeRlSample(2.0, checkpoints=(step(40),)), PrimeRlSample(4.0, checkpoints=(step(40),))
    )
    assert [type(event) for event in told] == [Phase, CheckpointSaved, Phase]
    assert told[-1] == Phase(1, "train")


def test_a_save_that_is_over_when_it_is_read_is_no_phase() -> None:
    """A log that is found late says what the metrics have outlived: a hang would be given the time of a save."""
    late = heard(2.0, ("trainer", SaveBegun(4)))
    assert story(heard(1.0, ("trainer", Stepped(7, 1.0, 1.0))), late)[1] == [Progress(1, 7, 1.0, 1.0, 0)]
    _, told = story(PrimeRlSample(0.0, checkpoints=()), PrimeRlSample(1.0, checkpoints=(step(4),)), late)
    assert [type(event) for event in told] == [CheckpointSaved]


# --- the end ---------------------------------------------------------------------------------------


def test_it_has_finished_when_trainer_and_orchestrator_have() -> None:
    memory, told = story(heard(1.0, ("trainer", Ended("trainer"))))
    assert not memory.finished
    assert [type(event) for event in told] == [Phase]
    memory, told = story(
        PrimeRlSample(0.0, checkpoints=(step(20),)),
        heard(1.0, ("trainer", Stepped(19, 0.25, 1.0))),
        heard(2.0, ("trainer", Ended("trainer"))),
        heard(3.0, ("orchestrator", Ended("orchestrator"))),
    )
    assert told[-1] == TrainerFinished(1, 20, 0.25, "/o/checkpoints/step_20")


def test_sft_has_no_orchestrator_to_wait_for() -> None:
    run = replace(RUN, has_orchestrator=False)
    assert story(heard(1.0, ("trainer", Ended("trainer"))), run=run)[0].finished


def test_an_orchestrator_that_never_ends_is_not_waited_for() -> None:
    done = heard(100.0, ("trainer", Ended("trainer")))
    busy = [PrimeRlSample(100.0 + second, written_s=100.0 + second) for second in range(0, 1000, 10)]
    assert not story(done, *busy)[0].finished
    still = [PrimeRlSample(100.0 + second, written_s=110.0) for second in (60, 300, 339)]
    assert not story(done, *still)[0].finished
    assert story(done, *still, PrimeRlSample(440.0, written_s=110.0))[0].finished


def test_a_part_that_failed_is_no_end() -> None:
    lines = (("trainer", Ended("trainer")), ("launcher", PartFailed("orchestrator", 1)))
    assert not story(heard(1.0, *lines), heard(2.0, ("orchestrator", Ended("orchestrator"))))[0].finished
