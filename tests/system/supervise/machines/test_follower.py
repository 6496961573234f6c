"""A machine that follows: it runs what machine 0 asks for, and nothing when machine 0 is gone."""

import ctypes
import os
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from prime_train.bus.shared_server import SharedServer
from prime_train.core.errors import ExitCode, UserError
from prime_train.core.machines import SECRET, Machines
from prime_train.core.rundir import RunDir
from prime_train.programs.base import RunTomlProgram
from prime_train.spec import RunSpec, from_json
from prime_train.supervise.launch.program import Launch
from prime_train.supervise.machines import follower
from prime_train.supervise.machines.channel import Channel
from prime_train.supervise.machines.follower import follow
from prime_train.supervise.machines.post import Post, open_post
from prime_train.supervise.machines.protocol import Lost, Message, name_command
from tests.unit.cli.commands import wait_until
from tests.unit.supervise.machines.hosts import free_port
from tests.unit.trainer import tiny

ADDRESSES = ("127.0.0.1", "127.0.0.2")


@pytest.fixture(autouse=True)
def _adopts_no_orphans() -> Iterator[None]:
    """A follower adopts orphans. If the test process went on to, those of later tests would be its children."""
    yield
    ctypes.CDLL(None).prctl(36, 0, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER, linux/prctl.h


@dataclass(frozen=True, slots=True)
class Program(RunTomlProgram):
    """Its trainer prints its attempt and waits, or ends with the code that the step to resume from names."""

    name: str = "bundled"

    def plan(self, run: RunSpec, run_dir: RunDir, attempt: int, resume_step: int) -> tuple[Launch, ...]:
        del run
        text = f"import os, time; print('attempt {attempt}', os.getpid(), flush=True); "
        text += "time.sleep(600)" if resume_step == 0 else f"raise SystemExit({resume_step % 256})"
        return (Launch("trainer", (sys.executable, "-c", text), run_dir.path, run_dir.log(attempt, "trainer")),)


class Machine0:
    """Machine 0 with the server of its bus, played by the test from a thread."""

    def __init__(self, post: Post, server: SharedServer, port: int) -> None:
        self.post = post
        self.server = server
        self.port = port

    def accept(self) -> Channel:
        """The channel of the follower, which has joined."""
        found: list[Channel] = []

        def is_there() -> bool:
            self.post.pull(0.1)
            found.extend(joining.channel for joining in self.post.take_joins() if not joining.problem)
            return bool(found)

        wait_until(is_there)
        return found[0]

    def wait_for(self, channel: Channel, kind: str) -> Message:
        found: list[Message] = []

        def arrived() -> bool:
            self.post.pull(0.1)
            found.extend(message for message in channel.receive() if message["kind"] == kind)
            return bool(found)

        wait_until(arrived)
        return found[0]

    def end(self, channel: Channel) -> None:
        """Close a channel after its last message has arrived."""

        def is_delivered() -> bool:
            with suppress(Lost):  # the follower leaves when it has heard it
                channel.receive()
            return channel.is_delivered

        wait_until(is_delivered)
        channel.close()


def launch(attempt: int, resume_step: int = 0, micro_batch: int = 4) -> Message:
    return {"kind": "launch", "attempt": attempt, "resume_step": resume_step, "micro_batch": micro_batch}


@contextmanager
def machine_0_at(port: int, secret: str = "", refused: list[str] | None = None) -> Iterator[Machine0]:
    note = (refused if refused is not None else []).append
    with open_post(Machines(0, ADDRESSES, port), secret, "config", note) as (post, server):
        yield Machine0(post, server, port)


@pytest.fixture
def machine_0() -> Iterator[Machine0]:
    with machine_0_at(free_port()) as made:
        yield made


def run_follower(machine_0: Machine0, folder: Path, limit_s: float = 30.0) -> tuple[ExitCode, list[str]]:
    run = tiny.run_spec(folder)
    heartbeat = replace(run.prime_train.heartbeat, join_limit_s=limit_s)
    run = replace(run, prime_train=replace(run.prime_train, heartbeat=heartbeat))
    notes: list[str] = []
    machines = Machines(1, ADDRESSES, machine_0.port)
    return follow(run, RunDir(folder), machines, Program(), "config", notes.append), notes


@pytest.mark.parametrize("asked", [launch(2**63), launch(1, 2**63), launch(0), launch(1, -1), launch(1, 0, 10**9)])
def test_an_attempt_that_no_run_can_have_is_not_started(machine_0: Machine0, tmp_path: Path, asked: Message) -> None:
    def play() -> None:
        first = machine_0.accept()
        first.send(asked)
        second = machine_0.accept()
        second.send({"kind": "closed", "code": 0})
        machine_0.end(second)

    thread = threading.Thread(target=play)
    thread.start()
    code, _ = run_follower(machine_0, tmp_path)
    thread.join()
    assert code == ExitCode.OK
    assert not (tmp_path / "resolved.json").exists()


def test_a_machine_runs_attempts_until_the_run_ends(machine_0: Machine0, tmp_path: Path) -> None:
    """An attempt that machine 0 ends, one whose connection breaks, one that fails, and the end of the run."""
    pids: list[int] = []

    def play() -> None:
        first = machine_0.accept()
        first.send(launch(1, micro_batch=2))
        pids.append(int(machine_0.wait_for(first, "log")["text"].split()[-1]))
        first.send({"kind": "end", "stops": False})
        assert machine_0.wait_for(first, "exited")["code"] == -9
        second = machine_0.accept()
        second.send(launch(2))
        pids.append(int(machine_0.wait_for(second, "log")["text"].split()[-1]))
        second.close()
        third = machine_0.accept()  # the follower has ended the trainer of the second attempt
        assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)  # noqa: PTH110 - a process is no file
        third.send(launch(3, resume_step=7))
        assert machine_0.wait_for(third, "exited")["code"] == 7
        third.send({"kind": "end", "stops": False})
        last = machine_0.accept()
        last.send({"kind": "closed", "code": 6})
        machine_0.end(last)

    failures: list[BaseException] = []
    thread = threading.Thread(target=lambda: _keep(play, failures))
    thread.start()
    code, notes = run_follower(machine_0, tmp_path)
    thread.join()
    assert failures == []
    assert code == ExitCode.RETRIES_SPENT
    assert "attempt 3 from step 7" in notes
    assert from_json((tmp_path / "resolved.json").read_text()).batch.micro_batch == 4


