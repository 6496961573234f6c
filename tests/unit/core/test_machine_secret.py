"""How strong the secret of several machines must be, and what a machine without one is refused with."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_train.core.errors import UserError
from prime_train.core.machine_secret import (
    SHORTEST_CHARACTERS,
    create_secret,
    find_fault,
    find_launcher,
    find_weakness,
    refuse_weak,
    require_secret,
)
from prime_train.core.machines import SECRET, Machines, is_loopback

TWO = Machines(0, ("10.0.0.1", "10.0.0.2"))
STRONG = "0f1e2d3c4b5a6978"


@pytest.mark.parametrize(
    ("secret", "weakness"),
    [
        ("", "it is not set"),
        ("of the run", "it has 10 characters, fewer than 16"),
        ("0f1e2d3c4b5a697", "it has 15 characters, fewer than 16"),
        ("a" * 64, "it has only 1 different characters"),
        ("secret" * 5, "it has only 5 different characters"),
        (STRONG, ""),
    ],
)
def test_a_secret_that_can_be_guessed_is_weak(secret: str, weakness: str) -> None:
    assert find_weakness(secret) == weakness


@given(st.text("^§%~#!&*", min_size=1, max_size=SHORTEST_CHARACTERS - 1))
def test_no_short_secret_is_strong_and_none_is_shown(secret: str) -> None:
    with pytest.raises(UserError) as caught:
        refuse_weak(secret)
    assert secret not in str(caught.value)


@pytest.mark.parametrize("before", [{}, {SECRET: ""}])
def test_a_secret_that_is_made_is_strong_and_another_each_time(before: dict[str, str]) -> None:
    first, second = dict(before), dict(before)
    create_secret(first)
    create_secret(second)
    assert find_weakness(first[SECRET]) == find_weakness(second[SECRET]) == ""
    assert first[SECRET] != second[SECRET]


def test_a_secret_that_is_set_stays() -> None:
    environment = {SECRET: "of the user"}
    create_secret(environment)
    assert environment == {SECRET: "of the user"}


@pytest.mark.parametrize("addresses", [("127.0.0.1", "127.0.0.2"), ("localhost", "::1")])
def test_on_loopback_alone_no_secret_is_needed(addresses: tuple[str, ...]) -> None:
    require_secret(Machines(0, addresses), {})


@pytest.mark.parametrize(
    "address", ["10.0.0.2", "192.168.1.5", "8.8.8.8", "fe80::1%eth0", "0.0.0.0", "node-2", "127.1", "localhost.example"]
)
@pytest.mark.parametrize("secret", ["", "short"])
def test_with_one_other_address_a_secret_is_needed_on_each_machine(address: str, secret: str) -> None:
    """A name may have another address later, also one that is loopback here, as Debian's 127.0.1.1."""
    assert not is_loopback(address)
    for rank in (0, 1):
        machines = Machines(rank, ("127.0.0.1", address), port=4000)
        with pytest.raises(UserError) as caught:
            require_secret(machines, {SECRET: secret})
        error = caught.value
        assert error.where == SECRET
        assert f"machine 1 ({address}) is beyond loopback" in error.what
        assert "port 4000" in error.why
        assert f"export {SECRET}=$(cat ~/machine.secret)" in error.fix
        require_secret(machines, {SECRET: STRONG})


@pytest.mark.parametrize(
    ("environment", "fix"),
    [
        ({"SLURM_STEP_NODELIST": "gpu[1-2]"}, f"export {SECRET}=$(openssl rand -hex 32) before srun"),
        ({"SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2"}, f"sky launch --secret {SECRET} TASK"),
        ({}, "scp -p ~/machine.secret 10.0.0.2:"),
    ],
)
def test_the_repair_is_that_of_what_started_the_machines(environment: dict[str, str], fix: str) -> None:
    fault = find_fault(TWO, "it is not set", find_launcher(environment))
    assert fault is not None
    assert fix in fault.fix


def test_many_machines_are_copied_to_in_a_loop_and_an_address_is_no_command() -> None:
    names = ("a", "$(touch x)", "fe80::2", *(f"node-{number}" for number in range(9)))
    fault = find_fault(Machines(0, names), "it is not set", "")
    assert fault is not None
    assert "for machine in '$(touch x)' '[fe80::2]' node-0 node-1 ...; do scp -p" in fault.fix
