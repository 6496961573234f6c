"""Which ends of a run put its job back into the queue, and how often."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_train.away.slurm.requeue import RunEnd, StartProgress, at_end, at_start, refuses_start
from prime_train.core.errors import ExitCode

FIRST = StartProgress("7", 0, 0, 0)
LIMIT = RunEnd(ExitCode.RESUMABLE, signalled=True, stop_requested=False)


def test_a_time_limit_after_progress_requeues() -> None:
    assert at_end(FIRST, LIMIT, 40, 1).requeue


@pytest.mark.parametrize("code", [0, 1, 2, 3, 4, 5, 6])
@pytest.mark.parametrize("signalled", [True, False])
def test_every_other_exit_code_ends_the_job_with_it(code: int, signalled: bool) -> None:
    decision = at_end(FIRST, RunEnd(code, signalled=signalled, stop_requested=False), 40, 3)
    assert (decision.requeue, decision.exit_code) == (False, code)


def test_a_run_that_stops_by_itself_is_not_requeued() -> None:
    """The disk watch pauses a run with 75, and a person may stop its supervisor on the node."""
    decision = at_end(FIRST, LIMIT._replace(signalled=False), 40, 3)
    assert (decision.requeue, decision.exit_code) == (False, 75)


@pytest.mark.parametrize("code", [75, -15, 143, -9])
def test_a_requested_stop_is_not_requeued(code: int) -> None:
    decision = at_end(FIRST, RunEnd(code, signalled=True, stop_requested=True), 40, 3)
    assert (decision.requeue, decision.exit_code) == (False, 75)


@pytest.mark.parametrize(("code", "signalled"), [(-15, True), (143, True), (-9, False), (137, False)])
def test_a_killed_run_is_requeued_without_progress_only_so_often(code: int, signalled: bool) -> None:
    end = RunEnd(code, signalled=signalled, stop_requested=False)
    assert at_end(FIRST, end, 0, 2).requeue
    decision = at_end(FIRST._replace(fruitless=1), end, 0, 2)
    assert (decision.requeue, decision.exit_code) == (False, 6)


def test_another_job_counts_from_zero() -> None:
    spent = StartProgress("7", 4, 10, 3)
    assert at_start(spent, "8", 0, 10) == StartProgress("8", 0, 10, 0)
    assert at_start(None, "8", 2, 10) == StartProgress("8", 2, 10, 0)


def test_a_requeue_by_slurm_itself_counts() -> None:
    """After the failure of a node no program has decided anything."""
    progress = at_start(FIRST, "7", 1, 0)
    assert progress.fruitless == 1
    assert at_start(progress, "7", 1, 0) == progress
    assert refuses_start(progress, 2) is None
    refused = refuses_start(at_start(progress, "7", 2, 0), 2)
    assert refused is not None
    assert (refused.requeue, refused.exit_code) == (False, 6)


STEPS = st.lists(st.integers(0, 3), min_size=1, max_size=60)


@given(
    gains=STEPS, kinds=st.lists(st.sampled_from([75, -15, -9, None]), min_size=60, max_size=60), most=st.integers(1, 5)
)
def test_no_job_starts_for_ever_without_progress(gains: list[int], kinds: list[int | None], most: int) -> None:
    """None: the node fails, and Slurm requeues the job. A start without a gain follows at most `most` - 1 others."""
    progress: StartProgress | None = None
    step = in_a_row = 0
    for restarts, (gain, kind) in enumerate(zip(gains, kinds, strict=False)):
        progress = at_start(progress, "7", restarts, step)
        if refuses_start(progress, most) is not None:
            break
        step += gain
        in_a_row = 0 if gain else in_a_row + 1
        assert in_a_row <= most
        if kind is not None and not at_end(progress, RunEnd(kind, True, False), step, most).requeue:
            break
    else:
        return
    assert in_a_row == most
    assert gains


@given(gains=st.lists(st.integers(1, 9), min_size=1, max_size=40))
def test_a_job_with_progress_is_always_requeued(gains: list[int]) -> None:
    progress, step = None, 0
    for restarts, gain in enumerate(gains):
        progress = at_start(progress, "7", restarts, step)
        assert refuses_start(progress, 1) is None
        step += gain
        assert at_end(progress, LIMIT, step, 1).requeue
