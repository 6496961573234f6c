"""A server for machines that share a secret: who may connect, what they may do, and what is reported."""

from __future__ import annotations

import os
import signal
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from prime_train.bus.nats import NatsBus
from prime_train.bus.shared_secret import derive_credentials
from prime_train.bus.shared_server import Departures, SharedServer
from prime_train.core.errors import UserError
from tests.system.bus.stand import LIMIT_S, take, until
from tests.unit.supervise.machines.hosts import free_port

SECRET = "of this run"
TLS_REFUSED = "the bus refused 127.0.0.1: it does not speak TLS with the certificate of this run"
PASSWORD_REFUSED = "the bus refused 127.0.0.1: it has not the password of a machine of this run"
PUBLISH_REFUSED = "the bus refused 127.0.0.1: it may not send in another's name"
HEARING_REFUSED = "the bus refused 127.0.0.1: it may not hear what is sent to others"

_BYTES = {
    "http": b"GET / HTTP/1.1\r\n\r\n",
    "zeros": b"\0" * 1000,
    "half a hello": bytes.fromhex("1603010200010001fc0303") + b"\0" * 50,
}


@dataclass
class Shared:
    server: SharedServer
    port: int
    notes: list[str]
    opened: list[NatsBus] = field(default_factory=list)

    def open(self, user: str, secret: str = SECRET, password: str = "") -> NatsBus:
        who = derive_credentials(secret, user, "127.0.0.1", self.port)
        self.opened.append(NatsBus(replace(who, password=password or who.password), user, 0.5))
        return self.opened[-1]

    def connect(self, user: str) -> NatsBus:
        bus = self.open(user)
        assert bus.wait_connected(LIMIT_S), bus.take_problems()
        return bus


@contextmanager
def serving() -> Iterator[Shared]:
    notes: list[str] = []
    port = free_port()
    server = SharedServer(SECRET, ["machine-1", "machine-2"], "127.0.0.1", port, notes.append)
    server.start()
    shared = Shared(server, port, notes)
    try:
        yield shared
    finally:
        for bus in shared.opened:
            bus.close()
        server.close()


@pytest.fixture(scope="module")
def shared() -> Iterator[Shared]:
    with serving() as made:
        yield made


def test_a_machine_makes_its_own_credentials_and_speaks_to_the_controller(shared: Shared) -> None:
    first, controller = shared.connect("machine-1"), shared.connect("controller")
    reports, commands = controller.subscribe("pt.machines.r.*.link"), first.subscribe("pt.machines.cmd.machine-1")
    first.publish("pt.machines.r.machine-1.link", {"n": 1}, "a")
    controller.publish("pt.machines.cmd.machine-1", {"n": 2}, "b")
    assert [found.body for found in (*take(reports, 1), *take(commands, 1))] == [{"n": 1}, {"n": 2}]


@pytest.mark.parametrize("user", ["machine-1", "controller", "system", "machine-3"])
def test_a_wrong_password_is_refused_and_reported(shared: Shared, user: str) -> None:
    shared.server._noted.clear()
    shared.notes.clear()
    bus = shared.open(user, password="guessed")
    until(lambda: PASSWORD_REFUSED in shared.notes)
    assert not bus.wait_connected(0.0)


def test_another_secret_is_refused_by_both_sides(shared: Shared) -> None:
    bus = shared.open("machine-1", secret="another")
    problems: list[str] = []

    def is_refused() -> bool:
        problems.extend(bus.take_problems())
        return any("certificate verify failed" in problem for problem in problems)

    until(is_refused)
    until(lambda: TLS_REFUSED in shared.notes)


@pytest.mark.parametrize("kind", ["http", "zeros", "half a hello"])
def test_other_bytes_are_refused_and_reported(shared: Shared, kind: str) -> None:
    shared.server._noted.clear()
    shared.notes.clear()
    with socket.create_connection(("127.0.0.1", shared.port), 5) as stranger:
        stranger.sendall(_BYTES[kind])
        stranger.settimeout(LIMIT_S)
        try:
            while stranger.recv(4096):
                pass
        except ConnectionResetError:
            pass
    until(lambda: TLS_REFUSED in shared.notes)


@pytest.mark.parametrize("subject", ["pt.machines.r.machine-2.link", "pt.machines.cmd.machine-2", "pt.machines.left"])
def test_a_machine_that_speaks_for_another_is_refused_and_reported(shared: Shared, subject: str) -> None:
    shared.server._noted.clear()
    shared.notes.clear()
    heard = shared.connect("controller").subscribe("pt.>")
    hostile = shared.connect("machine-1")
    hostile.publish(subject, {"kind": "stop", "by": "x"}, "a")
    until(lambda: PUBLISH_REFUSED in shared.notes)
    hostile.publish("pt.machines.r.machine-1.link", {}, "last")
    assert [found.id for found in take(heard, 1)] == ["last"]


