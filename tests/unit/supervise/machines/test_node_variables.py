"""Which machines the variables of a cloud, a scheduler or a user name."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_train.core.errors import UserError
from prime_train.core.machines import Machines, expand_nodes, find_machines, read_machines

SKYPILOT = {
    "SKYPILOT_NODE_RANK": "1",
    "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2",
    "SKYPILOT_NUM_NODES": "2",
    "SKYPILOT_NUM_GPUS_PER_NODE": "8",
}
SLURM = {
    "SLURM_JOB_ID": "42",
    "SLURM_PROCID": "2",
    "SLURM_NODEID": "2",
    "SLURM_STEP_NODELIST": "gpu[01-02],login",
    "SLURM_JOB_NODELIST": "gpu[01-02],login",
}


def test_skypilot_names_one_address_in_each_line() -> None:
    assert find_machines(SKYPILOT) == Machines(1, ("10.0.0.1", "10.0.0.2"), 29400)


def test_slurm_names_nodes_and_its_jobs_have_ports_of_their_own() -> None:
    found = find_machines(SLURM)
    assert found == Machines(2, ("gpu01", "gpu02", "login"), 20084)
    another = find_machines(SLURM | {"SLURM_JOB_ID": "43"})
    assert another is not None
    assert another.port not in (20084, 20085)


def test_options_come_first() -> None:
    given = {
        "PRIME_TRAIN_MACHINE_RANK": "0",
        "PRIME_TRAIN_MACHINE_ADDRESSES": "a, b",
        "PRIME_TRAIN_MACHINE_PORT": "4000",
    }
    assert find_machines(SKYPILOT | given) == Machines(0, ("a", "b"), 4000)


@pytest.mark.parametrize(
    "variables",
    [
        {},
        SKYPILOT | {"SKYPILOT_NODE_IPS": "10.0.0.1", "SKYPILOT_NUM_NODES": "1", "SKYPILOT_NODE_RANK": "0"},
        {name: value for name, value in SLURM.items() if name != "SLURM_PROCID"},
    ],
    ids=["none", "one machine", "a batch script"],
)
def test_one_machine_needs_no_others(variables: dict[str, str]) -> None:
    assert find_machines(variables) is None


@pytest.mark.parametrize(
    ("variables", "where"),
    [
        (SKYPILOT | {"SKYPILOT_NUM_NODES": "3"}, "SKYPILOT_NODE_IPS"),
        (SKYPILOT | {"SKYPILOT_NODE_RANK": "2"}, "SKYPILOT_NODE_IPS"),
        ({name: value for name, value in SKYPILOT.items() if name != "SKYPILOT_NODE_RANK"}, "SKYPILOT_NODE_IPS"),
        (SLURM | {"SLURM_STEP_NODELIST": "gpu[01-"}, "SLURM_STEP_NODELIST"),
        (SLURM | {"SLURM_STEP_NODELIST": "gpu[1-100000]"}, "SLURM_STEP_NODELIST"),
        ({"PRIME_TRAIN_MACHINE_ADDRESSES": "a,b"}, "PRIME_TRAIN_MACHINE_ADDRESSES"),
        (
            {"PRIME_TRAIN_MACHINE_ADDRESSES": "a,", "PRIME_TRAIN_MACHINE_RANK": "0"},
            "PRIME_TRAIN_MACHINE_ADDRESSES",
        ),
        (
            {
                "PRIME_TRAIN_MACHINE_ADDRESSES": "a,b",
                "PRIME_TRAIN_MACHINE_RANK": "0",
                "PRIME_TRAIN_MACHINE_PORT": "65535",
            },
            "PRIME_TRAIN_MACHINE_ADDRESSES",
        ),
    ],
)
def test_variables_that_contradict_are_named(variables: dict[str, str], where: str) -> None:
    with pytest.raises(UserError) as caught:
        find_machines(variables)
    assert caught.value.where == where
    assert "--machine-rank" in caught.value.fix


@given(st.integers(1, 40), st.data(), st.integers(1, 65_534))
def test_children_read_what_the_command_wrote(count: int, data: st.DataObject, port: int) -> None:
    rank = data.draw(st.integers(0, count - 1))
    machines = Machines(rank, tuple(f"10.0.0.{number}" for number in range(count)), port, "eth0", "10.0.0.7")
    assert read_machines(machines.variables()) == machines


@given(st.lists(st.integers(0, 300), min_size=1, max_size=30, unique=True), st.sampled_from(["n", "rack1-gpu"]))
def test_a_list_of_slurm_names_each_node(numbers: list[int], prefix: str) -> None:
    text = f"{prefix}[{','.join(f'{number:03}' for number in numbers)}],login"
    assert list(expand_nodes(text)) == [*(f"{prefix}{number:03}" for number in numbers), "login"]


@given(st.text("abc[]0-9,-", max_size=40))
def test_any_text_is_a_list_or_refused(text: str) -> None:
    with contextlib.suppress(ValueError):
        assert "[" not in "".join(expand_nodes(text))
