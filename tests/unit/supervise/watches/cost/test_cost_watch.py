"""A run whose cost so far passes its budget raises an alarm, and one whose price is not known reports that."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from prime_train.core.rundir import RunDir
from prime_train.events import LaunchAsked, Progress, TrainerStarted
from prime_train.spec import PrimeTrain, RunSpec, to_json
from prime_train.spec.supervision import Watches
from prime_train.supervise.core.state import State
from prime_train.supervise.services.used_gpus import UsedGpus
from prime_train.supervise.watches.cost.spent import usd_so_far
from prime_train.supervise.watches.cost.watch import CostWatch
from tests.fakes.supervisor import fake_run
from tests.unit.supervise.core.test_fold import folded

H100 = "NVIDIA H100 80GB HBM3"
HOUR_S = 3600.0


@pytest.fixture(autouse=True)
def shipped_prices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRIME_TRAIN_CACHE", str(tmp_path / "cache"))


def trained(device: str = H100) -> State:
    """Eight GPUs since second 0."""
    started = TrainerStarted(1, 1, 0, 8, device, "bf16", 1, 1, 0)
    return folded(LaunchAsked(1, 0), started, Progress(1, 10, 2.0, 1.0, 1))


def run_with(folder: Path, budget_usd: float | None, cost: str = "alert") -> RunSpec:
    settings = PrimeTrain(budget_usd=budget_usd, watch=Watches(cost=cost))  # type: ignore[arg-type]
    return replace(fake_run(folder / "run", 100), prime_train=settings)


def watch_of(run: RunSpec, folder: Path) -> CostWatch:
    run_dir = RunDir(folder / "run")
    run_dir.path.mkdir(exist_ok=True)
    run_dir.resolved.write_text(to_json(run))
    return CostWatch(run, run_dir, "pause" if run.prime_train.watch.cost == "pause" else "alert")


def answers(watch: CostWatch, state: State, hours: float) -> list[tuple[str, str]]:
    return [(alarm.name, alarm.answer) for alarm in watch.look(state, hours * HOUR_S)]


@pytest.mark.parametrize("answer", ["alert", "pause"])
def test_the_middle_price_decides_when_the_budget_is_spent(tmp_path: Path, answer: str) -> None:
    state = trained()
    one = usd_so_far(state, UsedGpus(H100, 8), HOUR_S)
    assert one is not None
    assert one.low < one.typical < one.high
    watch = watch_of(run_with(tmp_path, one.typical * 10, answer), tmp_path)
    assert answers(watch, state, 10 * one.typical / one.high - 0.01) == []
    assert answers(watch, state, 9.99) == [("budget_spent", "note")]
    assert answers(watch, state, 10.01) == [("budget_spent", answer)]
    (alarm,) = watch.look(state, 10.01 * HOUR_S)
    assert f"8 x {H100}" in alarm.why
    assert f"${10.01 * one.low:,.2f} to ${10.01 * one.high:,.2f}" in alarm.what


def test_an_unknown_price_is_reported_and_not_guessed(tmp_path: Path) -> None:
    watch = watch_of(run_with(tmp_path, 0.01), tmp_path)
    assert answers(watch, trained("AMD EPYC"), 1000) == [("cost_not_known", "note")]


def test_nothing_is_reported_without_a_budget_or_before_the_first_step(tmp_path: Path) -> None:
    assert answers(watch_of(run_with(tmp_path, None), tmp_path), trained(), 1000) == []
    assert answers(watch_of(run_with(tmp_path, 0.01), tmp_path), folded(LaunchAsked(1, 0)), 1000) == []


def test_a_budget_that_changes_while_the_run_trains_counts_at_once(tmp_path: Path) -> None:
    watch = watch_of(run_with(tmp_path, None), tmp_path)
    watch.take_settings(PrimeTrain(budget_usd=1.0))
    assert answers(watch, trained(), 1000) == [("budget_spent", "alert")]
    watch.take_settings(PrimeTrain(budget_usd=1e9))
    assert answers(watch, trained(), 1000) == []
