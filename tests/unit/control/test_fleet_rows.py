"""Runs of other machines: they look as the same run does in the folder, and silence never makes one a failure."""

from __future__ import annotations

from dataclasses import replace
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
from prime_train.events import (
    AttemptEnded,
    CommandAccepted,
    Event,
    GpuLeftOut,
    GpuReturned,
    GpuTested,
    InstabilityFound,
    LaunchAsked,
    Progress,
    RunOpened,
    SettingsAccepted,
    SettingsApplied,
    TrainerStarted,
)
from prime_train.events.record import encode
from prime_train.supervise.core.event_text import describe
from tests.unit.views.written_runs import BEGAN_S, DEATH, FIRST_ATTEMPT, WHOLE_LIFE, Timeline, records, write_run

NOW_S = BEGAN_S + 100.0
SAME = ("step", "max_steps", "is_endless", "loss", "reward", "tokens_per_s", "unit", "attempt", "restarts")
SAME_TOO = (
    "validation_loss",
    "proposal",
    "left_out",
    "exit_code",
    "world_size",
    "device",
    "began_s",
    "not_finite",
    "newest_complete",
    "last_event",
    "damage",
)
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
    local, remote = make_row(run, NOW_S), make_remote_row(fold(timeline), "live", NOW_S)
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
    assert found["curves"]["held_out"] == local["curves"]["held_out"]


HELD = InstabilityFound(1, 3, 60, "the loss rose", ("optim.lr = 0.0001",), 50, auto=False)
CLOSING = (
    CommandAccepted("c1", "accept", "ada", 3),
    CommandAccepted("c1", "go_back", "ada", 50),
    SettingsAccepted(1, ("optim.lr = 0.0002",), "ada"),
    InstabilityFound(1, 4, 70, "again", (), 0, auto=False),
    InstabilityFound(1, 4, 70, "again", ("optim.lr = 0.0001",), 0, auto=True),
    RunOpened("small", 1, 100, "0.1"),
)


@pytest.mark.parametrize("closing", [None, CommandAccepted("c1", "accept", "ada", 2), *CLOSING])
def test_a_proposal_is_open_as_long_as_in_the_folder(tmp_path: Path, closing: Event | None) -> None:
    timeline = (*FIRST_ATTEMPT, (11.0, "supervisor", HELD))
    timeline = timeline if closing is None else (*timeline, (11.5, "supervisor", closing))
    run = FollowedRun(write_run(tmp_path / "small", timeline))
    run.poll(NOW_S)
    expected = make_row(run, NOW_S)["proposal"]
    assert (expected is None) == (closing in CLOSING)
    assert make_remote_row(fold(timeline), "live", NOW_S)["proposal"] == expected


OUT = GpuLeftOut("GPU-1", "drained by ada")
TESTED = GpuTested("c1", "GPU-1", False, "a product is wrong", 1.0)


@pytest.mark.parametrize("events", [[OUT], [OUT, TESTED], [OUT, GpuReturned("GPU-1", "by ada")], [TESTED]])
def test_a_gpu_that_is_left_out_is_not_on_the_map_until_it_is_returned(tmp_path: Path, events: list[Event]) -> None:
    timeline = (*FIRST_ATTEMPT, *((11.0 + n, "supervisor", event) for n, event in enumerate(events)))
    run = FollowedRun(write_run(tmp_path / "small", timeline))
    run.poll(NOW_S)
    document = beat(fold(timeline), gpus=[GPU, GPU | {"uuid": "GPU-2", "index": 1}])
    left_out = make_remote_row(document, "live", NOW_S)["left_out"]
    assert left_out == make_row(run, NOW_S)["left_out"]
    expected = ["GPU-2"] if left_out else ["GPU-1", "GPU-2"]
    assert [gpu["uuid"] for gpu in document["gpus"]] == expected
    assert list(map_remote_devices(document, "live")["m1"]["devices"]) == expected


