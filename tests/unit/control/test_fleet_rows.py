"""Runs of other machines: they look as the same run does in the folder, and silence never makes one a failure."""

from __future__ import annotations

from pathlib import Path

import pytest

from prime_train.bus.base import BusMessage, encode_value
from prime_train.bus.fleet import EMPTY, Liveness, fold_message
from prime_train.bus.fleet_events import Document
from prime_train.bus.spool import EventBatch
from prime_train.control.fleet_rows import (
    find_twins,
    join_machines,
    list_remote_failures,
    make_remote_detail,
    make_remote_row,
    map_remote_devices,
)
from prime_train.control.followed import FollowedRun
from prime_train.control.prometheus import write_metrics
from prime_train.control.state import make_detail, make_row
from prime_train.control.timeline import find_failures
from prime_train.events import AttemptEnded, CommandAccepted, LaunchAsked, Progress, SettingsAccepted, SettingsApplied
from prime_train.events.record import encode
from prime_train.supervise.core.event_text import describe
from tests.unit.views.written_runs import BEGAN_S, DEATH, FIRST_ATTEMPT, WHOLE_LIFE, Timeline, records, write_run

NOW_S = BEGAN_S + 100.0
SAME = ("step", "max_steps", "is_endless", "loss", "reward", "tokens_per_s", "unit", "attempt", "restarts")
SAME_TOO = ("exit_code", "world_size", "device", "began_s", "not_finite", "newest_complete", "last_event", "damage")
GPU = {"index": 0, "uuid": "GPU-1", "pids": [7], "utilisation_percent": 90, "fault": "", "remap_failed": False}


def fold(timeline: Timeline, machine: str = "m1") -> Document:
    lines = tuple(map(encode, records(timeline)))
    message = BusMessage(f"pt.small.r.{machine}.ev", "id", EventBatch("id", lines).body)
    return fold_message(EMPTY, message, NOW_S, describe)


def beat(document: Document, **body: object) -> Document:
    return fold_message(document, BusMessage("pt.small.r.m1.hb", "b", body), NOW_S)


@pytest.mark.parametrize("count", range(1, len(WHOLE_LIFE) + 1))
def test_a_row_is_that_of_the_same_run_in_the_folder(tmp_path: Path, count: int) -> None:
    timeline = WHOLE_LIFE[:count]
    run = FollowedRun(write_run(tmp_path / "small", timeline))
    run.poll(NOW_S)
    local, remote = make_row(run, NOW_S), make_remote_row(fold(timeline), "live")
    assert local.keys() <= remote.keys()
    for name in (*SAME, *SAME_TOO):
        assert remote[name] == (local[name] or None if name == "newest_complete" else local[name]), name
    assert (remote["cause"] or {}).get("what") == (local["cause"] or {}).get("what")
    assert list_remote_failures(fold(timeline)) == find_failures(run.entries)


def test_details_have_the_sections_of_a_run_in_the_folder(tmp_path: Path) -> None:
    changed = (
        *FIRST_ATTEMPT,
        (11.0, "supervisor", SettingsAccepted(1, ("optim.lr = 0.0002",), "ada", "it stalls")),
        (11.5, "trainer-001-rank0", SettingsApplied(1, 1, 61, ("optim.lr = 0.0002",), 100)),
    )
    run = FollowedRun(write_run(tmp_path / "small", changed))
    run.poll(NOW_S)
    local = make_detail(run, NOW_S)
    found = make_remote_detail(beat(fold(changed), state="train", values={"optim.lr": 0.001}), "live", NOW_S)
    assert local.keys() - {"editor"} <= found.keys()  # bounds and obstacles are known where the config is
    assert found["marks"] == local["marks"]
    assert found["entries"][0]["text"] == local["entries"][0]["text"]
    assert found["curves"]["loss"] == {"step": [10, 50, 60], "value": [7.5, 5.5, 5.25]}
    assert found["settings"][0]["values"] == {"optim.lr": "0.0002"}
    assert found["values"] == {"optim.lr": 0.001}
    assert [one["step"] for one in found["checkpoints"]["checkpoints"]] == [50]
    assert found["replicas"][0].keys() == local["replicas"][0].keys()
    assert found["replicas"][0]["settings"] == 1


