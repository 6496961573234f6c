"""When the other side of a link is waited for, and when it is lost."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_train.supervise.machines.liveness import ALIVE_S, GONE_S, LOST_S, judge_link

TABLE = [
    # silent for, without a connection for, lost
    ("it speaks", 0.0, None, ""),
    ("it is silent, and its connection stands", 59.0, None, ""),
    ("a network is cut for half a minute", 30.0, None, ""),
    ("a network is cut for long", 61.0, None, "no sign of life for 60 s"),
    ("a server starts again", 2.0, 2.0, ""),
    ("its process was killed", 6.0, 5.5, "its connection has ended"),
    ("its process was killed long ago", 300.0, 299.0, "its connection has ended"),
    ("it connects again", 0.0, None, ""),
]


@pytest.mark.parametrize(("case", "silent_s", "gone_s", "found"), TABLE, ids=[row[0] for row in TABLE])
def test_the_table_of_losses(case: str, silent_s: float, gone_s: float | None, found: str) -> None:
    del case
    now_s = 1000.0
    assert judge_link(now_s, now_s - silent_s, None if gone_s is None else now_s - gone_s) == found


_seconds = st.floats(0.0, 500.0)


@given(_seconds, st.none() | _seconds, _seconds)
def test_what_is_lost_stays_lost_while_nothing_is_heard(silent_s: float, gone_s: float | None, later_s: float) -> None:
    now_s = 1000.0
    heard_s, since_s = now_s - silent_s, None if gone_s is None else now_s - gone_s
    if judge_link(now_s, heard_s, since_s):
        assert judge_link(now_s + later_s, heard_s, since_s)


def test_a_sign_of_life_comes_several_times_before_a_connection_counts_as_gone() -> None:
    assert 4 * ALIVE_S < GONE_S < LOST_S
