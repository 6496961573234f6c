"""Machines beyond loopback: none starts without a secret, and a host without that of the run cannot join."""

import json
import secrets
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from prime_train.core.machine_secret import find_fault, find_weakness
from prime_train.core.machines import SECRET, Machines
from prime_train.events import AttemptEnded
from tests.drills.networks import can_make_networks, joined_networks
from tests.unit.cli import small
from tests.unit.cli.commands import clean_environment, prime_train
from tests.unit.supervise.machines import hosts

BEYOND = "10.203.8.1,10.203.8.2"
PORT = 29_400
_NEVER_FORKED = 99  # an attempt: the server of the forks would start trainers in its own network
_TWO = (*hosts.set_processes(2), "parallel.machines=2")

# Tries to join as machine 1 with the credentials that every installation makes, until the server has refused them.
_STRANGER = """
import sys
from prime_train.bus.nats import NatsBus
from prime_train.bus.shared_secret import derive_credentials
bus = NatsBus(derive_credentials("", "machine-1", sys.argv[1], int(sys.argv[2])), "machine-1", 0.2)
while not any("certificate verify failed" in problem for problem in bus.take_problems()):
    assert not bus.wait_connected(0.2), "it has joined"
print("refused")
bus.close()
"""


@pytest.mark.parametrize(
    ("rank", "secret", "what"),
    [
        (0, "", "it is not set, and machine 0 (10.203.8.1) is beyond loopback"),
        (1, "", "it is not set, and machine 0 (10.203.8.1) is beyond loopback"),
        (0, "of this run", "it has 11 characters, fewer than 16"),
    ],
)
def test_no_machine_starts_with_a_secret_that_protects_nothing(
    tmp_path: Path, rank: int, secret: str, what: str
) -> None:
    hosts.write(tmp_path)
    with hosts.machine(tmp_path, rank, PORT, *_TWO, addresses=BEYOND, secret=secret) as process:
        output = " ".join(process.communicate(timeout=hosts.LIMIT_S)[0].split())
    assert process.returncode == 2, output
    assert what in output
    assert "port 29400 of machine 0" in output
    assert f"export {SECRET}=$(cat ~/machine.secret)" in output
    assert not (tmp_path / str(rank) / "runs").exists()


def test_a_machine_whose_environment_names_others_is_judged_by_validate(tmp_path: Path) -> None:
    small.write(tmp_path)
    config = tmp_path / "run.toml"
    config.write_text(f"{config.read_text()}\n[parallel]\nprocesses = 2\nmachines = 2\n")
    place = Machines(0, tuple(BEYOND.split(","))).variables()
    for secret, found in (("", ["MCH001"]), (secrets.token_hex(32), [])):
        judged = prime_train("validate", "run.toml", "--offline", "--json", cwd=tmp_path, **place, **{SECRET: secret})
        codes = [finding["code"] for finding in json.loads(judged.stdout)["files"][0]["findings"]]
        assert [code for code in codes if code.startswith("MCH")] == found
        assert not secret or secret not in judged.stdout


@pytest.mark.parametrize("rank", [0, 1])
def test_the_commands_of_the_message_bring_one_secret_to_both_machines(tmp_path: Path, rank: int) -> None:
    """They are typed as they stand; the copy goes to the home folder of the other machine."""
    bin_folder, others = tmp_path / "bin", [tmp_path / "home-0", tmp_path / "home-1"]
    for folder in (bin_folder, *others):
        folder.mkdir()
    copy = f"""#!/bin/sh
for word; do :; done
case "$word" in
    *:) cp -p "$2" {others[1]} ;;
    *) cp -p {others[0]}/machine.secret "$word" ;;
esac
"""
    (bin_folder / "scp").write_text(copy)
    (bin_folder / "scp").chmod(0o755)

    def type_in(home: Path, command: str) -> str:
        environment = {"HOME": str(home), "PATH": f"{bin_folder}:{clean_environment()['PATH']}"}
        return subprocess.run(
            ["bash", "-euc", command], env=environment, check=True, capture_output=True, text=True
        ).stdout

    fault = find_fault(Machines(rank, ("10.203.8.1", "10.203.8.2")), "it is not set", "")
    assert fault is not None
    shown = f'; printf %s "${SECRET}"'
    if rank == 0:
        here, everywhere = fault.fix.split("; on every machine: ")
        type_in(others[0], here)
        found = [type_in(home, everywhere + shown) for home in others]
    else:
        there, here = fault.fix.removeprefix("on machine 0: ").split("; here: ")
        type_in(others[0], there)
        found = [type_in(others[1], here + shown), (others[0] / "machine.secret").read_text().strip()]
    assert found[0] == found[1]
    assert find_weakness(found[0]) == ""
    assert {(home / "machine.secret").stat().st_mode & 0o777 for home in others} == {0o600}


@pytest.mark.timeout(600)
def test_with_a_secret_two_machines_train_and_one_without_is_kept_out(tmp_path: Path) -> None:
    """Machine 0 waits for machine 1 while the stranger tries to be it."""
    if not can_make_networks():
        pytest.skip("networks need root and iproute2")
    hosts.write(tmp_path)
    secret = secrets.token_hex(32)
    with joined_networks(2) as networks, ExitStack() as stack:
        addresses = ",".join(networks.address(rank) for rank in range(2))
        seen: list[str] = []

        def start(rank: int) -> subprocess.Popen[str]:
            made = hosts.machine(
                tmp_path,
                rank,
                PORT,
                *_TWO,
                addresses=addresses,
                within=networks.enter(rank),
                secret=secret,
                fork_from_attempt=_NEVER_FORKED,
            )
            return stack.enter_context(made)

        first = start(0)
        answer = _run_stranger([*networks.enter(1), sys.executable, "-c", _STRANGER, networks.address(0), str(PORT)])
        seen += networks.list_processes(0).values()
        second = start(1)
        outputs = [process.communicate(timeout=hosts.LIMIT_S)[0] for process in (first, second)]
    assert answer == "refused\n"
    assert (first.returncode, second.returncode) == (0, 0), outputs
    run_dir = hosts.run_dir(tmp_path)
    ended = [event for event in hosts.read_events(run_dir) if isinstance(event, AttemptEnded)]
    assert [(event.attempt, event.outcome) for event in ended] == [(1, "finished")], outputs
    reported = run_dir.log(1, "machines").read_text(encoding="utf-8")
    assert "the bus refused 10.203.8.2: it does not speak TLS with the certificate of this run" in reported
    assert any("nats_start" in command or "nats-server" in command for command in seen)
    files = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert not [text for text in (*seen, *outputs) if secret in text]
    assert not [content for content in files if secret.encode() in content]


def _run_stranger(command: Sequence[str]) -> str:
    return subprocess.run(
        command, env=clean_environment(), capture_output=True, text=True, timeout=120, check=True
    ).stdout
