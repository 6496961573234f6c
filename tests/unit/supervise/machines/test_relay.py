"""What machine 0 makes of the other machines: who may join, whose end ends the attempt, and which events count."""

import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prime_train.bus.local import LocalBus
from prime_train.core.machines import Machines
from prime_train.core.process_id import own_identity
from prime_train.core.replica_files import LIGHTHOUSE, read_lighthouse, sign_path
from prime_train.core.rundir import RunDir
from prime_train.events import (
    CheckpointUnreadable,
    Event,
    EventLog,
    Progress,
    ReplicaLost,
    TrainerFailed,
    encode,
    read,
)
from prime_train.supervise.machines import relay
from prime_train.supervise.machines.post import Post
from prime_train.supervise.machines.protocol import CONFIG_HASH, KINDS, Lost
from prime_train.supervise.machines.replica_places import OtherReplicas, OwnReplicas
from tests.unit.cli.commands import wait_until
from tests.unit.supervise.machines.played import PlayedMachine

MACHINES = Machines(0, ("127.0.0.1", "127.0.0.2", "127.0.0.3"))
LAUNCH = {"kind": "launch", "attempt": 2, "resume_step": 40, "micro_batch": 4}
FIX_DIFFERENCE = {"kind": "refused", "why": "its config is not that of machine 0"}


class Run:
    """The relay of an attempt on a bus in a folder, and machines that a test plays."""

    def __init__(self, folder: Path, least: int = 0) -> None:
        """`least`: replicas without which no step is made, two for each machine; 0 = a run without replicas."""
        self.run_dir = RunDir(folder)
        replicas = OtherReplicas(self.run_dir.replicas(2), 2, 2, least) if least else None
        self.bus = LocalBus(folder / "bus")
        self.left: list[str] = []  # users whose connection the server of the bus saw end
        self.post = Post(MACHINES, self.bus, "config", self._take_left)
        self.relay = relay._Relay(
            MACHINES, LAUNCH, self.post, 8, EventLog(self.run_dir.events, "machines-002"), self.run_dir, replicas
        )
        self.relay.has_secret = True

    def _take_left(self) -> list[str]:
        found, self.left = self.left, []
        return found

    def machine(self, rank: int) -> PlayedMachine:
        return PlayedMachine(self.bus, rank, self.relay.turn)

    def join(self, rank: int, config: str = "config") -> PlayedMachine:
        """A machine that has said its join. What it reads next is what the relay answers to it."""
        return self.machine(rank).join(config)

    def events(self) -> list[Event]:
        return [record.event for record in read(self.run_dir.events)]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    made = Run(tmp_path)
    yield made
    made.relay.events.close()


def test_a_machine_that_joins_starts_at_the_checkpoint_of_machine_0(run: Run) -> None:
    assert run.join(1).take_one() == LAUNCH
    assert run.relay.missing() == [2]
    assert run.join(2).take_one() == LAUNCH
    assert run.relay.missing() == []


def test_another_config_is_refused_and_ends_the_attempt(run: Run) -> None:
    follower = run.join(1, "another")
    assert follower.take_one() == FIX_DIFFERENCE
    (failed,) = run.events()
    assert isinstance(failed, TrainerFailed)
    assert (failed.cause_class, failed.rank) == ("config", 8)
    assert "machine 1 (127.0.0.2)" in failed.what
    assert run.relay.failed == 5


def test_a_machine_that_leaves_while_it_joins_may_come_again(run: Run) -> None:
    leaving = run.machine(1)
    leaving.channel.send({"kind": "exited", "code": 0})
    leaving.channel.close()
    run.relay.turn()
    assert (run.relay.failed, run.relay.joined) == (None, {})
    assert run.join(1).take_one() == LAUNCH


@pytest.mark.usefixtures("capfd")  # a file, which stores UTF-8 alone
def test_half_a_character_in_what_a_machine_prints_ends_nothing(run: Run) -> None:
    follower = run.join(1)
    follower.send(kind="log", text="\ud800")
    assert run.relay.failed is None


def test_a_killed_trainer_is_named_with_its_machine(run: Run) -> None:
    follower = run.join(2)
    follower.send(kind="exited", code=-9)
    (failed,) = run.events()
    assert isinstance(failed, TrainerFailed)
    assert failed.what == "machine 2 (127.0.0.3): its trainer was killed by signal 9"
    assert (failed.cause_class, failed.rank) == ("signal", 16)


def test_a_lost_machine_ends_the_attempt(run: Run) -> None:
    run.join(1).channel.close()
    run.relay.turn()
    (failed,) = run.events()
    assert isinstance(failed, TrainerFailed)
    assert failed.cause_class == "hardware"
    assert "machine 1 (127.0.0.2) was lost" in failed.what
    assert run.relay.failed == 1


def test_a_trainer_that_has_finished_ends_nothing(run: Run) -> None:
    follower = run.join(1)
    follower.send(kind="exited", code=0)
    follower.channel.close()
    run.relay.turn()
    assert run.relay.failed is None
    assert run.events() == []


