from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from functools import reduce

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_train.events import (
    CheckpointSaved,
    CheckpointStarted,
    ChildStarted,
    ClockJumped,
    Evaluated,
    Event,
    LaunchAsked,
    Phase,
    Progress,
    Record,
    RunOpened,
)
from prime_train.supervise.core.actions import FindHang
from prime_train.supervise.core.fold import fold
from prime_train.supervise.core.policy import Policy, decide
from prime_train.supervise.core.state import State
from prime_train.supervise.watches.hang.silence_limits import (
    CEILING_S,
    EXEMPT_STEPS,
    FACTOR,
    FLOOR_S,
    GAPS_NEEDED,
    SAVING_LEAST_S,
    SAVING_MOST_S,
    Learned,
    SilenceLimits,
    compute_limit_s,
    compute_longest_s,
    compute_recheck_s,
    learn,
    shift_time,
)

LEARNING = SilenceLimits()
Timed = tuple[float, Event]


def progress(step: int, attempt: int = 1) -> Progress:
    return Progress(attempt, step, 2.0, 1000.0, step * 64)


def records(timed: Iterable[Timed], writer: str = "trainer-001-rank0") -> list[Record]:
    return [Record(time_s, writer, seq, event) for seq, (time_s, event) in enumerate(timed)]


def learned(timed: Iterable[Timed]) -> Learned:
    return reduce(learn, records(timed), Learned())


def steps(count: int, gap_s: float, *, first: int = 1, begin_s: float = 0.0) -> list[Timed]:
    """So many steps, each `gap_s` after the one before."""
    return [(begin_s + (number + 1) * gap_s, progress(first + number)) for number in range(count)]


TRAINS: list[Timed] = [(0.0, LaunchAsked(1, 0)), (0.0, Phase(1, "setup")), (0.0, Phase(1, "train"))]
ENOUGH = EXEMPT_STEPS + GAPS_NEEDED


def test_before_the_first_step_the_startup_limit_holds() -> None:
    assert compute_limit_s(learned(TRAINS), "train", LEARNING) == 900.0
    assert compute_limit_s(learned(TRAINS), "setup", SilenceLimits(startup_limit_s=7.0)) == 7.0


def test_a_job_that_is_not_known_to_report_has_45_minutes_until_it_does() -> None:
    mute = replace(LEARNING, reports=False)
    assert compute_limit_s(Learned(1), "start", mute) == 45 * 60
    assert compute_limit_s(Learned(1), "start", LEARNING) == 900.0
    assert compute_limit_s(learned(TRAINS), "train", mute) == 900.0


@pytest.mark.parametrize(("gap_s", "limit"), [(0.2, FLOOR_S), (12.0, FLOOR_S), (40.0, 200.0), (1200.0, CEILING_S)])
def test_after_enough_steps_the_limit_is_a_factor_over_the_largest(gap_s: float, limit: float) -> None:
    assert compute_limit_s(learned([*TRAINS, *steps(ENOUGH, gap_s)]), "train", LEARNING) == pytest.approx(limit)


def test_a_phase_that_knows_its_limit_has_it_until_the_next_step() -> None:
    in_phase = [*TRAINS, *steps(ENOUGH, 2.0), (60.0, Phase(1, "generate", "", 7.0))]
    assert compute_limit_s(learned(in_phase), "generate", LEARNING) == 7.0
    assert compute_limit_s(learned([*TRAINS, (1.0, Phase(1, "compile", "", 5000.0))]), "compile", LEARNING) == 5000.0
    for after in ((61.0, progress(ENOUGH + 1)), (61.0, Phase(1, "train"))):
        assert compute_limit_s(learned([*in_phase, after]), "train", LEARNING) == FLOOR_S
    assert compute_limit_s(learned([*in_phase, (61.0, Phase(1, "evaluate"))]), "evaluate", LEARNING) == 1800.0


def test_what_the_first_steps_took_teaches_nothing() -> None:
    slow = steps(EXEMPT_STEPS, 100.0)
    quick = steps(GAPS_NEEDED, 1.0, first=EXEMPT_STEPS + 1, begin_s=500.0)
    assert learned([*TRAINS, *slow, *quick]).largest_gap_s == pytest.approx(1.0)


def test_until_enough_was_seen_the_first_steps_only_lengthen_the_limit() -> None:
    assert compute_limit_s(learned([*TRAINS, *steps(3, 1.0)]), "train", LEARNING) == 900.0
    assert compute_limit_s(learned([*TRAINS, *steps(3, 400.0)]), "train", LEARNING) == 2000.0


def test_an_evaluation_and_a_save_teach_nothing() -> None:
    history = [*TRAINS, *steps(ENOUGH, 2.0)]
    at_s = ENOUGH * 2.0
    history += [(at_s, Phase(1, "evaluate")), (at_s + 900, Evaluated(1, 10, 1.0, 1)), (at_s + 900, Phase(1, "train"))]
    history += [(at_s + 903, progress(11)), (at_s + 903, CheckpointStarted(1, 11)), (at_s + 950, progress(12))]
    history += [(at_s + 990, progress(13)), (at_s + 1000, CheckpointSaved(1, 11, 1, 40.0, 97.0))]
    history += [(at_s + 1030, progress(14)), (at_s + 1032, progress(15))]
    found = learned(history)
    assert found.largest_gap_s == pytest.approx(3.0)  # the step after the evaluation counts from its end
    assert found.longest_save_s == pytest.approx(97.0)


