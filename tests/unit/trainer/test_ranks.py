"""Every process of every machine has a rank of its own."""

import inspect

from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.elastic.multiprocessing.api import PContext

from prime_train.core.machines import Machines
from prime_train.supervise.core.policy import Policy
from prime_train.trainer.attempt import (
    HERE_ENV,
    HOST_ENV,
    REPLICA_ENV,
    REPLICAS_ENV,
    Ranks,
    read_ranks,
    read_replica,
)


def test_one_process_is_rank_0_of_1() -> None:
    assert read_ranks({}) == Ranks(0, 1, 0, 1, None)


def test_one_machine_has_the_ranks_of_torchrun() -> None:
    assert read_ranks({"RANK": "3", "WORLD_SIZE": "4"}) == Ranks(3, 4, 3, 4, None)


@given(st.integers(2, 12), st.integers(1, 9))
def test_ranks_of_all_machines_are_counted_through(machines: int, processes: int) -> None:
    addresses = tuple(f"10.0.0.{number}" for number in range(machines))
    found = [
        read_ranks(Machines(machine, addresses).variables() | {"RANK": str(local), "WORLD_SIZE": str(processes)})
        for machine in range(machines)
        for local in range(processes)
    ]
    assert [ranks.rank for ranks in found] == list(range(machines * processes))
    assert {ranks.size for ranks in found} == {machines * processes}
    assert [ranks.local_rank for ranks in found] == list(range(processes)) * machines


def test_a_replica_of_another_machine_never_leads() -> None:
    here = {REPLICAS_ENV: "4", HOST_ENV: "10.0.0.2", HERE_ENV: "2"}
    found = [read_replica({REPLICA_ENV: str(number), **here}) for number in range(4)]
    assert [one is not None and one.may_lead for one in found] == [True, True, False, False]
    first = found[0]
    assert first is not None
    assert first.host == "10.0.0.2"
    assert [first.has_writer(members) for members in ((1, 3), (2, 3), ())] == [True, False, True]
    alone = read_replica({REPLICA_ENV: "3", REPLICAS_ENV: "4"})
    assert alone is not None
    assert (alone.may_lead, alone.has_writer((3,)), alone.host) == (True, True, "127.0.0.1")


def test_torchrun_has_time_to_write_which_rank_was_killed() -> None:
    """It does so when the other ranks have ended, and the supervisor must not end it before."""
    waits_s = inspect.signature(PContext.close).parameters["timeout"].default
    assert waits_s + 10.0 <= Policy().exit_grace_s
