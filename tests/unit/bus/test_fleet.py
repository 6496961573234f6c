from __future__ import annotations

from functools import reduce

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_train.bus.base import VALUE_BYTES, BusMessage, encode_value
from prime_train.bus.fleet import EMPTY, fold_message, judge_silence, key_of
from prime_train.bus.fleet_events import Document
from prime_train.bus.spool import EventBatch
from prime_train.events import (
    AttemptEnded,
    CheckpointDeleted,
    CheckpointSaved,
    CommandAccepted,
    Event,
    GpuLeftOut,
    GpuReturned,
    LaunchAsked,
    Progress,
    Record,
    RunClosed,
    RunOpened,
    TrainerStarted,
)
from prime_train.events.record import encode

SUBJECT = "pt.demo.r.m1.ev"
FAILED = AttemptEnded(1, -9, "failed", "signal", "it was killed", "", "", "", 10)
EVENTS: list[Event] = [
    RunOpened("demo", 1, 100, "0.1"),
    LaunchAsked(1, 0),
    TrainerStarted(1, 1, 0, 2, "cuda:0", "bf16", 1, 1, 0),
    Progress(1, 10, 2.0, 5.0, 1),
    CheckpointSaved(1, 10, 100, 0.0, 1.0),
    FAILED,
    LaunchAsked(2, 10),
    Progress(2, 20, float("nan"), 5.0, 1),
    CheckpointSaved(2, 20, 100, 0.0, 1.0),
    CheckpointDeleted(2, 10, "space"),
    RunClosed("stopped", 75, ""),
]


def batch(first: int, last: int, events: list[Event] = EVENTS) -> BusMessage:
    records = [Record(float(n), "supervisor", n, event, "life") for n, event in enumerate(events)][first:last]
    return BusMessage(SUBJECT, "id", EventBatch("id", tuple(map(encode, records))).body)


def beat(state: str = "train", **more: object) -> BusMessage:
    return BusMessage("pt.demo.r.m1.hb", "b", {"state": state, "step": 3, **more})


def fold_all(*messages: BusMessage) -> Document:
    return reduce(lambda document, message: fold_message(document, message, 100.0), messages, EMPTY)


def test_a_document_has_the_run_its_failures_and_its_checkpoints() -> None:
    found = fold_all(batch(0, 11))
    assert (found["job"], found["machine"], found["state"], found["exit_code"]) == ("demo", "m1", "stopped", 75)
    assert (found["step"], found["loss"], found["world_size"]) == (20, None, 2)
    assert [one["step"] for one in found["checkpoints"]] == [20]
    assert [(one["attempt"], one["what"]) for one in found["failures"]] == [(1, "it was killed")]
    encode_value(found)


@given(st.lists(st.tuples(st.integers(0, 10), st.integers(1, 6)), max_size=12))
def test_batches_that_are_sent_again_change_nothing(repeats: list[tuple[int, int]]) -> None:
    document, done = EMPTY, 0
    for first, count in repeats:
        # A sender repeats what was not acknowledged, and never leaves events out.
        first = min(first, done)
        document = fold_message(document, batch(first, first + count), 100.0)
        done = max(done, min(first + count, len(EVENTS)))
    expected = fold_all(batch(0, done)) if repeats else EMPTY
    assert document == expected
    assert "gaps" not in document


def test_events_that_never_arrived_are_counted() -> None:
    assert fold_all(batch(0, 3), batch(5, 6))["gaps"] == 2


@pytest.mark.parametrize(
    "body", [{}, {"events": 1}, {"events": ["x"]}, {"events": [1]}, {"events": ["x"] * 1000}, {"events": [None, {}]}]
)
def test_what_is_no_batch_is_counted(body: dict[str, object]) -> None:
    found = fold_all(batch(0, 4), BusMessage(SUBJECT, "id", body))
    assert found["damaged"] >= 1
    assert found["step"] == 10