def test_a_checkpoint_in_flight_adds_five_to_ten_minutes() -> None:
    history = [*TRAINS, *steps(ENOUGH, 2.0), (30.0, CheckpointStarted(1, 10))]
    assert compute_limit_s(learned(history), "train", LEARNING) == FLOOR_S + SAVING_MOST_S
    for took_s, added_s in ((1.0, SAVING_LEAST_S), (200.0, 400.0), (4000.0, SAVING_MOST_S)):
        ended_s = 30.0 + took_s
        saved: list[Timed] = [(ended_s, CheckpointSaved(1, 10, 1, 0.0, took_s)), (ended_s, CheckpointStarted(1, 20))]
        assert compute_limit_s(learned([*history, *saved]), "train", LEARNING) == pytest.approx(FLOOR_S + added_s)


def test_what_the_user_set_holds_as_it_is() -> None:
    limits = SilenceLimits(startup_limit_s=5.0, step_limit_s=3.0, slow_phase_limit_s=4.0)
    busy = [*TRAINS, *steps(ENOUGH, 40.0), (500.0, CheckpointStarted(1, 10))]
    assert compute_limit_s(learned(busy), "train", limits) == 3.0
    assert compute_limit_s(learned(busy), "evaluate", limits) == 4.0
    assert compute_limit_s(learned(TRAINS), "train", limits) == 5.0


def test_another_attempt_begins_with_nothing_learned() -> None:
    first = [*TRAINS, *steps(ENOUGH, 40.0)]
    assert learned([*first, (500.0, LaunchAsked(2, 10))]) == Learned(2)
    late = learned([*first, (500.0, LaunchAsked(2, 10)), (501.0, progress(11, attempt=1))])
    assert late == Learned(2)


def test_before_any_launch_and_of_a_launch_that_is_past_nothing_is_learned() -> None:
    assert learned([(0.0, Phase(0, "train")), (5.0, progress(3, attempt=0))]) == Learned()
    known = [*TRAINS, *steps(ENOUGH, 2.0)]
    assert learned([*known, (30.0, LaunchAsked(1, 0))]) == learned(known)


def test_a_clock_that_was_set_is_no_slow_step() -> None:
    history = [*TRAINS, *steps(ENOUGH, 2.0)]
    jumped = [*history, (7220.0, ClockJumped(7200.0)), (7222.0, progress(11))]
    assert learned(jumped).largest_gap_s == pytest.approx(2.0)
    assert learned([*history, (7222.0, progress(11))]).largest_gap_s == pytest.approx(7202.0)


@pytest.mark.parametrize("jump_s", [7200.0, 6.0, -6.0, -7200.0])
def test_a_step_between_a_jump_of_the_clock_and_its_report_is_no_slow_step(jump_s: float) -> None:
    """The machine wakes, or its clock is set: the trainer's next words come before the supervisor has noticed."""
    history = [*TRAINS, *steps(ENOUGH, 0.5)]
    last_s = history[-1][0]
    woken = [(last_s + jump_s + 0.5, progress(11)), (last_s + jump_s + 1.0, progress(12))]
    told = (last_s + jump_s + 1.2, ClockJumped(jump_s))
    after = [(last_s + jump_s + 1.5, progress(13)), (last_s + jump_s + 2.0, progress(14))]
    assert learned([*history, *woken, told, *after]).largest_gap_s == pytest.approx(0.5, abs=0.5)


@pytest.mark.parametrize("jump_s", [7200.0, -7200.0])
def test_a_silence_is_counted_without_the_jump_and_a_word_after_it_stands(jump_s: float) -> None:
    told_s = 50_000.0
    assert shift_time(told_s - jump_s - 40.0, jump_s, told_s) == told_s - 40.0
    assert shift_time(told_s - 0.3, jump_s, told_s) == told_s - 0.3


def test_what_the_supervisor_states_is_no_word_of_the_trainer() -> None:
    assert not learned([(0.0, LaunchAsked(1, 0)), (1.0, ChildStarted(1, "trainer", 7, 8, "log"))]).heard


@given(
    gaps=st.lists(st.floats(0.01, 3000.0), min_size=ENOUGH + 1, max_size=40),
    phase=st.sampled_from(["train", "evaluate", "checkpoint", "setup", "rollouts"]),
)
def test_the_limit_stays_between_floor_and_ceiling_and_covers_what_was_seen(gaps: list[float], phase: str) -> None:
    now_s = 0.0
    history = list(TRAINS)
    for step, gap_s in enumerate(gaps, 1):
        now_s += gap_s
        history.append((now_s, progress(step)))
    found = learned(history)
    limit = compute_limit_s(found, phase, LEARNING)
    assert FLOOR_S <= limit <= CEILING_S
    assert found.largest_gap_s == pytest.approx(max(gaps[EXEMPT_STEPS:]))
    if phase == "train":
        assert limit >= min(CEILING_S, FACTOR * found.largest_gap_s)


