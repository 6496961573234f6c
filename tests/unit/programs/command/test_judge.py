"""Exit code 0 is no proof that a training finished."""

from __future__ import annotations

from dataclasses import replace

import pytest

from prime_train.events import TrainerFailed, TrainerFinished, TrainerStopped
from prime_train.programs.command.judge import EndRules, SeenEnd, judge_end

DESCRIBED = EndRules("a trainer", is_described=True, zero_is_finished=False, end_line=True)
UNDESCRIBED = EndRules("somebody's", is_described=False, zero_is_finished=True, end_line=True)
SEEN = SeenEnd(1, 0, 13, 0, None, 0, False, False, False, "/log")


def test_the_last_step_or_the_last_line_is_the_end() -> None:
    at_end = judge_end(DESCRIBED, replace(SEEN, step=60, target=60))
    assert isinstance(at_end, TrainerFinished)
    assert (at_end.step, at_end.note) == (60, "")
    assert isinstance(judge_end(DESCRIBED, replace(SEEN, has_end_line=True)), TrainerFinished)
    by_checkpoint = judge_end(DESCRIBED, replace(SEEN, step=0, newest_complete=60, target=60))
    assert isinstance(by_checkpoint, TrainerFinished)


@pytest.mark.parametrize(
    "seen",
    [
        replace(SEEN, target=60),
        replace(SEEN, target=60, has_stop_line=True),
        replace(SEEN, has_end_line=True, has_stop_line=True),
        SEEN,
    ],
)
def test_a_described_trainer_that_exits_with_0_before_its_end_has_not_finished(seen: SeenEnd) -> None:
    """As after a SIGTERM of somebody else, which many trainers answer with exit code 0."""
    event = judge_end(DESCRIBED, seen)
    assert isinstance(event, TrainerFailed)
    assert event.cause_class == "unknown"  # tried again
    assert "exited with 0 at step 13" in event.what


def test_an_exit_with_0_after_a_line_about_a_stop_is_no_end() -> None:
    rules = replace(DESCRIBED, zero_is_finished=True)
    assert isinstance(judge_end(rules, SEEN), TrainerFinished)
    assert isinstance(judge_end(rules, replace(SEEN, has_stop_line=True)), TrainerFailed)


def test_without_any_progress_another_try_would_do_the_same() -> None:
    for seen in (replace(SEEN, step=0), replace(SEEN, step=20, first_step=20, target=60)):
        event = judge_end(DESCRIBED, seen)
        assert isinstance(event, TrainerFailed)
        assert event.cause_class == "config"


def test_the_end_of_a_trainer_without_a_profile_is_not_known() -> None:
    event = judge_end(UNDESCRIBED, replace(SEEN, step=0))
    assert isinstance(event, TrainerFinished)
    assert event.note.startswith("exit 0; whether it finished is not known")
    early = judge_end(UNDESCRIBED, replace(SEEN, target=60))  # the config says the last step, and its lines the present
    assert isinstance(early, TrainerFailed)


def test_a_stop_of_ours_is_a_stop_also_with_an_end_line() -> None:
    event = judge_end(DESCRIBED, replace(SEEN, is_stopping=True, has_end_line=True, newest_complete=10))
    assert event == TrainerStopped(1, 10)


def test_exit_codes_have_the_meaning_that_the_config_or_the_profile_gives_them() -> None:
    rules = replace(DESCRIBED, finished=(3,), failed=(7,), resumes=(16,), bad_node=(17,))
    assert isinstance(judge_end(rules, replace(SEEN, returncode=3)), TrainerFinished)
    classes = {}
    for code in (7, 16, 17):
        event = judge_end(rules, replace(SEEN, returncode=code))
        assert isinstance(event, TrainerFailed)
        classes[code] = event.cause_class
    assert classes == {7: "config", 16: "unknown", 17: "hardware"}
    assert judge_end(rules, replace(SEEN, returncode=1)) is None  # the logs say more