@pytest.mark.parametrize("pattern", ["pt.machines.cmd.machine-2", "pt.machines.r.*.link", "pt.>", "pt.machines.left"])
def test_a_machine_that_listens_to_another_is_refused_and_reported(shared: Shared, pattern: str) -> None:
    shared.server._noted.clear()
    shared.notes.clear()
    shared.connect("machine-1").subscribe(pattern)
    until(lambda: HEARING_REFUSED in shared.notes)


def test_a_flood_is_reported_a_bounded_number_of_times(shared: Shared) -> None:
    shared.server._noted.clear()
    shared.notes.clear()
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    for number in range(60):
        with socket.create_connection(("127.0.0.1", shared.port), 5) as plain, context.wrap_socket(plain) as stranger:
            stranger.sendall(f'CONNECT {{"user": "u{number}", "pass": "CUDA out of memory"}}\r\nPING\r\n'.encode())
    assert shared.connect("machine-2").wait_connected(0.0)
    assert set(shared.notes) <= {PASSWORD_REFUSED, TLS_REFUSED}
    assert len(shared.notes) <= 2


def test_the_end_of_a_connection_is_seen(shared: Shared) -> None:
    departures = Departures(shared.connect("controller"))
    departures.take()
    leaving = shared.connect("machine-2")
    shared.opened.remove(leaving)
    leaving.close()
    found: list[str] = []

    def has_left() -> bool:
        found.extend(departures.take())
        return "machine-2" in found

    until(has_left)


def test_no_secret_is_in_a_command_line_or_a_file(shared: Shared) -> None:
    who = derive_credentials(SECRET, "machine-1", "127.0.0.1", shared.port)
    process = Path(f"/proc/{shared.server.pid}")
    command, variables = ((process / name).read_bytes().decode() for name in ("cmdline", "environ"))
    assert "nats-server" in command
    assert who.password not in command + variables
    opened = [os.readlink(entry) for entry in (process / "fd").iterdir()]  # noqa: PTH115 - links to no path
    assert not any(
        place.startswith("/") and not place.startswith(("/memfd", "/dev", "/proc", "/sys")) for place in opened
    )


def test_a_server_that_was_killed_is_started_again_and_its_clients_return() -> None:
    with serving() as shared:
        machine, controller = shared.connect("machine-1"), shared.connect("controller")
        heard = controller.subscribe("pt.machines.r.*.link")
        lives = machine.connection.lives, controller.connection.lives
        os.kill(shared.server.pid, signal.SIGKILL)

        def has_returned() -> bool:
            shared.server.keep()
            return machine.connection.lives > lives[0] and controller.connection.lives > lives[1]

        until(has_returned)
        machine.publish("pt.machines.r.machine-1.link", {}, "again")
        assert [found.id for found in take(heard, 1)] == ["again"]
        assert "the server of the bus has ended, and is started again" in shared.notes


def test_a_port_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match="--machine-port") as caught:
            SharedServer(SECRET, ["machine-1"], "127.0.0.1", port, lambda _: None).start()
    assert "address already in use" in caught.value.what
    assert caught.value.where == f"127.0.0.1:{port}"


def test_a_host_without_a_server_refuses_and_one_that_is_silent_does_not() -> None:
    """A follower ends its training only in the first case."""
    refusing = NatsBus(derive_credentials(SECRET, "machine-1", "127.0.0.1", free_port()), "machine-1", 0.5)
    until(lambda: refusing.connection.is_refused)
    refusing.close()
    with socket.create_server(("127.0.0.1", 0), backlog=8) as silent:
        waiting = NatsBus(derive_credentials(SECRET, "machine-1", "127.0.0.1", silent.getsockname()[1]), "x", 0.5)
        problems: list[str] = []

        def has_tried() -> bool:
            problems.extend(waiting.take_problems())
            return bool(problems)

        until(has_tried)
        assert not waiting.connection.is_refused
        waiting.close()


@pytest.mark.parametrize("secret", ["", "of this run"])
def test_beyond_loopback_a_secret_that_can_be_guessed_opens_no_port(secret: str) -> None:
    port = free_port()
    with pytest.raises(UserError, match=r"it is not set|it has 11 characters"):
        SharedServer(secret, ["machine-1"], "0.0.0.0", port, lambda _: None).start()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), 5.0)
