"""The watcher: what it follows is what it would read at once, and the index only saves time."""

from __future__ import annotations

import json
import os
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from prime_train.control.followed import FollowedRun
from prime_train.control.index import Index
from prime_train.control.state import make_detail, map_devices
from prime_train.control.watcher import Watcher
from prime_train.core.rundir import RunDir
from prime_train.events import (
    AlarmCleared,
    AlarmRaised,
    AttemptEnded,
    GpuLeftOut,
    LaunchAsked,
    Progress,
    TrainerStarted,
)
from prime_train.supervise.processes.lock import hold_run
from tests.unit.views.written_runs import (
    BEGAN_S,
    DEATH,
    FIRST_ATTEMPT,
    SECOND_ATTEMPT,
    WHOLE_LIFE,
    Timeline,
    records,
    write_checkpoint,
    write_events,
    write_metrics,
    write_run,
)

NOW_S = BEGAN_S + 100.0


def follow(run_dir: RunDir) -> FollowedRun:
    """What is known of a run that this process supervises."""
    with hold_run(run_dir):
        run = FollowedRun(run_dir)
        run.poll(NOW_S)
        return run


def shown(watcher: Watcher) -> dict[str, Any]:
    return {name: value for name, value in watcher.stream.snapshot().document.items() if name != "controller"}


def look_at_all(watcher: Watcher) -> dict[str, Any]:
    """What is shown when every run was read and compared."""
    for _ in range(3):
        watcher.look()
    while not watcher.stream.snapshot().document["controller"]["is_complete"]:
        watcher.look()
    return shown(watcher)


@given(st.lists(st.integers(0, len(WHOLE_LIFE)), max_size=6))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40, deadline=None)
def test_a_run_that_is_followed_is_shown_as_one_that_is_read_at_once(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[int]
) -> None:
    path = tmp_path_factory.mktemp("runs") / "a"
    followed = FollowedRun(RunDir(path))
    every = records(WHOLE_LIFE)
    for begin, end in zip([0, *sorted(cuts)], [*sorted(cuts), len(every)], strict=True):
        write_events(RunDir(path), every[begin:end])
        followed.poll(NOW_S)
    whole = FollowedRun(RunDir(path))
    whole.poll(NOW_S)
    assert make_detail(followed, NOW_S) == make_detail(whole, NOW_S)
    assert list(followed.entries) == list(whole.entries)


def test_failures_have_their_cause_and_the_time_to_the_next_step(tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "a", WHOLE_LIFE)
    watcher = Watcher(tmp_path, clock=lambda: NOW_S)
    [failure] = look_at_all(watcher)["failures"]["a"]
    assert (failure["attempt"], failure["step"], failure["returncode"], failure["recovered_s"]) == (1, 60, -9, 4.0)
    assert failure["what"] == "killed by signal 9 (SIGKILL)"


def test_a_run_is_live_while_its_supervisor_is_and_died_after_that(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path / "runs" / "a", FIRST_ATTEMPT)
    now_s = [NOW_S]
    watcher = Watcher(tmp_path, clock=lambda: now_s[0])
    with hold_run(run_dir):
        found = look_at_all(watcher)
        assert found["runs"]["a"]["state"] == "running"
        [device] = next(iter(found["machines"].values()))["devices"].values()
        assert device["work"] == [{"run": "a", "rank": 0, "step": 60, "lag": 0}]
        more = (*FIRST_ATTEMPT, (10.5, "trainer-001-rank0", Progress(1, 61, 5.0, 1.0, 1)))
        write_events(run_dir, records(more)[-1:])
        watcher.look()
        assert shown(watcher)["runs"]["a"]["step"] == 61
    for _ in range(3):
        now_s[0] += 5.0
        watcher.look()
    assert shown(watcher)["runs"]["a"]["state"] == "died"
    assert shown(watcher)["machines"] == {}


