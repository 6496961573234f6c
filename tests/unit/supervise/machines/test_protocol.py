"""What may be in a message of another machine."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_train.core.machines import name_machine
from prime_train.supervise.machines.protocol import (
    KINDS,
    Lost,
    find_rank,
    join,
    name_command,
    name_report,
    parse,
)

_values = st.recursive(st.none() | st.integers() | st.text(), st.lists)


@given(st.dictionaries(st.sampled_from(["kind", "config", "code", "text"]), _values | st.sampled_from(sorted(KINDS))))
def test_other_messages_end_the_channel_and_nothing_else(message: dict[str, object]) -> None:
    with contextlib.suppress(Lost):
        assert parse(message)["kind"] in KINDS


@pytest.mark.parametrize(
    "message",
    [
        {"kind": "launch", "attempt": True, "resume_step": 0, "micro_batch": 1},
        {"kind": "launch", "attempt": 1},
        {"kind": "run", "argv": ["sh"]},
        {"kind": ["join"]},
        {},
    ],
)
def test_a_message_of_another_shape_is_refused(message: dict[str, object]) -> None:
    with pytest.raises(Lost):
        parse(message)


def test_unknown_values_of_a_message_are_dropped() -> None:
    assert parse({**join("a"), "argv": ["sh"]}) == join("a")


@pytest.mark.parametrize("rank", [0, 1, 4095])
def test_a_machine_is_known_by_its_subject(rank: int) -> None:
    assert find_rank(name_report(rank)) == rank
    assert name_command(rank).endswith(f".{name_machine(rank)}")


@pytest.mark.parametrize("user", ["controller", "machine-", "machine--1", "machine-x", "x"])
def test_any_other_user_is_no_machine(user: str) -> None:
    assert find_rank(name_report(user)) == -1
