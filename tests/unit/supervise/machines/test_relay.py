"""What machine 0 makes of the other machines: who may join, whose end ends the attempt, and which events count."""

import errno
import json
import signal
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prime_train.core.errors import UserError
from prime_train.core.machines import Machines
from prime_train.core.process_id import own_identity
from prime_train.core.rundir import RunDir
from prime_train.events import CheckpointUnreadable, Event, EventLog, Progress, TrainerFailed, encode, read
from prime_train.supervise.machines import relay
from prime_train.supervise.machines.protocol import CONFIG_HASH, KINDS, Channel, Lost, Message, join
from tests.unit.cli.commands import wait_until
from tests.unit.supervise.machines.hosts import free_port

MACHINES = Machines(0, ("127.0.0.1", "127.0.0.2", "127.0.0.3"))
SECRET = "of this run"
LAUNCH = {"kind": "launch", "attempt": 2, "resume_step": 40, "micro_batch": 4}


class Run:
    """The relay of an attempt, and followers that a test plays."""

    def __init__(self, folder: Path) -> None:
        self.run_dir = RunDir(folder)
        self.relay = relay._Relay(MACHINES, self.run_dir, LAUNCH, "config", 8)
        self.relay.door.secret = SECRET
        self.relay.door.allowed = frozenset(MACHINES.addresses)
        self.server = socket.create_server(("127.0.0.1", 0))
        self.opened: list[Channel] = []

    def connect(self, rank: int) -> Channel:
        source = (f"127.0.0.{rank + 1}", 0)
        channel = Channel(socket.create_connection(self.server.getsockname(), 5, source_address=source))
        self.opened.append(channel)
        self.relay.door.accept(self.server)
        return channel

    def send_join(self, rank: int, config: str = "config", secret: str = SECRET) -> Channel:
        channel = self.connect(rank)
        nonce = challenge(channel)
        if nonce:
            channel.send(join(rank, config, secret, nonce, "own nonce"))
        return channel

    def join(self, rank: int, config: str = "config", secret: str = SECRET) -> Channel:
        """A machine that has said its join. What it reads next is what the relay answers to it."""
        channel = self.send_join(rank, config, secret)
        self.relay.turn()
        return channel

    def send(self, channel: Channel, **message: object) -> None:
        channel.send(dict(message))
        self.relay.turn()

    def events(self) -> list[Event]:
        return [record.event for record in read(self.run_dir.events)]


def challenge(channel: Channel) -> str:
    """The nonce that the relay sends first; "" if it has closed the connection."""
    try:
        return next((str(message["nonce"]) for message in channel.receive()), "")
    except Lost:
        return ""


def answers(channel: Channel) -> list[Message]:
    """What the relay answers to a join, after the proof that it has the secret."""
    found: list[Message] = []

    def are_there() -> bool:
        found.extend(channel.receive())
        return len(found) > 1

    wait_until(are_there)  # the kernel may send the second message after the first was acknowledged
    assert found[0]["kind"] == "welcome"
    return found[1:]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    made = Run(tmp_path)
    yield made
    made.server.close()
    for channel in (*made.opened, *made.relay.joined.values()):
        channel.close()


def test_a_machine_that_joins_starts_at_the_checkpoint_of_machine_0(run: Run) -> None:
    assert answers(run.join(1)) == [LAUNCH]
    assert run.relay.missing() == [2]
    assert answers(run.join(2)) == [LAUNCH]
    assert run.relay.missing() == []


def test_another_config_is_refused_and_ends_the_attempt(run: Run) -> None:
    follower = run.join(1, "another")
    assert answers(follower) == [{"kind": "refused", "why": "its config is not that of machine 0"}]
    (failed,) = run.events()
    assert isinstance(failed, TrainerFailed)
    assert (failed.cause_class, failed.rank) == ("config", 8)
    assert "machine 1 (127.0.0.2)" in failed.what
    assert run.relay.failed == 5


def test_a_machine_that_leaves_while_it_joins_may_come_again(run: Run) -> None:
    follower = run.send_join(1)
    follower.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset, no last words
    follower.close()
    run.relay.turn()
    assert run.relay.door.guests == []
    assert run.relay.failed is None
    assert answers(run.join(1)) == [LAUNCH]


@pytest.mark.usefixtures("capfd")  # a file, which stores UTF-8 alone
def test_half_a_character_in_what_a_machine_prints_ends_nothing(run: Run) -> None:
    follower = run.join(1)
    run.send(follower, kind="log", text="\ud800")
    assert run.relay.failed is None


def test_only_machines_of_the_run_may_connect(run: Run) -> None:
    stranger = run.connect(8)
    assert stranger.socket.recv(1) == b""
    assert run.relay.door.guests == []


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


# --- strangers, who have an address of the run -------------------------------------------------------