def test_an_ended_run_that_goes_on_is_read_again(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path / "runs" / "a", (*FIRST_ATTEMPT, *DEATH))
    watcher = Watcher(tmp_path, clock=lambda: NOW_S)
    assert look_at_all(watcher)["runs"]["a"]["attempt"] == 1
    every = records((*FIRST_ATTEMPT, *DEATH, *SECOND_ATTEMPT))
    write_events(run_dir, every[len(FIRST_ATTEMPT) + len(DEATH) :])
    assert look_at_all(watcher)["runs"]["a"]["attempt"] == 2


def open_index(folder: Path) -> Index:
    (folder / "runs" / ".control").mkdir(parents=True, exist_ok=True)
    return Index(folder / "runs" / ".control" / "index.sqlite")


def test_a_controller_that_is_killed_shows_the_same_at_its_next_start(tmp_path: Path) -> None:
    for number in range(20):
        write_run(tmp_path / "runs" / f"run{number}", WHOLE_LIFE if number % 2 else (*FIRST_ATTEMPT, *DEATH))
    before = look_at_all(Watcher(tmp_path, open_index(tmp_path), clock=lambda: NOW_S))
    again = Watcher(tmp_path, open_index(tmp_path), clock=lambda: NOW_S)
    again.look()
    assert shown(again) == before, "the first look shows every run of the index"
    rebuilt = Watcher(tmp_path, clock=lambda: NOW_S)
    assert look_at_all(rebuilt) == before, "it is only an index"