def test_a_machine_whose_connection_has_ended_is_the_cause_if_rank_0_notices_first(run: Run) -> None:
    """The supervisor ends the relay because rank 0 has failed, before the machine counts as lost by itself."""
    run.join(1)
    run.left = ["machine-1"]
    run.relay.end()
    (failed,) = run.events()
    assert isinstance(failed, TrainerFailed)
    assert failed.what == "machine 1 (127.0.0.2) was lost: its connection has ended"


def test_a_machine_that_is_heard_again_is_not_gone(run: Run) -> None:
    follower = run.join(1)
    run.left = ["machine-1"]
    run.relay.turn()
    follower.send(kind="log", text="here")
    assert not run.post.is_gone(1)


def test_a_machine_of_an_earlier_attempt_joins_again(run: Run) -> None:
    """Its relay was killed, and another one has taken its place before the machine noticed."""
    old = run.machine(1)
    old.channel.peer = "the relay before"
    old.send(kind="log", text="late")
    with pytest.raises(Lost, match="another process"):
        old.take_one()
    assert (run.relay.failed, run.relay.joined) == (None, {})
    assert run.join(1).take_one() == LAUNCH


def test_a_machine_that_was_started_again_ends_the_attempt(run: Run) -> None:
    run.join(1)
    run.join(1)
    (failed,) = run.events()
    assert isinstance(failed, TrainerFailed)
    assert failed.what == "machine 1 (127.0.0.2) was lost: its supervisor was started again"


def test_only_reports_of_this_attempt_that_rank_0_does_not_make_are_kept(run: Run, tmp_path: Path) -> None:
    follower = run.join(1)
    kept = CheckpointUnreadable(2, 40, "its bytes changed")
    log = EventLog(tmp_path / "other", "trainer")
    for event in (kept, CheckpointUnreadable(1, 20, "earlier"), Progress(2, 41, 1.0, 1.0, 1)):
        follower.send(kind="event", line=encode(log.append(event)))
    follower.send(kind="event", line="no event")
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


# --- machines that send anything else ----------------------------------------------------------------


@pytest.mark.parametrize("body", [{}, {"from": "a"}, {"kind": "stop", "by": "x"}, {"kind": "exited", "code": 9}])
def test_what_is_no_frame_is_dropped(run: Run, body: dict[str, object]) -> None:
    run.machine(1).publish(body)
    assert (run.relay.failed, run.events(), run.relay.joined) == (None, [], {})


def test_a_message_before_the_join_opens_nothing(run: Run) -> None:
    run.machine(1).send(kind="stop", by="x")
    assert (run.relay.failed, run.events(), run.relay.joined) == (None, [], {})


_json = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
_numbers = st.integers(-1, 3) | _json
_frames = st.fixed_dictionaries(
    {
        "from": st.sampled_from(["x", "y"]) | _json,
        "to": st.sampled_from(["", "x"]) | _json,
        "number": _numbers,
        "heard": _numbers,
        "message": st.builds(
            lambda kind, changed: {"kind": kind, "text": "t", "code": 1, "by": "b", "line": "l", **changed},
            st.sampled_from(sorted(set(KINDS) - {"join"})),
            st.dictionaries(st.sampled_from(["kind", "code", "line", "text", "by"]), _json, max_size=4),
        ),
        "is_last": st.booleans() | _json,
    }
)


@settings(max_examples=300, deadline=None)
@given(st.lists(_frames | st.dictionaries(st.text(max_size=5), _json, max_size=3), max_size=4), st.sampled_from([2, 8]))
def test_no_frame_without_a_join_changes_anything(frames: list[dict[str, object]], rank: int) -> None:
    with TemporaryDirectory() as folder:
        run = Run(Path(folder))
        run.join(1)
        other = run.machine(rank)
        for body in frames:
            other.publish(body)
        run.relay.turn()
        assert (run.relay.failed, run.events(), list(run.relay.joined)) == (None, [], [1])


def test_channels_that_never_join_are_bounded(run: Run) -> None:
    for _ in range(40):
        run.machine(2).channel.receive()
        run.machine(2).send(kind="alive")
    assert len(run.post._links) <= 1
    assert run.join(1).take_one() == LAUNCH


def test_without_a_secret_a_machine_that_is_there_is_not_replaced(run: Run) -> None:
    run.relay.has_secret = False
    there = run.join(1)
    run.join(1)
    assert (run.relay.failed, list(run.relay.joined)) == (None, [1])
    run.join(2, "another")
    assert (run.relay.failed, run.events()) == (None, [])
    run.relay.give_up(60.0)
    (failed,) = run.events()
    assert isinstance(failed, TrainerFailed)
    assert "its config is not that of machine 0" in failed.what
    assert there.take_one() == LAUNCH


