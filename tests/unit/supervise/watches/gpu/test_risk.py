"""Twelve days in the lives of GPUs, played by a driver, and the supervisor's own decisions about them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import tomli
from hypothesis import given
from hypothesis import strategies as st

from prime_train import events
from prime_train.core.errors import UserError
from prime_train.core.rundir import RunDir, make_folder
from prime_train.registry.gpu_risk import LARGEST, parse_model, read_model, shipped_model, write_text
from prime_train.spec.supervision import GpuRiskSettings
from prime_train.supervise.answers.commands import answer_command
from prime_train.supervise.core.fold_drains import find_gpu_request
from prime_train.supervise.core.gpu_stages import find_stage
from prime_train.supervise.processes.requests import COMMAND_REQUESTED, Request
from prime_train.supervise.services.watch_runner import WatchRunner
from prime_train.supervise.watches.gpu.risk import teach
from prime_train.supervise.watches.gpu.risk_report import RiskReport
from prime_train.supervise.watches.gpu.watch import GpuWatch
from tests.unit.supervise.core.test_commands import GPUS, World, opened

HOURS = 12
NEVER = HOURS * 60


@dataclass(frozen=True)
class History:
    """Half a day of GPU 1, of three. `at`: what its driver reports in a minute; `xids`: minute to number."""

    name: str
    at: Callable[[int], dict[str, Any]] = lambda _minute: {}
    xids: Mapping[int, int] = field(default_factory=dict)
    fault_min: int = NEVER  # when it fails for good
    announces: bool = False
    most_drains: int = 1
    everywhere: bool = False  # all GPUs report the same

    @property
    def is_healthy(self) -> bool:
        return self.fault_min == NEVER


def since(minute: int, first: int) -> int:
    return max(0, minute - first)


HISTORIES = [
    History("rows are remapped again and again", lambda m: {"remapped_rows": since(m, 60) // 30},
            {90: 63, 150: 63, 210: 63}, fault_min=300, announces=True),
    History("a row waits for a reset, and single-bit errors come at a high rate", lambda m: {"remap_pending": m > 120},
            {119: 63, 130: 92}, fault_min=200, announces=True),
    History("corrected errors grow far beyond those of the others", lambda m: {"corrected_errors": 60 * since(m, 100)},
            fault_min=600, announces=True),
    History("transfers over PCIe are repeated", lambda m: {"pcie_replays": 200 * since(m, 200)},
            fault_min=400, announces=True),
    History("hot and throttled, with errors", lambda m: {"temperature_c": 91 if m > 100 else 60, "slow_reasons": 0x40 if
            m > 100 else 0, "corrected_errors": 20 * since(m, 100)}, fault_min=500, announces=True),
    History("an NVLink error before the end", xids={240: 74}, fault_min=360, announces=True),
    History("it falls off the bus without a sign", fault_min=300),
    History("its firmware dies without a sign", fault_min=30),
    History("well", most_drains=0),
    History("well, with some corrected errors and a warm hour", lambda m: {"corrected_errors": m // 30, "temperature_c":
            88 if 200 < m < 260 else 70, "slow_reasons": 0x20}, most_drains=0),
    History("well, and all GPUs of the machine are throttled", lambda m: {"slow_reasons": 0x8 if m > 100 else 0,
            "corrected_errors": 3 * m}, most_drains=0, everywhere=True),
    History("well, although rows were remapped", lambda m: {"remapped_rows": 2 if m > 100 else 0,
            "pcie_replays": 30 * since(m, 150)}, {100: 63, 101: 63, 400: 63, 500: 13}),
]  # fmt: skip


class Player:
    """The child of the watch: it has the lines that the test puts there."""

    ended, is_restarting, age_s, arguments = None, False, 0.0, ()

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []

    def take(self) -> list[dict[str, Any]]:
        lines, self.lines = self.lines, []
        return lines

    def keep(self, **_more: Any) -> None:
        """It needs nothing to live."""

    def processes(self) -> tuple[()]:
        return ()


WELL = {"uncorrected_errors": 0, "corrected_errors": 0, "remapped_rows": 0, "pcie_replays": 0, "temperature_c": 60}
WELL |= {"slowdown_c": 92, "slow_reasons": 0, "remap_pending": False, "remap_failed": False, "recovery": 0}


class Day:
    """A run on three GPUs, supervised through a history."""

    def __init__(self, history: History, folder: Path, policy: Any = "drain") -> None:
        self.history, self.player, self.minute = history, Player(), 0
        make_folder(RunDir(folder).watches)
        self.world: World = opened(folder)
        risk = RiskReport(RunDir(folder), GpuRiskSettings(policy=policy))
        player: Any = self.player
        watch = GpuWatch(
            RunDir(folder), sampler=lambda *_, **_more: player, clock=lambda: self.now_s, answer="restart", risk=risk
        )
        self.runner = WatchRunner((watch,), RunDir(folder))
        self.drains: list[int] = []
        self.stages: set[str] = set()

    @property
    def now_s(self) -> float:
        return self.minute * 60.0

    def play(self) -> None:
        for minute in range(1, self.history.fault_min):
            self.minute = minute
            self.report()
            self.world.now_s = max(self.world.now_s, self.now_s)
            self.world.step()
            for event in list(self.runner.look(self.world.state, self.now_s)):
                self.world.write(event)
            self.act()
            self.stages.add(find_stage(self.world.state, "GPU-1"))

    def report(self) -> None:
        changed = self.history.at(self.minute)
        gpus = [
            {"index": index, "uuid": uuid, **WELL, **(changed if index == 1 or self.history.everywhere else {})}
            for index, (_, uuid) in enumerate(GPUS)
        ]
        self.player.lines = [{"taken_s": self.now_s, "gpus": gpus}]
        if code := self.history.xids.get(self.minute):
            self.player.lines.append({"taken_s": self.now_s, "code": code, "uuid": "GPU-1"})

    def act(self) -> None:
        """As the loop: what the policy requests, and what follows from it until nothing is left to do."""
        for _ in range(10):
            live = self.world.state.live
            if live is not None and live.pending_kill is not None:
                self.world.end("crash")
            self.world.settle()
            self.stages.add(find_stage(self.world.state, "GPU-1"))
            if self.world.testing[0]:
                self.finish_test()
            elif self.world.state.stop_requested_s is not None:
                self.world.step()
                self.world.end("stopped")
            elif (request := find_gpu_request(self.world.state, self.now_s)) is not None:
                found = list(answer_command(request, self.world.scene()))
                self.drains += [self.minute for event in found if isinstance(event, events.GpuLeftOut)]
                for event in found:
                    self.world.write(event)
            else:
                return
        raise AssertionError("it acts for ever")

    def finish_test(self) -> None:
        (request_id, gpus), self.world.testing = self.world.testing, ("", ())
        for gpu in gpus:
            passed = self.history.is_healthy or gpu != "GPU-1"
            self.world.write(events.GpuTested(request_id, gpu, passed, "compared", 1.0))


@pytest.mark.parametrize("history", HISTORIES, ids=lambda history: history.name)
def test_a_gpu_that_announces_its_end_is_drained_before_it(tmp_path: Path, history: History) -> None:
    day = Day(history, tmp_path)
    day.play()
    if history.announces:
        assert len(day.drains) == 1
        assert day.drains[0] < history.fault_min
        assert {"draining", "testing", "condemned"} <= day.stages
        assert find_stage(day.world.state, "GPU-1") == "condemned"
    if history.is_healthy:
        assert len(day.drains) <= history.most_drains
        assert "condemned" not in day.stages
        assert "GPU-1" not in day.world.state.left_out
    assert all(stage == "ok" for stage in (find_stage(day.world.state, gpu) for gpu in ("GPU-0", "GPU-2")))


def test_there_are_twelve_histories_of_each_kind() -> None:
    assert len(HISTORIES) == 12
    assert sum(history.announces for history in HISTORIES) == 6
    assert sum(history.is_healthy for history in HISTORIES) == 4


def test_a_gpu_that_passes_is_used_again_and_the_model_learns_it(tmp_path: Path) -> None:
    day = Day(HISTORIES[-1], tmp_path)
    day.play()
    assert len(day.drains) == 1
    assert "returned" in day.stages
    learned = read_model(RunDir(tmp_path).watches / "gpu_risk.toml")
    assert learned.weights["remap_xids"] < shipped_model().weights["remap_xids"]


def test_the_policy_alert_drains_nothing(tmp_path: Path) -> None:
    day = Day(HISTORIES[0], tmp_path, "alert")
    day.play()
    assert day.drains == []
    assert "suspect" in day.stages


def test_no_second_gpu_is_drained_soon(tmp_path: Path) -> None:
    rows = History("", lambda m: {"remapped_rows": 10 if m > 50 else 0}, fault_min=140, everywhere=True)
    day = Day(rows, tmp_path)
    day.play()
    assert len(day.drains) == 3
    assert all(later - earlier >= 30 for earlier, later in pairwise(day.drains))


# --- the model --------------------------------------------------------------------------------------


def test_a_written_model_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "model.toml"
    path.write_text(write_text(shipped_model()))
    assert read_model(path) == shipped_model()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "version = 2",
        "version = 1\nbias = nan",
        "version = 1\nbias = true",
        "version = 1\nsuspect_above = 0.0",
        "version = 1\nsuspect_above = 0.95\nreturned_above = 0.9",
        "version = 1\nother = 1",
        "version = 1\nweights = 3",
        "version = 1\n[weights]\nother = 1.0",
        "version = 1\n[weights]\nhot = -1.0",
        "version = 1\n[weights]\nhot = 1e300",
        "version = 1\n[weights]\nhot = [1]",
        "\x00",
    ],
)
def test_a_model_that_cannot_be_used_is_refused_with_the_reason(tmp_path: Path, text: str) -> None:
    path = tmp_path / "model.toml"
    path.write_text(text)
    with pytest.raises(UserError) as refused:
        read_model(path)
    assert refused.value.what
    assert refused.value.fix


SIGNALS = st.dictionaries(st.sampled_from(sorted(shipped_model().weights)), st.floats(0, 20))


@given(st.lists(st.tuples(SIGNALS, st.booleans()), max_size=30), st.integers(1, 200))
def test_what_any_number_of_lessons_has_taught_can_be_read_again(
    lessons: list[tuple[dict[str, float], bool]], rounds: int
) -> None:
    model = shipped_model()
    for signals, failed in lessons * rounds:
        model = teach(model, signals, failed=failed)
    read = parse_model(tomli.loads(write_text(model)))
    assert read.weights == pytest.approx(model.weights, abs=1e-5)
    assert abs(read.bias) <= LARGEST


def test_a_gpu_that_fails_after_a_drain_by_a_person_teaches_what_was_missed(tmp_path: Path) -> None:
    day = Day(History("errors below the limit", lambda m: {"corrected_errors": 2 * m}, fault_min=200), tmp_path)
    day.play()
    assert day.drains == []
    request = Request(COMMAND_REQUESTED, "by-ada", {"command": "drain", "gpus": ["GPU-1"], "by": "ada"})
    for event in list(answer_command(request, day.world.scene())):
        day.world.write(event)
    day.act()
    day.report()
    list(day.runner.look(day.world.state, day.now_s + 60.0))
    learned = read_model(RunDir(tmp_path).watches / "gpu_risk.toml")
    assert learned.bias > shipped_model().bias
    # Another supervisor sees the same test in the history, and learns nothing from it.
    again = Day(day.history, tmp_path)
    again.world, again.minute = day.world, day.minute + 5
    for minute in range(3):
        again.minute += minute
        again.report()
        list(again.runner.look(again.world.state, again.now_s))
    assert read_model(RunDir(tmp_path).watches / "gpu_risk.toml") == learned


@given(SIGNALS, st.booleans())
def test_a_lesson_moves_the_estimate_towards_the_outcome(signals: dict[str, float], failed: bool) -> None:
    before = shipped_model()
    after = teach(before, signals, failed=failed)
    change = after.estimate(signals) - before.estimate(signals)
    assert change >= 0 if failed else change <= 0
    assert all(math.isfinite(weight) and weight >= 0 for weight in after.weights.values())
    assert parse_model(tomli.loads(write_text(after))).bias == pytest.approx(after.bias, abs=1e-5)
