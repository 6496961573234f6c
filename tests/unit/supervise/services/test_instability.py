"""What the supervisor proposes for an instability: by the trainer's events, its checkpoints and its settings."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_train.checkpoints.layout import SavedCheckpoint
from prime_train.core.plans import ChangePlan, write_plan
from prime_train.core.rundir import RunDir
from prime_train.events import Event, InstabilityFound, LaunchAsked, Progress, StepSkipped, TrainerFailed
from prime_train.spec import PrimeTrain, RunSpec
from prime_train.spec.supervision import Instability
from prime_train.supervise.core.fold_instability import parse_texts
from prime_train.supervise.core.state import State, evolve
from prime_train.supervise.services.instability import InstabilityWatch
from tests.fakes.supervisor import fake_run
from tests.unit.supervise.core.test_fold import folded


def run_with(folder: Path, **settings: Any) -> RunSpec:
    return replace(fake_run(folder, 1000), prime_train=PrimeTrain(instability=Instability(**settings)))


def watch_of(run: RunSpec, folder: Path, *saved: int) -> InstabilityWatch:
    checkpoints = [SavedCheckpoint(step, str(folder), 1, "") for step in sorted(saved, reverse=True)]
    program: Any = SimpleNamespace(checkpoints=lambda _run, _run_dir: checkpoints)
    return InstabilityWatch(run, RunDir(folder), program)


def steps(first: int, last: int, loss: float = 2.0) -> list[Event]:
    return [Progress(1, step, loss, None, 0) for step in range(first, last + 1)]


SPIKE = [*steps(1, 100), *steps(101, 103, 9.0)]
NOT_FINITE = [*steps(1, 100), *steps(101, 101, math.nan)]
LOST = [*steps(1, 100), StepSkipped(1, 101, math.nan, 1.0, ""), TrainerFailed(1, 0, "config", "nan", "", "", "")]


def proposal(watch: InstabilityWatch, events: list[Event], state: State | None = None) -> InstabilityFound | None:
    for event in events:
        watch.take(event, judges=True)
    return next(watch.turn(folded(LaunchAsked(1, 0)) if state is None else state), None)


def test_a_spike_lowers_the_rate_that_is_in_force(tmp_path: Path) -> None:
    run = run_with(tmp_path, policy="auto", factor=0.5)
    plan = ChangePlan(version=1, values={"optim.lr": 0.004}, before={}, config={"optim.lr": run.optim.lr})
    write_plan(RunDir(tmp_path).settings, plan)
    found = proposal(watch_of(run, tmp_path, 50), SPIKE)
    assert found is not None
    assert (found.step, found.values, found.go_back_to, found.auto) == (101, ("optim.lr = 0.002",), 0, True)


def test_a_plan_of_another_program_does_not_hide_the_rate_that_is_in_force(tmp_path: Path) -> None:
    run = run_with(tmp_path, policy="auto", factor=0.5)
    for version, values in enumerate([{"optim.lr": 0.0002}, {"optim.lrr": 1, "optim.lr": 9.0}], 1):
        config = {"optim.lr": run.optim.lr}
        write_plan(RunDir(tmp_path).settings, ChangePlan(version=version, values=values, before={}, config=config))
    found = proposal(watch_of(run, tmp_path, 50), SPIKE)
    assert found is not None
    assert found.values == ("optim.lr = 0.0001",), "never a rate above the one in force"


@pytest.mark.parametrize(("events", "action"), [(SPIKE, "roll_back"), (LOST, "lower_rate"), (NOT_FINITE, "lower_rate")])
def test_the_run_goes_back_to_a_checkpoint_before_it(tmp_path: Path, events: list[Event], action: str) -> None:
    run = run_with(tmp_path, policy="auto", action=action)
    found = proposal(watch_of(run, tmp_path, 90, 100, 101, 102), events)
    assert found is not None
    assert (found.step, found.go_back_to, found.auto) == (101, 100, True)


@pytest.mark.parametrize(("events", "skipped"), [(SPIKE, [7, 100, 101, 102, 103]), (LOST, [7, 100, 101])])
def test_its_steps_are_skipped_from_a_checkpoint_at_which_all_ranks_have_the_plan(
    tmp_path: Path, events: list[Event], skipped: list[int]
) -> None:
    run = run_with(tmp_path, policy="auto", action="skip")
    plan = ChangePlan(version=1, values={"optim.skip_steps": [7]}, before={}, config={"optim.skip_steps": []})
    write_plan(RunDir(tmp_path).settings, plan)
    found = proposal(watch_of(run, tmp_path, 90, 95, 96, 97, 98, 100), events)
    assert found is not None
    assert found.values == (f"optim.skip_steps = {skipped}",)
    assert (found.go_back_to, found.auto) == (95, True), "the plan is in force with step 100 at the latest"


@given(every=st.integers(1, 50), late=st.integers(0, 49), saved=st.sets(st.integers(1, 6000), max_size=40))
def test_where_some_steps_are_reported_all_of_the_instability_are_skipped(
    tmp_path_factory: pytest.TempPathFactory, every: int, late: int, saved: set[int]
) -> None:
    """A trainer of short steps reports three times per second, so a spike may be older than its first report."""
    steps = range(1, 104 * every, every)
    first, last = steps[100], steps[102]
    began = first - late % every
    reports: list[Event] = [Progress(1, step, 9.0 if began <= step else 2.0, None, 0) for step in steps[:103]]
    folder = tmp_path_factory.getbasetemp()
    found = proposal(watch_of(run_with(folder, policy="auto", action="skip"), folder, *saved), reports)
    assert found is not None
    usable = [step for step in saved if step + 3 <= first - every]
    assert (found.step, found.go_back_to) == (first, max(usable, default=0))
    if usable:
        skipped = parse_texts(found.values)["optim.skip_steps"]
        assert {*range(began, last + 1)} <= {*skipped}
        assert found.go_back_to + 3 <= min(skipped), "every rank has the plan before the first of them"


def test_a_run_on_rewards_skips_nothing(tmp_path: Path) -> None:
    run = run_with(tmp_path, policy="auto", action="skip")
    found = proposal(watch_of(replace(run, run=replace(run.run, kind="rl")), tmp_path, 50), SPIKE)
    assert found is not None
    assert (found.values, found.go_back_to, found.auto) == ((), 0, False)
    assert found.why == "no step of this trainer can be left out, and the same steps would come again"


def test_what_the_trainer_skipped_itself_is_no_instability(tmp_path: Path) -> None:
    skipped = [StepSkipped(1, step, 9.0, 50.0, "") for step in (101, 102, 103)]
    spikes = steps(101, 103, 9.0)
    pairs = [event for pair in zip(skipped, spikes, strict=True) for event in pair]
    assert proposal(watch_of(run_with(tmp_path), tmp_path), [*steps(1, 100), *pairs, *steps(104, 110)]) is None


def test_the_past_is_read_and_not_judged_and_steps_that_are_made_again_count_once(tmp_path: Path) -> None:
    watch = watch_of(run_with(tmp_path), tmp_path)
    for event in SPIKE:
        watch.take(event, judges=False)
    assert proposal(watch, []) is None
    assert proposal(watch, [LaunchAsked(2, 100), *steps(101, 102, 9.0)]) is None
    assert proposal(watch, steps(103, 103, 9.0)) is not None


@pytest.mark.parametrize(
    ("settings", "saved", "why"),
    [
        ({"policy": "auto", "limit": 2}, (50,), "the policy has made its 2 changes"),
        ({"policy": "auto", "action": "roll_back"}, (), "there is no complete checkpoint before step 101"),
    ],
)
def test_what_the_policy_may_not_do_is_not_done(
    tmp_path: Path, settings: dict[str, Any], saved: tuple[int, ...], why: str
) -> None:
    state = evolve(folded(LaunchAsked(1, 0)), policy_changes=2)
    found = proposal(watch_of(run_with(tmp_path, **settings), tmp_path, *saved), SPIKE, state)
    assert found is not None
    assert (found.auto, found.why) == (False, why)


def test_off_is_off(tmp_path: Path) -> None:
    assert proposal(watch_of(run_with(tmp_path, policy="off"), tmp_path), SPIKE) is None
