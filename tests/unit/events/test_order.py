from __future__ import annotations

from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from prime_train.events import (
    AttemptEnded,
    Event,
    LaunchAsked,
    Progress,
    Record,
    RunClosed,
    RunOpened,
    TrainerFinished,
)
from prime_train.events.record import merge
from prime_train.supervise.core.fold import fold_all

HOUR_S = 3600.0
OPENED = RunOpened("r", 1, 60, "0")


def ended(attempt: int, outcome: str) -> AttemptEnded:
    return AttemptEnded(attempt, 0, outcome, "signal" if outcome == "failed" else "", "", "", "", "", 0)


def records(writer: str, *events: tuple[float, Event]) -> list[Record]:
    return [Record(time_s, writer, seq, event) for seq, (time_s, event) in enumerate(events)]


def named(files: list[list[Record]]) -> list[tuple[str, list[Record]]]:
    return [(file[0].writer if file else "", file) for file in files]


def two_supervisors(jump_s: float) -> list[list[Record]]:
    """The first is killed; the clock jumps; the second finishes the run."""
    began_s = 10 * HOUR_S
    second_s = began_s + 1200.0 + jump_s
    return [
        records(
            "supervisor",
            (began_s, OPENED),
            (began_s, LaunchAsked(1, 0)),
            (second_s, ended(1, "failed")),
            (second_s, OPENED),
            (second_s + 1, LaunchAsked(2, 30)),
            (second_s + 600, ended(2, "finished")),
            (second_s + 601, RunClosed("finished", 0, "")),
        ),
        records("trainer-001-rank0", *((began_s + n, Progress(1, n, 1.0, 1.0, 1)) for n in range(1, 40))),
        records(
            "trainer-002-rank0",
            (second_s + 2, Progress(2, 31, 1.0, 1.0, 1)),
            (second_s + 599, TrainerFinished(2, 60, 1.0, "final")),
        ),
    ]


@given(st.floats(-5 * HOUR_S, 5 * HOUR_S), st.permutations([0, 1, 2]))
def test_a_clock_that_is_set_between_two_supervisors_does_not_start_a_finished_run_again(
    jump_s: float, order: list[int]
) -> None:
    files = two_supervisors(jump_s)
    state = fold_all(merge(named([files[index] for index in order])))
    assert (state.state, state.step) == ("finished", 60)
    assert [attempt.last_step for attempt in state.attempts] == [39, 60]


@given(st.lists(st.lists(st.floats(0, 100), max_size=8), max_size=4))
def test_the_records_of_a_writer_keep_their_order_and_none_is_lost(times: list[list[float]]) -> None:
    files = [records(f"w{n}", *((t, Progress(1, 1, 1.0, 1.0, 1)) for t in own)) for n, own in enumerate(times)]
    merged = list(merge(named(files)))
    for own in files:
        assert [record for record in merged if own and record.writer == own[0].writer] == own


def test_without_a_launch_the_times_order() -> None:
    one = records("a", (1.0, OPENED), (3.0, OPENED))
    two = records("b", (2.0, OPENED), (4.0, OPENED))
    assert [record.time_s for record in merge(named([one, two]))] == [1.0, 2.0, 3.0, 4.0]


def test_records_are_read_when_they_are_asked_for() -> None:
    taken: list[int] = []
    trainer = records("trainer-001-rank0", *((1.0 + n, Progress(1, n, 1.0, 1.0, 1)) for n in range(100)))
    own = records("supervisor", (0.0, OPENED), (0.5, LaunchAsked(1, 0)))

    def read() -> Iterator[Record]:
        for record in trainer:
            taken.append(record.seq)
            yield record

    merged = merge([("supervisor", own), ("trainer-001-rank0", read())])
    assert [next(merged).writer for _ in range(4)] == ["supervisor"] * 2 + ["trainer-001-rank0"] * 2
    assert len(taken) <= 3