@pytest.mark.parametrize(
    ("timeline", "liveness", "expected"),
    [
        (FIRST_ATTEMPT, "live", "running"),
        (FIRST_ATTEMPT, "unknown", "unknown"),
        (FIRST_ATTEMPT, "lost", "lost"),
        ((*FIRST_ATTEMPT, *DEATH), "live", "recovering"),
        ((*FIRST_ATTEMPT, *DEATH), "lost", "lost"),
        (FIRST_ATTEMPT[:1], "live", "starting"),
        (WHOLE_LIFE, "ended", "finished"),
    ],
)
def test_the_state_of_a_row(timeline: Timeline, liveness: Liveness, expected: str) -> None:
    assert make_remote_row(fold(timeline), liveness)["state"] == expected


def test_a_paused_run_is_paused_until_its_next_attempt() -> None:
    pause = (11.0, "supervisor", CommandAccepted("p1", "pause", "ada"))
    ended = (12.0, "supervisor", AttemptEnded(1, 0, "stopped", "", "", "", "", "", 60))
    paused = (*FIRST_ATTEMPT, pause, ended)
    assert make_remote_row(fold(paused), "live")["state"] == "paused"
    assert map_remote_devices(fold(paused), "live") == {}
    assert make_remote_row(fold((*paused, (13.0, "supervisor", LaunchAsked(2, 60)))), "live")["state"] == "starting"


def test_a_gpu_of_a_machine_has_the_ranks_of_its_runs() -> None:
    timeline = [(second, writer, event) for second, writer, event in FIRST_ATTEMPT]
    document = {
        **beat(fold(timeline), gpus=[GPU, {"index": "x"}, 5]),
        "ranks": {"0": {"device": "cuda:0", "pid": 7, "writer": "w"}},
    }
    first = map_remote_devices(document, "unknown")
    assert first["m1"]["liveness"] == "unknown"
    device = first["m1"]["devices"]["GPU-1"]
    assert (device["utilisation_percent"], [work["run"] for work in device["work"]]) == (90, ["m1/small"])
    second = map_remote_devices({**document, "job": "other"}, "live")
    joined = join_machines([first, second, {"m2": {"devices": {}}}])
    assert [work["run"] for work in joined["m1"]["devices"]["GPU-1"]["work"]] == ["m1/small", "m1/other"]
    assert list(joined) == ["m1", "m2"]
    rows = {"m1/small": make_remote_row(document, "unknown")}
    text = write_metrics({"runs": rows, "machines": joined})
    assert 'prime_train_run_state{run="m1/small",state="unknown"} 1' in text
    assert 'prime_train_gpu_utilisation_percent{host="m1",gpu="0",uuid="GPU-1"} 90' in text


def test_only_the_same_run_is_a_twin() -> None:
    document = fold(FIRST_ATTEMPT)
    rows = {"small": {"began_s": BEGAN_S}, "other": {"began_s": BEGAN_S}}
    assert find_twins(rows, [document]) == {"small": "m1/small"}
    assert find_twins({"small": {"began_s": BEGAN_S + 1.0}}, [document]) == {}
    assert find_twins({"small": {"began_s": None}}, [beat(EMPTY, state="train")]) == {}


@pytest.mark.parametrize(
    "body",
    [
        {"gpus": 1},
        {"gpus": [{"index": 1, "pids": "x"}]},
        {"gpus": [{}] * 1000},
        {"values": []},
        {"values": {"a": {"b": 1}}},
        {"values": {"x" * 10_000: "y" * 10_000}},
        {"values": {str(n): 1e308 for n in range(1000)}},
        {"step": 10**400},
    ],
)
def test_a_heartbeat_with_anything_in_it_is_shown_without_it(body: dict[str, object]) -> None:
    document = beat(fold(FIRST_ATTEMPT), **body)
    assert len(encode_value(document)) < 20_000
    assert make_remote_row(document, "live")["step"] == 60
    map_remote_devices(document, "live")
    make_remote_detail(document, "live", NOW_S)


def test_a_long_run_has_a_short_curve_up_to_its_latest_step() -> None:
    steps: Timeline = [(20.0, "trainer-001-rank0", Progress(1, step, 1.0, 1.0, 1)) for step in range(61, 161)]
    document = fold((*FIRST_ATTEMPT, *steps))
    for first in range(161, 5_161, 200):
        batch = [(20.0, f"w{first}", Progress(1, step, 1.0, 1.0, 1)) for step in range(first, first + 200)]
        lines = tuple(map(encode, records(batch)))
        document = fold_message(document, BusMessage("pt.small.r.m1.ev", "id", EventBatch("id", lines).body), NOW_S)
    drawn = make_remote_detail(document, "live", NOW_S)["curves"]["loss"]["step"]
    assert len(drawn) <= 256
    assert drawn == sorted(set(drawn))
    assert drawn[0] == 10
    assert drawn[-1] > 5_000