@pytest.mark.parametrize(("ended", "code"), [(256, ExitCode.OK), (7, None)])
def test_a_machine_that_slept_while_the_run_ended_has_finished_if_its_trainer_has(
    machine_0: Machine0, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ended: int, code: ExitCode | None
) -> None:
    monkeypatch.setattr(follower, "_STOP_LIMIT_S", 0.5)

    def play() -> None:
        channel = machine_0.accept()
        channel.send(launch(1, resume_step=ended))
        machine_0.wait_for(channel, "exited")
        machine_0.server.close()  # the run has ended, and the word of it was lost

    failures: list[BaseException] = []
    thread = threading.Thread(target=lambda: _keep(play, failures))
    thread.start()
    if code is None:
        with pytest.raises(UserError) as gone:
            run_follower(machine_0, tmp_path, limit_s=2.0)
        code = gone.value.exit_code
        assert code == ExitCode.RESUMABLE
    else:
        found, notes = run_follower(machine_0, tmp_path, limit_s=600.0)
        assert found == code
        assert "last step" in notes[-1]
    thread.join()
    assert failures == []


def test_a_stranger_on_the_port_of_machine_0_starts_and_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server with another secret has the port first. The follower neither joins it nor hears what it sends."""
    monkeypatch.setenv(SECRET, "of this run")
    refused: list[str] = []
    failures: list[BaseException] = []
    lies = (launch(1), {"kind": "closed", "code": 0}, {"kind": "refused", "why": "go away"})
    with machine_0_at(free_port(), "guessed", refused) as stranger:

        def play() -> None:
            def is_refused() -> bool:
                for lie in lies:
                    body = {"from": "x", "to": "", "number": 1, "heard": 0, "message": lie, "is_last": False}
                    stranger.post._bus.publish(name_command(1), body, "x")
                return bool(refused)

            wait_until(is_refused)
            assert stranger.post.take_joins() == []

        thread = threading.Thread(target=lambda: _keep(play, failures))
        thread.start()
        with pytest.raises(UserError, match="has not the secret of this run"):
            run_follower(stranger, tmp_path, limit_s=3.0)
        thread.join()
    assert failures == []
    assert refused == ["the bus refused 127.0.0.1: it does not speak TLS with the certificate of this run"]
    assert not (tmp_path / "resolved.json").exists()


def _keep(play: object, failures: list[BaseException]) -> None:
    try:
        play()  # type: ignore[operator]
    except BaseException as error:  # of a thread, which the test reports
        failures.append(error)


@pytest.mark.parametrize(
    "wrong",
    [
        launch(0),
        launch(1, -1),
        launch(1, 0, 5),
        {"kind": "join", "config": ""},
        {"kind": "closed", "code": 999},
    ],
)
def test_what_machine_0_may_not_ask_for_starts_nothing(machine_0: Machine0, tmp_path: Path, wrong: Message) -> None:
    def play() -> None:
        channel = machine_0.accept()
        channel.send({**wrong, "version": ""})
        last = machine_0.accept()
        last.send({"kind": "closed", "code": 5})
        machine_0.end(last)

    thread = threading.Thread(target=play)
    thread.start()
    code, notes = run_follower(machine_0, tmp_path)
    thread.join()
    assert code == ExitCode.RUN_FAILED
    assert notes == []
    assert not (tmp_path / "resolved.json").exists()


def test_a_refusal_is_an_error(machine_0: Machine0, tmp_path: Path) -> None:
    def play() -> None:
        channel = machine_0.accept()
        channel.send({"kind": "refused", "why": "another version"})
        machine_0.end(channel)

    thread = threading.Thread(target=play)
    thread.start()
    with pytest.raises(UserError, match="another version"):
        run_follower(machine_0, tmp_path)
    thread.join()


def test_machine_0_that_does_not_come_is_out_of_reach(tmp_path: Path) -> None:
    assert refuse_to_wait(tmp_path).exit_code == ExitCode.OUT_OF_REACH


def test_a_name_server_that_is_away_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def find_nothing(host: str, *_: object, **__: object) -> None:
        asked.append(host)
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", find_nothing)
    assert "Temporary failure in name resolution" in refuse_to_wait(tmp_path, "machine-0.invalid").what
    assert asked


def refuse_to_wait(folder: Path, first: str = ADDRESSES[0]) -> UserError:
    """The error of a follower whose machine 0 does not come."""
    machines = Machines(1, (first, ADDRESSES[1]), free_port())
    run = tiny.run_spec(folder)
    heartbeat = replace(run.prime_train.heartbeat, join_limit_s=1.0)
    run = replace(run, prime_train=replace(run.prime_train, heartbeat=heartbeat))
    with pytest.raises(UserError, match="machine 0") as caught:
        follow(run, RunDir(folder), machines, Program(), "config", lambda _: None)
    return caught.value
