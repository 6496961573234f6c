"""`status` and the report show the same figures of a run, from the same events and the same disk."""

from __future__ import annotations

import re
from functools import reduce
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_train.core.rundir import RunDir
from prime_train.events import Evaluated, Event, LaunchAsked, RolloutsFailed, TasksEvaluated
from prime_train.supervise.core.fold import fold
from prime_train.supervise.core.state import State
from prime_train.views.run import history, measures, report
from prime_train.views.run.status import read_status
from prime_train.views.run.status_document import as_lines, status_document
from tests.unit.views.written_runs import (
    BEGAN_S,
    DEATH,
    FIRST_ATTEMPT,
    SECOND_ATTEMPT,
    WHOLE_LIFE,
    Timeline,
    records,
    write_checkpoint,
    write_run,
)

# The last evaluation came after the last checkpoint, so the resume repeats its steps.
REPEATED: Timeline = (
    *FIRST_ATTEMPT,
    (10.5, "trainer-001-rank0", Evaluated(1, 58, 5.25, 4096)),
    (10.6, "trainer-001-rank0", TasksEvaluated(1, 50, "digits", 0.25, 8, 0, 12.0)),
    (10.7, "trainer-001-rank0", TasksEvaluated(1, 58, "digits", 0.5, 8, 0, 12.0)),
    (10.8, "trainer-001-rank0", RolloutsFailed(1, 58, "digits", 3, 8, "ValueError: no digits")),
    *DEATH,
    *SECOND_ATTEMPT[:4],
)
RUNS = {
    "finished": WHOLE_LIFE,
    "its supervisor is gone": FIRST_ATTEMPT,
    "between two attempts": (*FIRST_ATTEMPT, *DEATH),
    "a resume before the last evaluation": REPEATED,
}


@pytest.mark.parametrize("timeline", RUNS.values(), ids=RUNS)
@pytest.mark.parametrize("saved", [(), (40,), (40, 50)], ids=str)
def test_status_and_report_agree(timeline: Timeline, saved: tuple[int, ...], tmp_path: Path) -> None:
    run_dir = write_run(tmp_path / "small", timeline)
    for step in saved:
        write_checkpoint(run_dir, step)
    assert _of_status(run_dir) == _of_report(run_dir)


def _of_status(run_dir: RunDir) -> dict[str, str]:
    status = status_document(read_status(run_dir, BEGAN_S + 60))
    shown = dict(as_lines(status))
    found = {"state": status["state"], "step": shown["step"], "restarts": shown["attempt"].partition(", ")[2]}
    found["checkpoint"] = re.sub(r"\D", "", shown["checkpoint"])
    if "held-out loss" in shown:
        found["held-out"] = shown["held-out loss"].partition(" (")[0]
    if "held-out tasks" in shown:
        found["tasks"] = " ".join(re.findall(r"\d+\.\d+", shown["held-out tasks"])[-1:])
    found["rollouts"] = str(status["rollouts_failed"])
    return found


def _of_report(run_dir: RunDir) -> dict[str, str]:
    gathered = history.gather(run_dir)
    text = report.text(gathered, [], "")
    outcome = re.search(r"\*\*(?:not over \((\w+)\)|(\w+))\*\*: step (.*?) in .*?, (\d+ restarts?)[.;]", text)
    assert outcome is not None
    found = {"state": outcome[1] or outcome[2], "step": outcome[3], "restarts": outcome[4]}
    newest = re.search(r"Newest complete: step ([\d,]+)\.", text)
    found["checkpoint"] = newest[1].replace(",", "") if newest else ""
    if held_out := re.search(r"Held-out loss: (\S+) at step \d+ -> (\S+) at step", text):
        found["held-out"] = f"{held_out[1]} -> {held_out[2]}"
    if scores := history.describe_scores(gathered):
        found["tasks"] = re.findall(r"\d+\.\d+", scores[0])[-1]
    found["rollouts"] = str(sum(event.failed for event in gathered.failed_rollouts))
    return found


def _events(steps: list[tuple[str, int]]) -> list[Event]:
    """Attempts that evaluate at growing steps, each from a step that the one before reached."""
    attempt, reached, found = 1, 0, [LaunchAsked(1, 0)]
    made: list[Event] = list(found)
    for kind, number in steps:
        if kind == "launch":
            attempt, reached = attempt + 1, number % (reached + 1)
            made.append(LaunchAsked(attempt, reached))
        else:
            reached += number
            made.append(Evaluated(attempt, reached, 10.0 - len(made), 4096))
            made.append(TasksEvaluated(attempt, reached, f"tasks {number % 2}", len(made) / 10, 8, 0, 12.0))
    return made


@given(st.lists(st.tuples(st.sampled_from(["evaluate", "evaluate", "launch"]), st.integers(0, 9)), max_size=30))
def test_the_state_has_the_evaluations_of_the_history(steps: list[tuple[str, int]]) -> None:
    found = records([(float(index), "supervisor", event) for index, event in enumerate(_events(steps))])
    state = reduce(fold, found, State())
    evaluations = measures.keep(found, Evaluated, lambda _: "")
    scores = measures.keep(found, TasksEvaluated, lambda one: one.environment)
    first, last = state.first_validation, state.last_validation
    expected = (evaluations[0].loss, evaluations[-1].loss) if evaluations else None
    assert ((first.loss, last.loss) if first and last else None) == expected
    by_environment = {score.environment: (score.first_reward, score.reward) for score in state.task_scores}
    for name, (first_reward, reward) in by_environment.items():
        of = [score.reward for score in scores if score.environment == name]
        assert (first_reward, reward) == (of[0], of[-1])
    assert by_environment.keys() == {score.environment for score in scores}