@given(limit=st.floats(1.0, 20_000.0), silent=st.floats(0.0, 20_000.0))
def test_activity_lengthens_a_silence_and_never_for_ever(limit: float, silent: float) -> None:
    assert limit <= compute_longest_s(limit) <= max(limit, min(3 * limit, CEILING_S))
    assert compute_recheck_s(0.0, limit, silent) <= compute_longest_s(limit)
    looks, now_s = 0, limit
    while compute_recheck_s(0.0, limit, now_s) > now_s:
        now_s, looks = compute_recheck_s(0.0, limit, now_s), looks + 1
        assert looks < 10


# --- an hour of healthy running ---------------------------------------------------------------------


def healthy_hour() -> list[Timed]:
    """Steps of 1.5 to 4 s, every 100 a save that stalls and takes 4 min, every 150 an evaluation of 20 min."""
    history: list[Timed] = [(0.0, LaunchAsked(1, 0)), (20.0, Phase(1, "setup")), (300.0, Phase(1, "data"))]
    history.append((700.0, Phase(1, "train")))
    now_s, step, saved_s = 700.0, 0, float("inf")
    while now_s < 4300.0:
        step += 1
        now_s += (120.0 if step == 1 else 4.0 if step % 7 == 0 else 1.5) + (45.0 if step % 100 == 1 and step > 1 else 0)
        if saved_s <= now_s:
            history.append((saved_s, CheckpointSaved(1, step, 1, 45.0, 240.0)))
            saved_s = float("inf")
        history.append((now_s, progress(step)))
        if step % 100 == 0 and saved_s == float("inf"):
            history.append((now_s, CheckpointStarted(1, step)))
            saved_s = now_s + 240.0
        if step % 150 == 0:
            if saved_s <= now_s + 1200.0:
                history.append((saved_s, CheckpointSaved(1, step, 1, 45.0, 240.0)))
                saved_s = float("inf")
            history.append((now_s, Phase(1, "evaluate")))
            now_s += 1200.0
            history += [(now_s, Evaluated(1, step, 2.0, 64)), (now_s, Phase(1, "train"))]
    return sorted(history, key=lambda timed: timed[0])


def first_hang(history: list[Timed], end_s: float) -> FindHang | None:
    """The first hang that the supervisor's own fold and policy find, looking once a second as its loop does."""
    child: Timed = (0.5, ChildStarted(1, "trainer", 7, 8, "log"))
    opening: list[Timed] = [(0.0, RunOpened("r", 1, 100_000, "0.1")), history[0], child]
    waiting = deque([*records(opening, "supervisor"), *records(history[1:])])
    state = State()
    for now_s in range(1, int(end_s)):
        while waiting and waiting[0].time_s <= now_s:
            state = fold(state, waiting.popleft())
        action = decide(state, Policy(), now_s)
        if isinstance(action, FindHang):
            return action
    return None


def test_an_hour_of_healthy_running_with_long_evaluations_and_saves_raises_no_alarm() -> None:
    history = healthy_hour()
    kinds = [event.kind for _, event in history]
    assert kinds.count("evaluated") >= 1
    assert kinds.count("checkpoint_saved") >= 1
    assert first_hang(history, history[-1][0]) is None


@pytest.mark.parametrize(
    ("last_step", "limit_s"), [(90, FLOOR_S), (110, FLOOR_S + SAVING_MOST_S)], ids=["in training", "beside a save"]
)
def test_the_same_hour_that_stops_dead_is_found_when_its_limit_has_passed(last_step: int, limit_s: float) -> None:
    history = healthy_hour()
    stopped = next(
        at for at, (_, event) in enumerate(history) if isinstance(event, Progress) and event.step == last_step
    )
    found = first_hang(history[: stopped + 1], history[stopped][0] + 3600)
    assert found is not None
    assert found.limit_s == limit_s
    assert limit_s <= found.silent_s <= limit_s + 1


def test_a_trainer_without_readable_steps_is_no_hang_while_its_processes_work() -> None:
    """Its checkpoints are events too, and say nothing about the next one."""
    limits = SilenceLimits(reports=False, is_mute=True)
    saved = Learned(1, heard=True)
    assert compute_limit_s(saved, "start", limits) == CEILING_S
    policy = Policy(reports=False, is_mute=True)
    state = State()
    begun: list[Event] = [RunOpened("r", 1, 300, "0"), LaunchAsked(1, 0), ChildStarted(1, "trainer", 1, 1, "")]
    for number, event in enumerate(begun):
        state = fold(state, Record(0.0, "supervisor", number, event))
    now_s = 10 * CEILING_S
    found = decide(state, policy, now_s)
    assert isinstance(found, FindHang)
    assert found.until_s > now_s  # so processes that are seen at work go on
    assert compute_limit_s(saved._replace(steps_seen=1), "train", limits) < CEILING_S