def test_a_run_that_changed_while_no_controller_looked_is_read_again(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path / "runs" / "a", (*FIRST_ATTEMPT, *DEATH))
    write_run(tmp_path / "runs" / "gone", WHOLE_LIFE)
    look_at_all(Watcher(tmp_path, open_index(tmp_path), clock=lambda: NOW_S))
    every = records((*FIRST_ATTEMPT, *DEATH, *SECOND_ATTEMPT))
    write_events(run_dir, every[len(FIRST_ATTEMPT) + len(DEATH) :])
    for path in sorted((tmp_path / "runs" / "gone").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    (tmp_path / "runs" / "gone").rmdir()
    found = look_at_all(Watcher(tmp_path, open_index(tmp_path), clock=lambda: NOW_S))
    assert {name: row["attempt"] for name, row in found["runs"].items()} == {"a": 2}


@pytest.mark.parametrize("damage", ["text", "version", "document"])
def test_an_index_that_is_damaged_is_rebuilt(tmp_path: Path, damage: str) -> None:
    write_run(tmp_path / "runs" / "a", WHOLE_LIFE)
    before = look_at_all(Watcher(tmp_path, open_index(tmp_path), clock=lambda: NOW_S))
    path = tmp_path / "runs" / ".control" / "index.sqlite"
    if damage == "text":
        path.write_bytes(b"no database" * 1000)
    else:
        database = sqlite3.connect(path)
        database.execute("PRAGMA user_version=99" if damage == "version" else "UPDATE runs SET document='[1'")
        database.commit()
        database.close()
    assert look_at_all(Watcher(tmp_path, open_index(tmp_path), clock=lambda: NOW_S)) == before


def test_texts_of_a_run_are_bounded_and_have_no_control_characters(tmp_path: Path) -> None:
    hostile = "\x1b[2J<script>alert(1)</script>" + "x" * 100_000
    end = AttemptEnded(1, 1, "failed", hostile, hostile, hostile, hostile, hostile, 50, hostile)
    run_dir = write_run(tmp_path / "runs" / "<b>&", (*FIRST_ATTEMPT, (12.0, "supervisor", end)))
    (run_dir.path / "settings").mkdir()
    plan = {"version": 1, "values": {"optim.lr": hostile}, "by": hostile, "why": hostile}
    (run_dir.path / "settings" / "000001.json").write_text(json.dumps(plan)[:60_000], encoding="utf-8")
    (run_dir.path / "settings" / "000002.json").write_text(
        json.dumps(plan | {"version": 2, "by": "\x00<i>", "values": {}, "before": {}, "why": ""}), "utf-8"
    )
    watcher = Watcher(tmp_path, clock=lambda: NOW_S)
    look_at_all(watcher)
    detail = watcher.detail("<b>&")
    assert detail is not None
    assert [one["by"] for one in detail["settings"]] == ["\ufffd<i>"], "a damaged plan is left out"
    text = json.dumps([shown(watcher), detail])
    assert "\\u001b" not in text
    assert len(text) < 60_000


def test_a_name_that_is_not_utf8_is_left_out_with_a_remark(tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "a", (*FIRST_ATTEMPT, *DEATH))
    write_run(tmp_path / "runs" / os.fsdecode(b"b\xff"), WHOLE_LIFE)
    watcher = Watcher(tmp_path, open_index(tmp_path), clock=lambda: NOW_S)
    assert list(look_at_all(watcher)["runs"]) == ["a"]
    document = watcher.stream.snapshot().document
    assert json.dumps(document, ensure_ascii=False).encode()
    assert document["controller"]["remark"] == "1 left out, because the name is not UTF-8: b\\udcff"


def test_a_look_that_failed_is_shown_until_one_succeeds(tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "a", WHOLE_LIFE)
    watcher = Watcher(tmp_path, clock=lambda: NOW_S)
    look_at_all(watcher)
    watcher.report("OSError: \udcff")
    document = watcher.stream.snapshot().document
    assert document["controller"]["remark"] == "the runs cannot be read: OSError: ?"
    assert list(document["runs"]) == ["a"]
    watcher.look()
    assert watcher.stream.snapshot().document["controller"]["remark"] == ""


def test_a_name_leads_to_no_other_folder(tmp_path: Path) -> None:
    write_run(tmp_path / "elsewhere", WHOLE_LIFE)
    write_run(tmp_path / "runs" / "a", WHOLE_LIFE)
    watcher = Watcher(tmp_path, clock=lambda: NOW_S)
    look_at_all(watcher)
    for name in ("../elsewhere", "", ".", "..", "a/../a", str(tmp_path / "elsewhere"), "a\0"):
        assert watcher.detail(name) is None
        assert watcher.run_dir(name) is None


def test_details_have_curves_checkpoints_and_replicas(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path / "runs" / "a", (*FIRST_ATTEMPT, *DEATH, *SECOND_ATTEMPT))
    write_metrics(run_dir, 100)
    write_checkpoint(run_dir, 50)
    write_checkpoint(run_dir, 60, complete=False)
    watcher = Watcher(tmp_path, clock=lambda: NOW_S)
    look_at_all(watcher)
    detail = watcher.detail("a")
    assert detail is not None
    assert detail["curves"]["loss"]["step"] == list(range(1, 101))
    assert detail["curves"]["held_out"] == {"step": [50], "value": [5.75]}
    assert [mark["step"] for mark in detail["marks"]] == [50]
    assert detail["checkpoints"]["resume_step"] == 50
    assert [one["complete"] for one in detail["checkpoints"]["checkpoints"]] == [False, True]
    [replica] = detail["replicas"]
    assert (replica["rank"], replica["step"], replica["times"]["data_s"]) == (0, 100, 0.0625)


def write_gpus(run_dir: RunDir, taken_s: float, **changes: Any) -> None:
    gpu = {"index": 0, "uuid": "GPU-a", "used_bytes": 3, "total_bytes": 4, "utilisation_percent": 97}
    gpu |= {"temperature_c": 61, "uses": [{"pid": 41, "used_bytes": 1}, {"pid": 99, "used_bytes": 1}]} | changes
    other = {"index": 1, "uuid": "GPU-b", "fault": "lost"}
    run_dir.watches.mkdir(exist_ok=True)
    document = {"version": 1, "host": "node7", "taken_s": taken_s, "gpus": [gpu, other]}
    (run_dir.watches / "gpus.json").write_text(json.dumps(document), encoding="utf-8")


GPU_RUN: Timeline = (
    *FIRST_ATTEMPT[:2],
    (2.0, "trainer-001-rank0", TrainerStarted(1, 40, 0, 2, "NVIDIA H100", "bf16", 1, 1, 0)),
    (2.0, "trainer-001-rank1", TrainerStarted(1, 41, 1, 2, "NVIDIA H100", "bf16", 1, 1, 0)),
    (3.0, "trainer-001-rank0", Progress(1, 10, 7.5, 4000.0, 20_480)),
    (4.0, "supervisor", AlarmRaised(1, "gpu", "gpu_xid_63", "GPU 0", "alert", "x", "w", "y", "f", "GPU-a", 10)),
    (5.0, "supervisor", GpuLeftOut("GPU-b", "it failed twice")),
)


def test_gpus_are_on_the_map_with_their_ranks_and_their_health(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path / "runs" / "a", GPU_RUN)
    write_gpus(run_dir, NOW_S - 5)
    run = follow(run_dir)
    first, second = map_devices([run])["node7"]["devices"].values()
    assert first["work"] == [{"run": "a", "rank": 1, "step": 10, "lag": None}]
    assert (first["utilisation_percent"], first["temperature_c"], first["xids"]) == (97, 61, ["63"])
    assert (second["fault"], second["left_out"], second["work"]) == ("lost", ["a"], [])


def test_a_slow_rank_is_on_the_map_until_it_is_well_again(tmp_path: Path) -> None:
    alarm = AlarmRaised(1, "straggler", "slow_rank", "rank 1", "note", "hardware", "it is slow", "y", "f", "GPU-a", 10)
    run_dir = write_run(tmp_path / "runs" / "a", (*GPU_RUN, (6.0, "supervisor", alarm)))
    write_gpus(run_dir, NOW_S - 5)
    first, second = map_devices([follow(run_dir)])["node7"]["devices"].values()
    assert [work.get("slow") for work in first["work"]] == ["it is slow"]
    assert second["work"] == []
    cleared = (7.0, "supervisor", AlarmCleared(1, "straggler", "slow_rank", "rank 1"))
    again = write_run(tmp_path / "runs" / "b", (*GPU_RUN, (6.0, "supervisor", alarm), cleared))
    write_gpus(again, NOW_S - 5)
    first, _ = map_devices([follow(again)])["node7"]["devices"].values()
    assert "slow" not in first["work"][0]


@pytest.mark.parametrize(("age_s", "content"), [(100.0, None), (-50.0, None), (1.0, "[1]"), (1.0, '{"version": 1}')])
def test_an_old_or_damaged_sample_shows_ranks_without_health(tmp_path: Path, age_s: float, content: str | None) -> None:
    run_dir = write_run(tmp_path / "runs" / "a", GPU_RUN)
    write_gpus(run_dir, NOW_S - age_s)
    if content is not None:
        (run_dir.watches / "gpus.json").write_text(content, encoding="utf-8")
    run = follow(run_dir)
    [machine] = map_devices([run]).values()
    assert [device["kind"] for device in machine["devices"].values()] == ["NVIDIA H100"] * 2
    assert all("temperature_c" not in device for device in machine["devices"].values())


def test_a_value_of_a_wrong_kind_is_not_known(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path / "runs" / "a", GPU_RUN)
    write_gpus(run_dir, NOW_S, temperature_c="<b>hot</b>", utilisation_percent=True, uses="x", fault=["y"] * 1000)
    run = follow(run_dir)
    device = map_devices([run])["node7"]["devices"]["GPU-a"]
    assert (device["temperature_c"], device["utilisation_percent"], device["work"]) == (None, None, [])
    assert len(device["fault"]) <= 200


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_run_of_another_user_is_a_row_with_the_reason(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path / "runs" / "a", WHOLE_LIFE)
    run_dir.events.chmod(0o000)
    try:
        found = look_at_all(Watcher(tmp_path, clock=lambda: NOW_S))
        assert found["runs"]["a"]["state"] == "unreadable"
    finally:
        run_dir.events.chmod(0o700)


def test_failures_without_a_later_step_are_not_recovered(tmp_path: Path) -> None:
    again = (*FIRST_ATTEMPT, *DEATH, (13.0, "supervisor", LaunchAsked(2, 50)))
    write_run(tmp_path / "runs" / "a", again)
    [failure] = look_at_all(Watcher(tmp_path, clock=lambda: NOW_S))["failures"]["a"]
    assert failure["recovered_s"] is None
