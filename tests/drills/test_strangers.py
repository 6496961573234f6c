"""Two machines with networks of their own, and a stranger on each: the run ends as if nobody had been there."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from prime_train.checkpoints import layout
from prime_train.core.rundir import RunDir
from prime_train.events import AttemptEnded, read
from tests.drills.networks import can_make_networks, joined_networks
from tests.unit.cli.commands import wait_until
from tests.unit.supervise.machines import hosts

_STRANGER = Path(__file__).with_name("stranger.py")
_SETTINGS = ("parallel.processes=2", "parallel.dp_shard=2", "batch.global_batch=8")
_LENGTH = ("run.max_steps=60", "checkpoint.interval_steps=20", "eval.interval_steps=60")
_LEAST_ATTACKS = 40  # connections of each stranger, in each run
PORT = 29_400


pytestmark = [
    pytest.mark.timeout(1200),
    pytest.mark.skipif(not can_make_networks(), reason="network namespaces need root and iproute2"),
]


@contextmanager
def stranger(within: tuple[str, ...], address: str, seed: int, log: Path) -> Iterator[None]:
    with open(log, "wb") as output:
        process = subprocess.Popen(
            [*within, sys.executable, "-S", str(_STRANGER), address, str(PORT), str(seed)], stdout=output, stderr=output
        )
        try:
            yield
            assert process.poll() is None, log.read_text()
        finally:
            process.kill()
            process.wait()


def count_connections(log: Path) -> int:
    """The connections of a stranger up to now; a line that is not finished does not count."""
    lines = log.read_text(encoding="utf-8").split("\n")[:-1]
    return sum(int(line.partition(" ")[0]) for line in lines)


def _weights(run_dir: RunDir, step: int) -> dict[str, str]:
    files = json.loads((run_dir.checkpoint(step) / layout.MANIFEST).read_text(encoding="utf-8"))["files"]
    return {name: about["sha256"] for name, about in files.items() if name.endswith(".distcp")}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    root = tmp_path_factory.mktemp("alone")
    hosts.write(root)
    return _weights(hosts.train_alone(root / "1", *_SETTINGS, *_LENGTH), 60)


@pytest.mark.spread
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_strangers_on_both_machines_change_nothing(tmp_path: Path, alone: dict[str, str], seed: int) -> None:
    hosts.write(tmp_path)
    settings = (*_SETTINGS, *_LENGTH, "parallel.machines=2")
    with joined_networks(2) as networks, ExitStack() as stack:
        addresses = ",".join(networks.address(rank) for rank in range(2))
        logs = [tmp_path / f"stranger-{rank}.log" for rank in range(2)]
        for rank in range(2):
            stack.enter_context(stranger(networks.enter(rank), networks.address(0), 10 * seed + rank, logs[rank]))

        def start(rank: int) -> subprocess.Popen[str]:
            """Without the fork server, which would start trainers in its own network."""
            within, secret = networks.enter(rank), f"the secret of the run {seed}"
            return stack.enter_context(
                hosts.machine(
                    tmp_path,
                    rank,
                    PORT,
                    *settings,
                    addresses=addresses,
                    within=within,
                    secret=secret,
                    fork_from_attempt=99,
                )
            )

        first = start(0)
        wait_until(lambda: all(count_connections(log) >= _LEAST_ATTACKS for log in logs))  # it waits for machine 1
        second = start(1)
        output, of_second = (process.communicate(timeout=hosts.LIMIT_S)[0] for process in (first, second))
    assert (first.returncode, second.returncode) == (0, 0), output + of_second
    run_dir = hosts.run_dir(tmp_path)
    ended = [record.event for record in read(run_dir.events) if isinstance(record.event, AttemptEnded)]
    assert [(event.attempt, event.outcome) for event in ended] == [(1, "finished")], output
    assert _weights(run_dir, 60) == alone
    assert len(output) < 100_000, "what strangers send is not written without a bound"
    reported = run_dir.log(1, "machines").read_text(encoding="utf-8")
    for address in addresses.split(","):
        assert f"the bus refused {address}: it does not speak TLS with the certificate of this run" in reported
        assert f"the bus refused {address}: it has not the password of a machine of this run" in reported
    assert len(reported) < 100_000, reported[-2000:]
