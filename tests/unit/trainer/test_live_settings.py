"""Every rank puts a plan in force at the same step, whenever it gets the plan, and again after a kill."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_train.core.errors import UserError
from prime_train.core.plans import ChangePlan, drop_plan, plan_path, write_plan
from prime_train.core.rundir import RunDir
from prime_train.events import EventLog, SettingsApplied, read
from prime_train.spec import Batch, Data, Run, RunSpec, Source
from prime_train.supervise.launch.run_directory import write_applied
from prime_train.trainer.attempt import Attempt
from prime_train.trainer.live_settings import LiveSettings, PlannedStep, open_settings
from prime_train.trainer.loops.pretrain import count_micro_batches
from prime_train.trainer.parallel import World
from tests.full_tables import no_free_descriptor

RUN = RunSpec(run=Run(name="a", max_steps=1000), data=Data(sources=(Source(kind="python-stdlib"),)))
RATES = (0.5, 0.25, 0.125)


def plan(version: int) -> ChangePlan:
    return ChangePlan(version=version, values={"optim.lr": RATES[version - 1]}, before={}, config={"optim.lr": 0.001})


class OneRank:
    """A rank of some, with a folder of plans of its own, and the rates of its steps."""

    def __init__(self, folder: Path, rank: int, ranks: int, behind_steps: int) -> None:
        attempt = Attempt(RUN, RunDir(folder), 1, 0, EventLog(folder / "events", f"trainer-001-rank{rank}"), rank)
        self.plans = folder / f"rank{rank}"
        self.live = LiveSettings(attempt, ranks, behind_steps, self.plans, RUN)
        self.rates: list[float] = []

    def reported(self) -> list[SettingsApplied]:
        found = (record.event for record in read(self.live.attempt.run_dir.events))
        return [event for event in found if isinstance(event, SettingsApplied)]

    def launch(self, step: int) -> bool:
        self.live.has_changed(step)
        self.rates.append(self.live.attempt.run.optim.lr)
        return self.live.has_next()


@contextmanager
def opened(count: int, behind_steps: int) -> Iterator[list[OneRank]]:
    with TemporaryDirectory() as folder:
        yield [OneRank(Path(folder), rank, count, behind_steps) for rank in range(count)]


@given(
    arrivals=st.lists(st.lists(st.integers(1, 12), min_size=3, max_size=3), min_size=1, max_size=4),
    behind_steps=st.integers(0, 1),
    read_at_once=st.sets(st.integers(1, 30)),
)
def test_all_ranks_have_the_same_rate_at_each_step(
    arrivals: list[list[int]], behind_steps: int, read_at_once: set[int]
) -> None:
    """`arrivals`: for each rank the steps before which the versions reach it, one after the other."""
    with opened(len(arrivals), behind_steps) as ranks:
        unread: list[tuple[int, int]] = []
        reported: dict[int, int] = {}  # step -> the newest version that rank 0 has reported before it adds to its sum
        for step in range(1, 31):
            for rank, at in zip(ranks, arrivals, strict=True):
                for version in range(1, 4):
                    if max(at[:version]) == step and not plan_path(rank.plans, version).exists():
                        write_plan(rank.plans, plan(version))
            unread.append((step, sum(rank.launch(step) for rank in ranks)))
            reported[step] = max((event.version for event in ranks[0].reported()), default=0)
            # A step that is saved or evaluated is read at once, any other one later.
            while len(unread) > (0 if step in read_at_once else behind_steps):
                one = unread.pop(0)
                for rank in ranks:
                    rank.live.hear(*one)
        assert all(rank.rates == ranks[0].rates for rank in ranks)
        assert [event.step for event in ranks[0].reported()] == [ranks[0].rates.index(rate) + 1 for rate in RATES]
        for version, rate in enumerate(RATES, 1):
            all_had_it = max(max(at[:version]) for at in arrivals)
            first = ranks[0].rates.index(rate) + 1
            assert first >= all_had_it + 2 * (1 + behind_steps)
            # A rank launches `first` when it has read this sum, to which rank 0 adds only what it has reported before.
            assert reported[first - 1 - behind_steps] >= version
        # A version waits for the one before it, for the sum and for the report; the first one for the latter two.
        assert ranks[0].rates.index(RATES[0]) == max(at[0] for at in arrivals) + 1 + 2 * behind_steps


def test_a_plan_that_would_begin_after_the_last_step_is_not_reported(tmp_path: Path) -> None:
    live = open_settings(attempt_in(tmp_path), World(0, 1), [], behind_steps=1)
    write_plan(live.folder, plan(1))
    for step, is_agreed in ((997, False), (996, True)):
        assert live.has_next()
        live.hear(step, 1)
        assert bool(live.agreed_position()) is is_agreed
    events = [record.event for record in read(live.attempt.run_dir.events)]
    assert [event.step for event in events if isinstance(event, SettingsApplied)] == [1000]


def test_a_replica_that_takes_over_reports_what_the_others_have_agreed_on(tmp_path: Path) -> None:
    there = open_settings(attempt_in(tmp_path / "there"), World(0, 1), [], behind_steps=0)
    write_plan(there.folder, plan(1))
    assert there.has_next()
    there.hear(5, 1)
    here = open_settings(attempt_in(tmp_path / "here"), World(0, 1), [], 0, there.agreed_position())
    here.has_changed(7)
    events = [record.event for record in read(here.attempt.run_dir.events)]
    assert [event.step for event in events if isinstance(event, SettingsApplied)] == [7]


def attempt_in(folder: Path, number: int = 1, resume_step: int = 0, run: RunSpec = RUN) -> Attempt:
    log = EventLog(folder / "events", f"trainer-{number:03d}-rank0")
    return Attempt(run, RunDir(folder), number, resume_step, log, 0)


def test_a_resumed_attempt_puts_each_version_in_force_at_its_step(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    for version in (1, 2):
        write_plan(run_dir.settings, plan(version))
    saved = LiveSettings(attempt_in(tmp_path), 1, 0, run_dir.settings, RUN)
    saved.resume([], [PlannedStep(3, plan(1))])
    assert saved.has_changed(3)
    write_applied(((1, 3), (2, 9)), run_dir, 2)

    live = open_settings(attempt_in(tmp_path, 2, 5), World(0, 1), saved.position, behind_steps=0)
    rates = {}
    for step in range(6, 11):
        live.has_changed(step)
        assert live.has_next() is False  # version 2 is known already
        rates[step] = live.attempt.run.optim.lr
    assert rates == {6: 0.5, 7: 0.5, 8: 0.5, 9: 0.25, 10: 0.25}
    applied = [record.event for record in read(run_dir.events) if isinstance(record.event, SettingsApplied)]
    assert [(event.attempt, event.version, event.step) for event in applied] == [(1, 1, 3), (2, 1, 3), (2, 2, 9)]


def test_a_dropped_change_is_passed_at_once_and_the_next_one_comes(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    for version in (1, 2):
        write_plan(run_dir.settings, plan(version))
    drop_plan(run_dir.settings, 1)
    write_applied(((1, 100),), run_dir, 2, 5)
    live = open_settings(attempt_in(tmp_path, 2, 5), World(0, 1), [], behind_steps=0)
    rates = []
    for step in range(6, 10):
        live.has_changed(step)
        rates.append(live.attempt.run.optim.lr)
        live.hear(step, int(live.has_next()))
    assert rates == [RUN.optim.lr, RUN.optim.lr, RATES[1], RATES[1]]
    assert [one["plan"]["values"] for one in live.position] == [{}, {"optim.lr": RATES[1]}]


def test_a_value_that_the_config_has_changed_since_counts(tmp_path: Path) -> None:
    edited = replace(RUN, optim=replace(RUN.optim, lr=0.01))
    live = open_settings(attempt_in(tmp_path, run=edited), World(0, 1), [], 0)
    live.resume([], [PlannedStep(1, plan(1))])
    assert live.has_changed(1)
    assert live.attempt.run.optim.lr == 0.01


def test_a_checkpoint_on_another_machine_brings_its_plans(tmp_path: Path) -> None:
    there, here = tmp_path / "there", tmp_path / "here"
    live = open_settings(attempt_in(there), World(0, 1), [], 0)
    live.resume([], [PlannedStep(1, plan(1))])
    live.has_changed(1)
    again = open_settings(attempt_in(here, 2, 5), World(0, 1), live.position, 0)
    assert again.has_changed(6)
    assert again.attempt.run.optim.lr == 0.5
    assert plan_path(RunDir(here).settings, 1).is_file()


@pytest.mark.parametrize(
    "content", ["", "[]", '{"version": 1}', '{"version": 1, "values": {"optim.lr": -1}, "before": {}}']
)
def test_a_file_that_is_no_plan_is_not_applied(tmp_path: Path, content: str) -> None:
    run_dir = RunDir(tmp_path)
    run_dir.settings.mkdir()
    plan_path(run_dir.settings, 1).write_text(content)
    live = open_settings(attempt_in(tmp_path), World(0, 1), [], 0)
    assert not live.has_next()
    assert not live.has_next()


@pytest.mark.parametrize(("name", "is_allowed"), [("cleaning:lower", True), ("os:system", False)])
def test_a_plan_adds_only_code_that_the_config_allows(tmp_path: Path, name: str, is_allowed: bool) -> None:
    run = replace(RUN, data=replace(RUN.data, allowed_transforms=("cleaning:lower",)))
    attempt = attempt_in(tmp_path, run=run)
    write_plan(attempt.run_dir.settings, replace(plan(1), values={"data.transforms": [name]}))
    live = open_settings(attempt, World(0, 1), [], 0)
    assert live.has_next() is is_allowed


@pytest.mark.parametrize("content", ["", "{}", '{"applied": [1]}', '{"applied": [[1, 9]]}'])
def test_changes_of_an_earlier_attempt_that_cannot_be_read_end_the_attempt(tmp_path: Path, content: str) -> None:
    run_dir = RunDir(tmp_path)
    run_dir.attempt(2).mkdir(parents=True)
    run_dir.applied_settings(2).write_text(content)
    with pytest.raises(UserError, match="same changes at the same steps"):
        open_settings(attempt_in(tmp_path, 2, 5), World(0, 1), [], 0)


def test_a_plan_that_cannot_be_read_for_a_moment_is_looked_for_again(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run_dir = RunDir(tmp_path)
    live = open_settings(attempt_in(tmp_path), World(0, 1), [], 0)
    write_plan(run_dir.settings, plan(1))
    with no_free_descriptor():
        assert not live.has_next()
        assert not live.has_next()
    assert capfd.readouterr().err.count("is not read yet") == 1
    assert live.has_next()


@pytest.mark.parametrize(("micro_batch", "ranks", "count"), [(2, 2, 2), (4, 2, 1), (4, 4, None), (3, 2, None)])
def test_a_step_without_its_whole_data_ends_the_attempt(micro_batch: int, ranks: int, count: int | None) -> None:
    run = replace(RUN, batch=Batch(micro_batch=micro_batch, global_batch=8))
    if count is not None:
        assert count_micro_batches(run, 5, ranks) == count
        return
    with pytest.raises(UserError, match=f"8 sequences of step 5 do not divide by {micro_batch} x {ranks} ranks"):
        count_micro_batches(run, 5, ranks)