def test_a_run_costs_the_same_as_in_the_folder(tmp_path: Path) -> None:
    h100 = TrainerStarted(1, 1, 0, 8, "NVIDIA H100 80GB HBM3", "bf16", 1, 1, 0)
    timeline: Timeline = [
        (300.0 * at_s, writer, replace(h100, attempt=event.attempt) if isinstance(event, TrainerStarted) else event)
        for at_s, writer, event in WHOLE_LIFE
    ]
    for count in range(1, len(timeline) + 1):
        cut = timeline[:count]
        run = FollowedRun(write_run(tmp_path / f"small{count}", cut))
        now_s = BEGAN_S + 100_000.0
        run.poll(now_s)
        folded = beat(fold(cut), about={"used": None, "is_served": False, "wandb": "https://wandb.ai/a/b/runs/c"})
        row = make_remote_row(folded, "ended", now_s)  # the run that is read has no supervisor either
        assert row["usd"] == make_row(run, now_s)["usd"], count
        assert row["wandb"] == "https://wandb.ai/a/b/runs/c"
    assert row["usd"] is not None
    live = make_remote_row(beat(fold(cut[:-1]), about={"used": None, "is_served": False}), "live", now_s)
    assert live["usd"]["low"] >= row["usd"]["low"]
    served = beat(fold(cut), about={"used": None, "is_served": True, "wandb": "javascript:alert(1)"})
    assert make_remote_row(served, "ended", now_s)["usd"] is None
    assert make_remote_row(served, "ended", now_s)["wandb"] is None
    used = beat(fold(cut), about={"used": {"device": "NVIDIA H100 80GB HBM3", "number": 8}, "is_served": True})
    assert make_remote_row(used, "ended", now_s)["usd"] == row["usd"]


def test_times_pins_and_changes_come_with_heartbeats() -> None:
    plan = {"version": 1, "values": {"data.probs": [0.5, 0.5]}, "before": {"data.probs": None}, "by": "ada", "why": "x"}
    metrics = {"step": 61, "times": {"step_s": 0.5, "data_s": 0.1}, "lr": 0.001}
    document = beat(fold(FIRST_ATTEMPT), metrics=metrics, pins=[50], plans=[plan | {"requested_s": 1.0}])
    document = beat(document, metrics=metrics | {"step": 62, "lr": 0.002})
    found = make_remote_detail(document, "live", NOW_S)
    assert found["replicas"][0]["times"] == {"step_s": 0.5, "data_s": 0.1}
    assert found["curves"]["lr"] == {"step": [61, 62], "value": [0.001, 0.002]}
    assert found["checkpoints"]["checkpoints"][0]["pinned"]
    assert found["settings"] == [plan | {"requested_s": 1.0}]


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
    assert make_remote_row(fold(timeline), liveness, NOW_S)["state"] == expected


def test_a_paused_run_is_paused_until_its_next_attempt() -> None:
    pause = (11.0, "supervisor", CommandAccepted("p1", "pause", "ada"))
    ended = (12.0, "supervisor", AttemptEnded(1, 0, "stopped", "", "", "", "", "", 60))
    paused = (*FIRST_ATTEMPT, pause, ended)
    assert make_remote_row(fold(paused), "live", NOW_S)["state"] == "paused"
    assert map_remote_devices(fold(paused), "live") == {}
    again = fold((*paused, (13.0, "supervisor", LaunchAsked(2, 60))))
    assert make_remote_row(again, "live", NOW_S)["state"] == "starting"


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
    rows = {"m1/small": make_remote_row(document, "unknown", NOW_S)}
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
        {"step": True},
        {"metrics": 1, "pins": {}, "plans": {}, "about": []},
        {"metrics": {"step": -1, "times": {}}, "pins": ["x", -1, True, 2**80], "plans": [1, {}, {"version": "x"}]},
        {"metrics": {"step": 1, "times": {"x" * 999: 1e300, "y": "z", "nan": None}, "lr": [1]}},
        {"metrics": {"step": 1, "times": {str(n): n for n in range(999)}}},
        {"plans": [{"version": n, "values": {str(k): "v" * 999 for k in range(99)}, "before": 1} for n in range(99)]},
        {"plans": [{"version": 1, "values": {"a": [0] * 9999}, "before": {"b": {"c": "x" * 9999}}, "by": 1}]},
        {"about": {"used": {"device": 1, "number": 1}, "wandb": "javascript:alert(1)"}},
        {"about": {"used": {"device": "x" * 999, "number": 2**80}, "is_served": False}},
    ],
)
def test_a_heartbeat_with_anything_in_it_is_shown_without_it(body: dict[str, object]) -> None:
    document = beat(fold(FIRST_ATTEMPT), **body)
    assert len(encode_value(document)) < 90_000
    assert make_remote_row(document, "live", NOW_S)["step"] == 60
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
