"""The place of a machine, and what is refused where config, options and variables differ."""

from dataclasses import replace
from pathlib import Path

import pytest

from prime_train.cli.run.machines import find_place
from prime_train.core.errors import UserError
from prime_train.core.machines import SECRET, Machines
from prime_train.spec import Parallel, RunSpec
from tests.unit.trainer import tiny

ADDRESSES = "127.0.0.1,127.0.0.2"


def _run(machines: int) -> RunSpec:
    return replace(tiny.run_spec(Path("text")), parallel=Parallel(processes=4, machines=machines))


def test_a_run_on_one_machine_needs_no_place() -> None:
    assert find_place(_run(1)) is None


def test_the_options_name_the_place() -> None:
    found = find_place(_run(2), 1, ADDRESSES, 4000)
    assert found == Machines(1, ("127.0.0.1", "127.0.0.2"), 4000, "lo", "127.0.0.2")


@pytest.mark.parametrize("others", ["10.0.0.2", "8.8.8.8"])
def test_beyond_loopback_no_machine_has_a_place_without_a_secret(monkeypatch: pytest.MonkeyPatch, others: str) -> None:
    monkeypatch.delenv(SECRET, raising=False)
    for rank in (0, 1):
        with pytest.raises(UserError, match=r"it is not set, and machine 1 .* is beyond loopback"):
            find_place(_run(2), rank, f"127.0.0.1,{others}")
    monkeypatch.setenv(SECRET, "0f1e2d3c4b5a6978")
    assert find_place(_run(2), 1, f"127.0.0.1,{others}") is not None


def test_on_loopback_a_missing_secret_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(SECRET, raising=False)
    find_place(_run(2), 0, ADDRESSES)
    assert f"set {SECRET}=$(openssl rand -hex 32)" in capsys.readouterr().err
    monkeypatch.setenv(SECRET, "a")
    find_place(_run(2), 0, ADDRESSES)
    assert capsys.readouterr().err == ""


def test_replicas_warn_of_the_ports_of_torchft_and_need_ipv4(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(SECRET, "0f1e2d3c4b5a6978")
    run = replace(_run(2), parallel=Parallel(processes=2, replicas=2, machines=2))
    find_place(run, 0, ADDRESSES)
    assert capsys.readouterr().err == ""
    find_place(run, 0, "192.0.2.1,192.0.2.2")
    assert "torchft listens on ports of 192.0.2.1" in capsys.readouterr().err
    with pytest.raises(UserError, match="need IPv4"):
        find_place(run, 0, "::1,::1")


def test_a_machine_that_knows_no_other_is_refused() -> None:
    with pytest.raises(UserError, match="needs 2 machines, and no variable or option names them"):
        find_place(_run(2))


def test_machines_that_the_config_does_not_have_are_refused() -> None:
    with pytest.raises(UserError) as caught:
        find_place(_run(1), 0, ADDRESSES)
    assert "2 machines are named, and the run needs 1" in caught.value.what
    assert "parallel.machines = 2" in caught.value.fix


def test_the_variables_of_skypilot_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"NODE_RANK": "0", "NODE_IPS": ADDRESSES.replace(",", "\n"), "NUM_NODES": "2"}.items():
        monkeypatch.setenv(f"SKYPILOT_{name}", value)
    assert find_place(_run(2)) == Machines(0, ("127.0.0.1", "127.0.0.2"), 29400, "lo", "127.0.0.1")