@pytest.mark.parametrize("config", ["config", "another"])
def test_a_join_without_the_secret_changes_nothing(run: Run, config: str) -> None:
    run.join(1)
    for rank in (1, 2):
        assert run.join(rank, config, secret="guessed").receive() == [
            {"kind": "refused", "why": "it has not the secret of this run"}
        ]
    assert (run.relay.failed, run.events(), list(run.relay.joined)) == (None, [], [1])


@pytest.mark.parametrize(
    "line", ["", "{}", "[]", "\0" * 99, '{"kind": "stop", "by": "x"}', '{"kind": "exited", "code": 9}']
)
def test_what_is_no_join_is_dropped(run: Run, line: str) -> None:
    run.connect(1).socket.sendall(line.encode() + b"\n")
    run.relay.turn()
    assert (run.relay.failed, run.events(), run.relay.door.guests) == (None, [], [])


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
_fields = st.sampled_from(["kind", "rank", "config", "version", "nonce", "proof", "code", "line", "text", "by"])
_kinds = st.sampled_from(sorted(KINDS))
_messages = st.builds(
    lambda kind, changed: {"kind": kind, "rank": 1, "config": "config", "nonce": "n", "proof": "p", **changed},
    _kinds,
    st.dictionaries(_fields, _json, max_size=4),
)


@settings(max_examples=700)
@given(st.lists(_messages.map(lambda message: json.dumps(message).encode()) | st.binary(max_size=60), max_size=4))
def test_no_frame_of_a_stranger_changes_anything(frames: list[bytes]) -> None:
    with TemporaryDirectory() as folder:
        run = Run(Path(folder))
        try:
            run.join(1)
            stranger = run.connect(2)
            with suppress(OSError):  # the relay has closed the connection
                stranger.socket.sendall(b"".join(frame + b"\n" for frame in frames))
            run.relay.turn()
            run.relay.turn()
            assert (run.relay.failed, run.events(), list(run.relay.joined)) == (None, [], [1])
        finally:
            run.server.close()
            for channel in (*run.opened, *run.relay.joined.values()):
                channel.close()


def test_a_flood_is_bounded_and_the_machine_still_joins(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(40):
        run.connect(2)
        run.connect(9)
    assert len(run.relay.door.guests) == 8
    assert len(capsys.readouterr().out.splitlines()) == 2
    assert answers(run.join(1)) == [LAUNCH]


def test_at_the_limit_of_open_files_nothing_is_taken_and_nothing_ends(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = socket.create_server(("127.0.0.1", 0))
    monkeypatch.setattr(socket.socket, "accept", _fail_to_accept)
    assert not run.relay.door.accept(server)
    server.close()


def _fail_to_accept(_: object) -> None:
    raise OSError(errno.EMFILE, "Too many open files")


def test_without_a_secret_a_machine_that_is_there_is_not_replaced(run: Run) -> None:
    run.relay.door.secret = ""
    there = run.join(1, secret="")
    run.join(1, secret="")
    assert (run.relay.failed, list(run.relay.joined)) == (None, [1])
    run.join(2, "another", secret="")
    assert (run.relay.failed, run.events()) == (None, [])
    run.relay.give_up(60.0)
    (failed,) = run.events()
    assert isinstance(failed, TrainerFailed)
    assert "its config is not that of machine 0" in failed.what
    assert answers(there) == [LAUNCH]


def test_what_a_machine_prints_is_bounded(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(relay, "_MOST_LOG_BYTES", 1000)
    follower = run.join(1)
    for _ in range(30):
        run.send(follower, kind="log", text="x" * 99 + "\n")

    def is_read() -> bool:
        run.relay.turn()
        return run.relay.logged_bytes.get(1) == 30 * 100

    wait_until(is_read)
    shown = capsys.readouterr().out
    assert len(shown) < 1300
    assert shown.count("the rest of its output is left out") == 1


@given(st.integers(-64, 100_000).filter(bool))
def test_a_failure_never_becomes_the_exit_code_0(code: int) -> None:
    with TemporaryDirectory() as folder:
        run = Run(Path(folder))
        run.relay._report_exit(1, code)
        run.server.close()
        assert run.relay.failed is not None
        assert 0 < run.relay.failed < 256


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
    thread = threading.Thread(target=relay.report_end, args=(machines, 75, "config"))
    thread.start()
    found = [_ask(machines, rank) for rank in (1, 2)]
    thread.join()
    assert found == [{"kind": "closed", "code": 75}] * 2


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
    nonces: list[str] = []

    def is_challenged() -> bool:
        nonces.append(challenge(opened[0]))
        return bool(nonces[-1])

    wait_until(is_challenged)
    opened[0].send(join(rank, "config", "", nonces[-1]))
    (answer,) = answers(opened[0])
    opened[0].close()
    return answer


def test_a_port_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(UserError, match="--machine-port"):
        relay.listen(Machines(0, MACHINES.addresses, taken.getsockname()[1]))


def test_machine_0_listens_on_its_own_address_alone() -> None:
    with relay.listen(Machines(0, ("127.0.0.7", "127.0.0.8"), free_port())) as server:
        assert server.getsockname()[0] == "127.0.0.7"