def test_what_a_machine_prints_is_bounded(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(relay, "_MOST_LOG_BYTES", 1000)
    follower = run.join(1)
    for _ in range(30):
        follower.send(kind="log", text="x" * 99 + "\n")

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
        assert run.relay.failed is not None
        assert 0 < run.relay.failed < 256


def test_a_stop_on_one_machine_stops_the_run(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, _: stopped.append(number))
    monkeypatch.setenv("PRIME_TRAIN_SUPERVISOR", str(own_identity()))
    try:
        run.join(1).send(kind="stop", by="SIGTERM")
        wait_until(lambda: stopped == [signal.SIGUSR1])
    finally:
        signal.signal(signal.SIGUSR1, before)


# --- replicas -------------------------------------------------------------------------------------------

SIGN = '{"stage": "works", "step": 7}'


@pytest.fixture
def replicated(tmp_path: Path) -> Iterator[Run]:
    made = Run(tmp_path, least=3)
    yield made
    made.relay.events.close()


def test_a_lost_machine_costs_its_replicas_and_may_come_again(replicated: Run) -> None:
    follower = replicated.join(1)
    follower.send(kind="sign", replica=3, text=SIGN)
    folder = replicated.run_dir.replicas(2)
    assert sign_path(folder, 3).read_text() == SIGN
    follower.channel.close()
    replicated.relay.turn()
    what = "machine 1 (127.0.0.2) was lost: it closed the connection"
    assert replicated.events() == [ReplicaLost(2, 2, 0, what, 0.0), ReplicaLost(2, 3, 7, what, 0.0)]
    assert not sign_path(folder, 3).exists(), "else machine 0 would wait for its weights"
    assert replicated.relay.failed is None
    assert replicated.join(1).take_one() == LAUNCH


def test_a_step_waits_only_where_too_few_replicas_are_there(replicated: Run) -> None:
    assert replicated.relay.waits()
    follower = replicated.join(2)
    assert not replicated.relay.waits()
    follower.channel.close()
    replicated.relay.turn()
    assert replicated.relay.waits()
    replicated.relay.give_up(60.0)
    failed = replicated.events()[-1]
    assert isinstance(failed, TrainerFailed)
    assert failed.what.endswith("did not come within 60 s, and 2 of the 3 replicas that a step needs are there")


def test_each_machine_hears_where_the_lighthouse_is_and_hears_of_another_one(replicated: Run) -> None:
    folder = replicated.run_dir.replicas(2)
    folder.mkdir(parents=True)
    follower = replicated.join(1)
    assert follower.take_one() == LAUNCH
    for port in (4000, 4001):
        (folder / LIGHTHOUSE).write_text(f"http://127.0.0.1:{port}")
        assert follower.take_one() == {"kind": "lighthouse", "port": port}
    follower.channel.close()
    replicated.relay.turn()
    again = replicated.join(1)
    assert [again.take_one()["kind"], again.take_one()["kind"]] == ["launch", "lighthouse"]


@pytest.mark.parametrize(
    ("replica", "text"),
    [(1, SIGN), (4, SIGN), (-1, SIGN), (2, "{"), (2, "[]"), (2, "{}"), (2, '{"step": -1}'), (2, SIGN + " " * 300)],
)
def test_what_is_no_sign_of_its_replicas_ends_a_machine(replicated: Run, replica: int, text: str) -> None:
    replicated.join(1).send(kind="sign", replica=replica, text=text)
    assert (replicated.relay.joined, replicated.relay.failed) == ({}, None)
    assert not list(replicated.run_dir.replicas(2).glob("*"))


@pytest.mark.parametrize(("code", "answer"), [(-9, None), (5, "refused")])
def test_replicas_of_another_machine_that_end_cost_that_machine(replicated: Run, code: int, answer: str | None) -> None:
    follower = replicated.join(1)
    assert follower.take_one() == LAUNCH
    follower.send(kind="exited", code=code)
    assert (replicated.relay.failed, replicated.relay.joined) == (None, {})
    assert [type(event) for event in replicated.events()] == [ReplicaLost, ReplicaLost]
    if answer is None:
        with pytest.raises(Lost):
            follower.take_one()
    else:
        assert follower.take_one()["kind"] == answer


def test_a_notice_to_one_machine_ends_it_alone_where_enough_replicas_remain(replicated: Run) -> None:
    first, _ = replicated.join(1), replicated.join(2)
    assert first.take_one() == LAUNCH
    first.send(kind="stop", by="SIGTERM")
    assert first.take_one() == {"kind": "closed", "code": 75}
    assert list(replicated.relay.joined) == [2]
    assert [event.what for event in replicated.events() if isinstance(event, ReplicaLost)] == [
        "machine 1 (127.0.0.2) was lost: it got SIGTERM"
    ] * 2


def test_a_machine_sends_each_sign_once_and_writes_where_the_lighthouse_is(tmp_path: Path) -> None:
    own = OwnReplicas(tmp_path / "replicas", range(2, 4), "10.0.0.1")
    assert own.list_signs() == []
    own.take_port(4000)
    assert read_lighthouse(own.folder) == "http://10.0.0.1:4000"
    sign_path(own.folder, 3).write_text(SIGN.ljust(256) + "\n")
    sign_path(own.folder, 2).write_text(SIGN[:10])
    assert own.list_signs() == [{"kind": "sign", "replica": 3, "text": SIGN}]
    assert own.list_signs() == []
    with pytest.raises(Lost):
        own.take_port(70_000)
    with pytest.raises(Lost):
        OwnReplicas(tmp_path / "none", range(0), "10.0.0.1").take_port(4000)
