"""A spike is found within three steps, and noise of any seed gives no alarm."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_train.events import (
    CommandAccepted,
    InstabilityFound,
    LaunchAsked,
    RequestAnswered,
    RunOpened,
    SettingsAccepted,
)
from prime_train.spec.supervision import Instability
from prime_train.supervise.core.fold_instability import find_request, is_made
from prime_train.supervise.core.instability import (
    FEWEST_STEPS,
    STREAK_STEPS,
    WINDOW_STEPS,
    Excess,
    ReportedStep,
    find_instability,
)
from prime_train.supervise.core.state import POLICY, Live, evolve
from prime_train.supervise.services.instability import is_quiet
from tests.unit.supervise.core.test_fold import folded

SEEDS = range(20)
STEPS = 2_000


def draw_t(chance: random.Random) -> float:
    """Student's t with 3 degrees of freedom: its variance exists, and its tails are heavy."""
    return chance.gauss(0, 1) / math.sqrt(sum(chance.gauss(0, 1) ** 2 for _ in range(3)) / 3)


def draw_laplace(chance: random.Random) -> float:
    return chance.expovariate(1) * chance.choice((-1, 1))


def alarms(losses: list[float]) -> list[int]:
    """The number of steps after which something is found."""
    steps = [ReportedStep(number, loss) for number, loss in enumerate(losses, 1)]
    most = WINDOW_STEPS + STREAK_STEPS
    return [end for end in range(1, len(steps) + 1) if find_instability(steps[max(0, end - most) : end]) is not None]


@pytest.mark.parametrize("draw", [draw_t, draw_laplace, lambda chance: chance.gauss(0, 1)])
def test_noise_with_heavy_tails_is_no_instability(draw: object) -> None:
    for seed in SEEDS:
        chance = random.Random(seed)
        # A loss that falls, with noise around it.
        losses = [2 + 3 * math.exp(-step / 300) + 0.05 * draw(chance) for step in range(STEPS)]  # type: ignore[operator]
        assert alarms(losses) == [], seed


@given(seed=st.integers(0, 10**6), begin=st.integers(FEWEST_STEPS, 300), height=st.floats(2, 1e6))
def test_a_spike_is_found_at_its_third_step(seed: int, begin: int, height: float) -> None:
    chance = random.Random(seed)
    losses = [2 + 0.05 * draw_laplace(chance) for _ in range(begin)]
    assert alarms(losses + [2 + height] * STREAK_STEPS) == [begin + STREAK_STEPS]


@given(before=st.lists(st.floats(0, 10), max_size=60), value=st.sampled_from([math.nan, math.inf, -math.inf]))
def test_a_value_that_is_no_number_is_found_at_once(before: list[float], value: float) -> None:
    steps = [ReportedStep(number, loss, 1.0) for number, loss in enumerate(before, 1)]
    last = len(before) + 1
    for one in (ReportedStep(last, value, 1.0), ReportedStep(last, 1.0, value), ReportedStep(last, None, value)):
        found = find_instability([*steps, one])
        assert found is not None
        assert (found.step, found.is_finite) == (last, False)


def test_the_gradient_norm_is_judged_likewise() -> None:
    steps = [ReportedStep(number, 2.0, 1.0) for number in range(1, 101)]
    steps += [ReportedStep(number, 2.0, 5.0) for number in range(101, 104)]
    found = find_instability(steps)
    assert found is not None
    assert found.what == (
        "the gradient norm of steps 101 to 103 is 5 or more, above 1.006: the median of 100 steps is 1"
    )


def test_two_high_steps_and_one_that_is_not_known_are_no_instability() -> None:
    steps = [ReportedStep(number, 2.0) for number in range(1, 101)]
    assert find_instability([*steps, ReportedStep(101, 9.0), ReportedStep(102, 9.0)]) is None
    assert find_instability([*steps, *(ReportedStep(one, loss) for one, loss in enumerate((9.0, None, 9.0)))]) is None
    assert find_instability([]) is None


FOUND = InstabilityFound(1, 1, 120, "the loss", ("optim.lr = 0.1",), 100, auto=True)


def answered(part: str, outcome: str) -> RequestAnswered:
    return RequestAnswered(f"instability-1-{part}", "command_requested", outcome, "")


def test_the_run_goes_back_before_its_rate_is_lowered() -> None:
    state = evolve(folded(FOUND), live=Live(1, 0.0))
    request = find_request(state)
    assert request is not None
    assert request.body == {"command": "go_back", "step": 100, "by": POLICY, "why": "instability 1: the loss"}
    state = folded(answered("back", "accepted"), state=state)
    assert find_request(state) is None  # the attempt still lives, and its plan would be dropped
    request = find_request(evolve(state, live=None))
    assert request is not None
    assert (request.body["values"], request.body["expected"]) == ({"optim.lr": 0.1}, 0)
    state = folded(answered("rate", "accepted"), state=evolve(state, live=None))
    assert find_request(state) is None
    assert is_made(state)


def test_a_refused_part_ends_the_change() -> None:
    state = folded(FOUND, answered("back", "refused"))
    assert find_request(state) is None
    assert not is_made(state)


def test_a_proposal_waits_for_a_person_and_a_change_by_hand_takes_its_place() -> None:
    proposed = InstabilityFound(1, 1, 120, "the loss", ("optim.lr = 0.1",), 0, auto=False)
    state = folded(proposed)
    assert (state.is_proposed, find_request(state)) == (True, None)
    accepted = folded(CommandAccepted("a", "accept", "me@here", 1), state=state)
    request = find_request(accepted)
    assert request is not None
    assert (accepted.is_proposed, request.body["by"]) == (False, "me@here")
    assert folded(CommandAccepted("a", "accept", "me@here", 2), state=state).is_proposed
    assert not folded(SettingsAccepted(1, (), "me@here"), state=state).is_proposed
    assert not folded(CommandAccepted("a", "go_back", "me@here", 50), state=state).is_proposed
    assert not folded(RunOpened("r", 1, 300, "0.1"), state=state).is_proposed


@pytest.mark.parametrize(
    ("found", "before", "is_over"),
    [
        (Excess(320, ""), FOUND, False),
        (Excess(300, ""), FOUND, True),  # the run went back to step 100
        (Excess(121, "", is_finite=False), FOUND, True),
        (Excess(121, "", is_finite=False), InstabilityFound(0, 1, 120, "", (), 0, auto=True), False),
        (Excess(121, "", has_ended=True), FOUND, False),
        (Excess(121, ""), None, False),
    ],
)
def test_an_answer_is_followed_by_no_other_for_a_while(
    found: Excess, before: InstabilityFound | None, is_over: bool
) -> None:
    state = evolve(folded(LaunchAsked(1, 0)), instability=before)
    assert is_quiet(found, state, Instability(cool_down_steps=200)) is is_over
