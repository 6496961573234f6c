"""What machine 0 makes of the other machines: who may join, whose end ends the attempt, and which events count."""

import signal
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from prime_train.core.errors import UserError
from prime_train.core.machines import Machines
from prime_train.core.process_id import own_identity
from prime_train.core.rundir import RunDir
from prime_train.events import CheckpointUnreadable, Event, EventLog, Progress, TrainerFailed, encode, read
from prime_train.supervise.machines import relay
from prime_train.supervise.machines.protocol import CONFIG_HASH, Channel, join
from tests.unit.cli.commands import wait_until
from tests.unit.supervise.machines.hosts import free_port

MACHINES = Machines(0, ("127.0.0.1", "127.0.0.2", "127.0.0.3"))
LAUNCH = {"kind": "launch", "attempt": 2, "resume_step": 40, "micro_batch": 4}


class Run:
    """The relay of an attempt, and followers that a test plays."""

    def __init__(self, folder: Path) -> None:
        self.run_dir = RunDir(folder)
        self.relay = relay._Relay(MACHINES, self.run_dir, LAUNCH, "config", 8)
        self.relay.allowed = frozenset(MACHINES.addresses)
        self.server = socket.create_server(("127.0.0.1", 0))
        self.opened: list[Channel] = []

    def connect(self, rank: int) -> Channel:
        source = (f"127.0.0.{rank + 1}", 0)
        channel = Channel(socket.create_connection(self.server.getsockname(), 5, source_address=source))
        self.opened.append(channel)
        self.relay.accept(self.server)
        return channel

    def join(self, rank: int, config: str = "config") -> Channel:
        channel = self.connect(rank)
        channel.send(join(rank, config))
        self.relay.turn()
        return channel

    def send(self, channel: Channel, **message: object) -> None:
        channel.send(dict(message))
        self.relay.turn()

    def events(self) -> list[Event]:
        return [record.event for record in read(self.run_dir.events)]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    made = Run(tmp_path)
    yield made
    made.server.close()
    for channel in (*made.opened, *made.relay.joined.values()):
        channel.close()


def test_a_machine_that_joins_starts_at_the_checkpoint_of_machine_0(run: Run) -> None:
    assert run.join(1).receive() == [LAUNCH]
    assert run.relay.missing() == [2]
    assert run.join(2).receive() == [LAUNCH]
    assert run.relay.missing() == []


def test_another_config_is_refused_and_ends_the_attempt(run: Run) -> None:
    follower = run.join(1, "another")
    assert follower.receive() == [{"kind": "refused", "why": "its config is not that of machine 0"}]
    (failed,) = run.events()
    assert isinstance(failed, TrainerFailed)
    assert (failed.cause_class, failed.rank) == ("config", 8)
    assert "machine 1 (127.0.0.2)" in failed.what
    assert run.relay.failed == 5


def test_a_machine_that_leaves_while_it_joins_may_come_again(run: Run) -> None:
    follower = run.connect(1)
    follower.send(join(1, "config"))
    follower.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset, no last words
    follower.close()
    run.relay.turn()
    assert run.relay.waiting == []
    assert run.relay.failed is None
    assert run.join(1).receive() == [LAUNCH]


def test_only_machines_of_the_run_may_connect(run: Run) -> None:
    stranger = run.connect(8)
    assert stranger.socket.recv(1) == b""
    assert run.relay.waiting == []


def test_a_killed_trainer_is_named_with_its_machine(run: Run) -> None:
    follower = run.join(2)
    run.send(follower, kind="exited", code=-9)
    (failed,) = run.events()
    assert isinstance(failed, TrainerFailed)
    assert failed.what == "machine 2 (127.0.0.3): its trainer was killed by signal 9"
    assert (failed.cause_class, failed.rank) == ("signal", 16)


def test_a_lost_machine_ends_the_attempt(run: Run) -> None:
    run.join(1).close()
    run.relay.turn()
    (failed,) = run.events()
    assert isinstance(failed, TrainerFailed)
    assert failed.cause_class == "hardware"
    assert "machine 1 (127.0.0.2) was lost" in failed.what
    assert run.relay.failed == 1


def test_a_trainer_that_has_finished_ends_nothing(run: Run) -> None:
    follower = run.join(1)
    run.send(follower, kind="exited", code=0)
    follower.close()
    run.relay.turn()
    assert run.relay.failed is None
    assert run.events() == []


def test_only_reports_of_this_attempt_that_rank_0_does_not_make_are_kept(run: Run, tmp_path: Path) -> None:
    follower = run.join(1)
    kept = CheckpointUnreadable(2, 40, "its bytes changed")
    log = EventLog(tmp_path / "other", "trainer")
    for event in (kept, CheckpointUnreadable(1, 20, "earlier"), Progress(2, 41, 1.0, 1.0, 1)):
        run.send(follower, kind="event", line=encode(log.append(event)))
    run.send(follower, kind="event", line="no event")
    assert run.events() == [kept]


def test_a_machine_that_does_not_come_is_named(run: Run) -> None:
    run.join(1)
    run.relay.give_up(60.0)
    (failed,) = run.events()
    assert isinstance(failed, TrainerFailed)
    assert failed.what == "machine 2 (127.0.0.3) did not come within 60 s"
    assert "join_limit_s" in failed.fix
    assert run.relay.failed == 4


def test_a_name_server_that_is_away_ends_the_attempt_and_not_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find_nothing(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", find_nothing)
    for name, value in {**MACHINES.variables(), CONFIG_HASH: "config"}.items():
        monkeypatch.setenv(name, value)
    numbers = {"--attempt": 2, "--resume-step": 0, "--micro-batch": 4, "--processes": 8, "--join-limit-s": 1}
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        code = relay.main([str(tmp_path), *(f"{name}={value}" for name, value in numbers.items())])
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    (failed,) = [record.event for record in read(RunDir(tmp_path).events)]
    assert isinstance(failed, TrainerFailed)
    assert (code, failed.cause_class) == (5, "network")


def test_a_stop_on_one_machine_stops_the_run(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, _: stopped.append(number))
    monkeypatch.setenv("PRIME_TRAIN_SUPERVISOR", str(own_identity()))
    try:
        run.send(run.join(1), kind="stop", by="SIGTERM")
        wait_until(lambda: stopped == [signal.SIGUSR1])
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_the_end_of_the_run_reaches_every_machine() -> None:
    machines = Machines(0, MACHINES.addresses, free_port())
    thread = threading.Thread(target=relay.report_end, args=(machines, 75))
    thread.start()
    answers = [_ask(machines, rank) for rank in (1, 2)]
    thread.join()
    assert answers == [{"kind": "closed", "code": 75}] * 2


def _ask(machines: Machines, rank: int) -> object:
    opened: list[Channel] = []

    def connect() -> bool:
        try:
            source = (machines.addresses[rank], 0)
            opened.append(Channel(socket.create_connection(("127.0.0.1", machines.port), 5, source_address=source)))
        except OSError:
            return False
        return True

    wait_until(connect)
    opened[0].send(join(rank, "config"))
    answers: list[object] = []

    def has_answer() -> bool:
        answers.extend(opened[0].receive())
        return bool(answers)

    wait_until(has_answer)
    opened[0].close()
    return answers[0]


def test_a_port_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(UserError, match="--machine-port"):
        relay.listen(Machines(0, MACHINES.addresses, taken.getsockname()[1]))


def test_machine_0_listens_on_its_own_address_alone() -> None:
    with relay.listen(Machines(0, ("127.0.0.7", "127.0.0.8"), free_port())) as server:
        assert server.getsockname()[0] == "127.0.0.7"