@pytest.mark.parametrize("body", [{"step": "x"}, {"state": 1}, {"progress_s": []}, {}])
def test_a_beat_without_its_types_lacks_those_fields(body: dict[str, object]) -> None:
    assert fold_all(BusMessage("pt.demo.r.m1.hb", "b", body))["beat"] == {}


def test_long_texts_fit_into_a_key() -> None:
    text = "\U0001f600" * 5000
    failures = [AttemptEnded(n, -9, "failed", text, text, text, text, text, 10) for n in range(150)]
    found = fold_all(batch(0, 150, list(failures)))
    assert 0 < len(encode_value(found)) < VALUE_BYTES


@pytest.mark.parametrize(
    ("heard_s", "listening_s", "now_s", "expected"),
    [
        (100.0, 0.0, 109.9, "live"),
        (100.0, 0.0, 110.0, "unknown"),
        (100.0, 0.0, 159.9, "unknown"),
        (100.0, 0.0, 160.0, "lost"),
        (100.0, 1000.0, 1009.0, "live"),  # the controller was away and cannot know
        (100.0, 1000.0, 1010.0, "unknown"),
        (100.0, 0.0, 50.0, "live"),  # the clock was set back
        (None, 1000.0, 1001.0, "live"),
        (None, 1000.0, 1061.0, "lost"),
    ],
)
def test_silence_makes_a_machine_unknown_and_then_lost(
    heard_s: float | None, listening_s: float, now_s: float, expected: str
) -> None:
    assert judge_silence({"heard_s": heard_s, "state": "train", "beat": {}}, listening_s, now_s) == expected


@given(st.floats(0, 1e9), st.sampled_from(["train", "starting", "restarting", "evaluate", ""]))
def test_silence_is_never_a_failure(now_s: float, state: str) -> None:
    document = {"heard_s": 0.0, "state": state, "beat": {"state": state}}
    assert judge_silence(document, 0.0, now_s) in ("live", "unknown", "lost")


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([batch(0, 11)], "ended"),
        ([beat("died")], "failed"),
        ([beat("failed")], "failed"),
        ([beat("stopped"), batch(0, 1)], "live"),  # it was started again
        ([batch(0, 6)], "live"),  # an attempt failed, and another one follows
    ],
)
def test_an_end_is_what_its_agent_saw(messages: list[BusMessage], expected: str) -> None:
    assert judge_silence(fold_all(*messages), 0.0, 100.0) == expected


def test_other_subjects_have_no_document() -> None:
    assert key_of(SUBJECT) == key_of("pt.demo.r.m1.hb") == "demo.m1"
    for subject in ("pt.demo.cmd.m1", "pt.demo.r.m1.other", "x.demo.r.m1.ev", "pt.demo.r.m1.ev.more"):
        assert key_of(subject) is None


def test_a_drained_machine_has_no_rank_until_an_attempt_has_it_again() -> None:
    ranks: list[Event] = [TrainerStarted(1, 1, rank, 2, "cuda:0", "bf16", 1, 1, 0) for rank in (0, 1)]
    drained_by = GpuLeftOut("machine-1", "drained by ada")
    drain: list[Event] = [CommandAccepted("c", "drain", "ada", gpus=("machine-1",)), drained_by]
    end = AttemptEnded(1, 0, "stopped", "", "", "", "", "", 10)
    events: list[Event] = [
        *EVENTS[:2],
        *ranks,
        EVENTS[3],
        *drain,
        end,
        GpuReturned("machine-1", "by ada"),
        LaunchAsked(2, 10),
    ]
    events += [TrainerStarted(2, 1, 0, 2, "cuda:0", "bf16", 1, 1, 10)]
    trains, drained, again = (fold_all(batch(0, count, events)) for count in (7, 8, len(events)))
    assert set(trains["ranks"]) == {"0", "1"}
    assert (drained["state"], drained["ranks"]) == ("paused", {})
    assert [one["uuid"] for one in drained["left_out"]] == ["machine-1"]
    assert (set(again["ranks"]), again["left_out"]) == ({"0"}, [])
