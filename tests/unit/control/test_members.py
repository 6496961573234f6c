"""The machines of a run on several: where each rank is, and which commands are offered."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_train.bus.base import BusMessage
from prime_train.bus.fleet import EMPTY, fold_message
from prime_train.bus.spool import EventBatch
from prime_train.control.fleet_rows import join_machines, map_remote_devices
from prime_train.control.members import MEMBERS_SHOWN, find_member, list_members
from prime_train.control.state import map_devices
from prime_train.core.rundir import RunDir
from prime_train.events import (
    AttemptEnded,
    CommandAccepted,
    Event,
    GpuLeftOut,
    GpuReturned,
    GpuTested,
    RunOpened,
    StopAsked,
    TrainerStarted,
)
from prime_train.events.record import encode
from tests.unit.control.test_watcher import GPU_RUN, NOW_S, follow, write_gpus
from tests.unit.views.written_runs import FIRST_ATTEMPT, WHOLE_LIFE, Timeline, records, write_run

HERE = "node7"


def start_ranks(*pids: int) -> Timeline:
    started = (TrainerStarted(1, pid, rank, len(pids), "NVIDIA H100", "bf16", 1, 1, 0) for rank, pid in enumerate(pids))
    writers = ("trainer-001-rank0", *["machines-001"] * (len(pids) - 1))
    return tuple((2.0, writer, event) for writer, event in zip(writers, started, strict=True))


def show_local(path: Path, timeline: Timeline, machines: object = 2) -> dict[str, Any]:
    run_dir = write_run(path / "small", timeline)
    run_dir.resolved.write_text(json.dumps({"parallel": {"machines": machines}}), encoding="utf-8")
    write_gpus(RunDir(run_dir.path), NOW_S - 5)
    return map_devices([follow(run_dir)])


def show_remote(timeline: Timeline, machines: object = 2) -> dict[str, Any]:
    batch = EventBatch("id", tuple(map(encode, records(timeline))))
    document = fold_message(EMPTY, BusMessage("pt.small.r.m1.ev", "id", batch.body), NOW_S)
    about = {"used": None, "is_served": False, "machines": machines}
    return map_remote_devices(
        fold_message(document, BusMessage("pt.small.r.m1.hb", "b", {"about": about}), NOW_S), "live"
    )


def list_ranks(machine: dict[str, Any]) -> list[int]:
    return sorted(work["rank"] for device in machine["devices"].values() for work in device["work"])


@given(per_machine=st.integers(1, 16), count=st.integers(2, 64), data=st.data())
def test_ranks_are_on_machines_in_their_order(per_machine: int, count: int, data: st.DataObject) -> None:
    rank = data.draw(st.integers(0, per_machine * count - 1))
    assert find_member(rank, per_machine * count, count) == rank // per_machine


@given(rank=st.integers(0, 4096), world_size=st.none() | st.integers(0, 4096), count=st.integers(1, 4096))
def test_a_rank_that_cannot_be_is_on_a_machine_of_the_run(rank: int, world_size: int | None, count: int) -> None:
    assert 0 <= find_member(rank, world_size, count) < count


def test_the_ranks_of_another_machine_are_not_on_the_gpus_here(tmp_path: Path) -> None:
    # Rank 2 has the number of a process that another machine gave it: 41, as rank 1 has it here.
    timeline = (*FIRST_ATTEMPT[:2], *start_ranks(40, 41, 41, 42), *FIRST_ATTEMPT[5:])
    found = show_local(tmp_path, timeline)
    assert list(found) == [HERE, "small/machine-1"]
    assert found[HERE]["devices"]["GPU-a"]["work"][0]["rank"] == 1
    assert list_ranks(found["small/machine-1"]) == [2, 3]
    assert [one["machine"] for machine in found.values() for one in machine["members"]] == ["machine-0", "machine-1"]


def test_a_run_on_one_machine_has_no_members(tmp_path: Path) -> None:
    for machines in (1, 0, -1, True, 10**9, "2", None, [2]):
        for found in (show_local(tmp_path / str(machines), GPU_RUN, machines), show_remote(GPU_RUN, machines)):
            assert [sorted(machine.keys() - {"liveness"}) for machine in found.values()] == [["devices"]], machines


DRAIN: list[Event] = [
    CommandAccepted("c", "drain", "ada", gpus=("machine-1",)),
    GpuLeftOut("machine-1", "drained by ada"),
]
ENDED = AttemptEnded(1, 0, "stopped", "", "", "", "", "", 60)
FAILED = GpuTested("c", "machine-1", False, "<b>a product is wrong</b>", 1.0)
RETURNED = GpuReturned("machine-1", "by ada")


@pytest.mark.parametrize(
    ("events", "note", "possible"),
    [
        ([], "", ["drain"]),
        (DRAIN, "drained; its test is not over", ["test", "return"]),
        ([*DRAIN, ENDED, FAILED], "drained; FAILED: <b>a product is wrong</b>", ["test", "return"]),
        ([*DRAIN, ENDED, FAILED, RETURNED], "", ["drain", "test"]),
        ([StopAsked("ada")], "", []),
    ],
)
def test_what_may_be_done_is_the_same_in_the_folder_and_on_the_bus(
    tmp_path: Path, events: list[Event], note: str, possible: list[str]
) -> None:
    more = [(11.0 + number, "supervisor", event) for number, event in enumerate(events)]
    timeline = (*FIRST_ATTEMPT[:2], *start_ranks(40, 41), *FIRST_ATTEMPT[5:], *more)
    local, remote = show_local(tmp_path, timeline), show_remote(timeline)
    [member] = local["small/machine-1"]["members"]
    assert remote["m1/small/machine-1"]["members"] == [member | {"run": "m1/small"}]
    assert (member["note"], [name for name, reason in member["refusals"].items() if reason is None]) == (note, possible)
    is_over = ENDED in events
    assert list_ranks(local["small/machine-1"]) == list_ranks(remote["m1/small/machine-1"]) == ([] if is_over else [1])
    for first in (local[HERE], remote["m1"]):
        assert None not in first["members"][0]["refusals"].values(), "machine 0 has the supervisor"


def test_a_run_that_has_ended_offers_nothing(tmp_path: Path) -> None:
    assert [one for machine in show_local(tmp_path, WHOLE_LIFE).values() for one in machine.get("members", ())] == []


def test_two_runs_on_a_machine_have_a_line_each() -> None:
    timeline = (*FIRST_ATTEMPT[:1], (0.1, "supervisor", RunOpened("small", 1, 100, "0.1.0")))
    first = show_remote(timeline)
    second = {"m1": first["m1"] | {"members": [first["m1"]["members"][0] | {"run": "m1/other"}]}}
    assert [one["run"] for one in join_machines([first, second])["m1"]["members"]] == ["m1/small", "m1/other"]


def test_a_document_stays_small_for_any_number_that_an_agent_reports() -> None:
    found = list_members("a", 4096, {}, is_paused=False, is_stopping=False)
    assert len(found) == len(show_remote((*FIRST_ATTEMPT[:2], *start_ranks(1, 2)), 4096)) == MEMBERS_SHOWN
