"""Who may do what on a NATS server: a wrong password, another machine's subject, bytes that are no message."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from prime_train.bus.base import KEPT, BusError, BusRefused
from prime_train.bus.nats import NatsBus
from prime_train.bus.nats_server import NatsServer
from prime_train.core.errors import UserError
from tests.system.bus.stand import BEATS, COMMANDS, EVENTS, LIMIT_S, NatsStand, standing_nats, take, until

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def stand(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsStand]:
    with standing_nats(tmp_path_factory.mktemp("bus")) as found:
        yield found


@pytest.mark.parametrize("user", ["m1", "nobody", ""])
def test_a_wrong_password_is_refused_and_reported(stand: NatsStand, user: str) -> None:
    bus = NatsBus(replace(stand.server.credentials("m1"), user=user, password="wrong" if user else ""), "stranger")
    found: list[str] = []

    def is_refused() -> bool:
        found.extend(bus.take_problems())
        return any("Authorization Violation" in text for text in found)

    try:
        until(is_refused)
        assert not bus.wait_connected(0)
    finally:
        bus.close()


def test_a_machine_publishes_below_its_own_name_alone(stand: NatsStand) -> None:
    agent = stand.client("m1")
    beats = stand.client().subscribe("pt.>")
    with pytest.raises(BusRefused, match="permissions violation"):
        agent.publish("pt.j.r.m2.ev", {}, "e1")
    for subject in ("pt.j.r.m2.hb", COMMANDS, "pt.j.cmd.all"):
        agent.publish(subject, {}, "x")
    agent.publish(BEATS, {}, "own")
    assert [message.id for message in take(beats, 1)] == ["own"], "nothing else arrived"
    found = list[str]()

    def are_reported() -> bool:
        found.extend(text for text in agent.take_problems() if "permissions violation" in text)
        return len(found) >= 4

    until(are_reported)  # the server tells each of them after it was sent
    assert len(found) == 4


def test_a_late_answer_is_refused_and_is_no_stranger(stand: NatsStand) -> None:
    """A server that was killed has forgotten who may answer."""
    agent, found = stand.client("m1"), list[str]()
    for subject in ("_INBOX_controller.late", COMMANDS):
        agent.publish(subject, {}, "x")

    def is_reported() -> bool:
        stand.server.keep()
        found.extend(text for text in stand.server.take_refusals() if "Publish Violation" in text)
        return any(COMMANDS in text for text in found)

    until(is_reported)
    assert not [text for text in found if "_INBOX_" in text]


def test_a_machine_reads_no_commands_of_another_and_no_keys(stand: NatsStand) -> None:
    agent, controller = stand.client("m1"), stand.client()
    for pattern in ("pt.j.cmd.m2", "pt.>", "_INBOX_controller.>", "$KV.>"):
        if not pattern.startswith("$"):
            agent.subscribe(pattern)
    until(lambda: len(stand_problems(agent)) > 0)
    values = controller.kv("keys")
    values.put("secret", {"v": 1})
    with pytest.raises(BusRefused, match="permissions violation"):
        agent.kv("keys").put("secret", {"v": 2})
    found = values.get("secret")
    assert found is not None
    assert found.value == {"v": 1}


def stand_problems(bus: NatsBus) -> list[str]:
    return [text for text in bus.take_problems() if "permissions violation for subscription" in text]


def until_reported(server: NatsServer, expected: str) -> None:
    """Until the controller's page has a remark with this text: `take_refusals` is where it comes from."""
    found: list[str] = []

    def is_reported() -> bool:
        server.keep()
        found.extend(server.take_refusals())
        return any(expected in text for text in found)

    until(is_reported)


@pytest.mark.parametrize(
    ("act", "expected"),
    [
        (lambda agent: agent.publish("pt.j.r.m2.hb", {}, "x"), 'm1" - Publish Violation - Subject "pt.j.r.m2.hb"'),
        (lambda agent: agent.publish("pt.j.cmd.m2", {}, "x"), 'm1" - Publish Violation - Subject "pt.j.cmd.m2"'),
        (lambda agent: agent.subscribe("pt.j.cmd.m2"), 'm1" - Subscription Violation - Subject "pt.j.cmd.m2"'),
        (lambda agent: agent.subscribe("_INBOX_controller.>"), "Subscription Violation"),
        (lambda agent: agent.objects("pt_evidence").list_names(), "Publish Violation"),
        (lambda agent: agent.kv("pt_drained").list_entries(), "Publish Violation"),
    ],
)
def test_what_a_machine_may_not_do_is_reported_to_the_controller(
    stand: NatsStand, act: Callable[[NatsBus], object], expected: str
) -> None:
    with suppress(BusError):
        act(stand.client("m1"))
    until_reported(stand.server, expected)


def test_a_stranger_without_credentials_or_without_tls_is_refused_and_reported(tmp_path: Path) -> None:
    server = NatsServer(tmp_path, ["m1"], host="0.0.0.0")
    server.start()
    try:
        known = server.credentials("m1")
        bus = NatsBus(replace(known, host="0.0.0.0", password="a guess"), "stranger")
        until_reported(server, "authentication error")
        bus.close()
        with socket.create_connection(("127.0.0.1", known.port)) as plain:
            plain.settimeout(LIMIT_S)
            assert plain.recv(4096).startswith(b"INFO ")
            plain.sendall(b'CONNECT {"user":"m1","pass":"a guess"}\r\nPING\r\n')
            until_reported(server, "TLS Handshake Failure")
            assert b"PONG" not in plain.recv(4096)
    finally:
        server.close()


HOSTILE = {
    "empty": b"",
    "text": b"not json",
    "list": b"[]",
    "number as id": b'{"id":1,"body":{}}',
    "list as body": b'{"id":"a","body":[]}',
    "id with a space": b'{"id":"a b","body":{}}',
    "deep": b'{"id":"a","body":' + b'{"x":' * 70 + b"1" + b"}" * 71,
    "large number": b'{"id":"a","body":{"x":1e999}}',
    "no UTF-8": b"\xff" * 1000,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_is_no_message_is_counted_and_left_out(stand: NatsStand, name: str) -> None:
    agent, controller = stand.client("m1"), stand.client()
    passing, queue = controller.subscribe(BEATS), controller.subscribe(KEPT, "reader")
    word = name.replace(" ", "_")
    agent.connection.call(agent._pass_on(BEATS, HOSTILE[name]))
    agent.connection.call(agent._store(EVENTS, HOSTILE[name], f"bad_{word}"))
    agent.publish(BEATS, {}, word)
    agent.publish(EVENTS, {}, word)
    assert [message.id for message in take(passing, 1)] == [word]
    assert [message.id for message in take(queue, 1)] == [word]
    assert (passing.rejected, queue.rejected) == (1, 1)
    queue.acknowledge()


def test_files_with_passwords_are_private_and_no_command_line_has_one(stand: NatsStand) -> None:
    passwords = [stand.server.credentials(name).password for name in ("controller", "m1", "m2")]
    assert len(set(passwords)) == 3
    for path in (stand.folder / "nats.conf", *(stand.folder / "credentials").iterdir()):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    process = Path(f"/proc/{stand.server.pid}")
    for text in ((process / "cmdline").read_bytes(), (process / "environ").read_bytes()):
        assert not [password for password in passwords if password.encode() in text]
    assert passwords[1] not in repr(stand.server.credentials("m1"))


def test_beyond_loopback_the_server_has_a_certificate_that_its_clients_know(tmp_path: Path) -> None:
    server = NatsServer(tmp_path, ["m1"], host="0.0.0.0")
    server.start()
    try:
        known = server.credentials("m1")
        assert known.tls
        right = NatsBus(replace(known, host="0.0.0.0"), "right")
        other = NatsBus(replace(known, ca=""), "wrong")
        try:
            assert right.wait_connected(LIMIT_S)
            assert not other.wait_connected(2.0)
            assert any("CERTIFICATE" in text.upper() for text in other.take_problems())
        finally:
            right.close()
            other.close()
    finally:
        server.close()


def test_a_machine_is_added_while_the_server_runs(stand: NatsStand) -> None:
    first = stand.client("m1")
    stand.server.add("m3")
    added = stand.open(stand.server.credentials("m3"), "m3")
    beats = stand.client().subscribe("pt.j.r.*.hb")
    added.publish("pt.j.r.m3.hb", {}, "of_m3")
    first.publish(BEATS, {}, "of_m1")
    assert {message.id for message in take(beats, 2)} == {"of_m3", "of_m1"}


def test_a_port_in_use_is_named(stand: NatsStand, tmp_path: Path) -> None:
    second = NatsServer(tmp_path, ["m1"], port=stand.server.credentials("m1").port)
    with pytest.raises(UserError, match="address already in use") as caught:
        second.start()
    assert "another port" in caught.value.fix


def run_in_namespace(options: str, module: str, *arguments: object) -> None:
    words = ["unshare", options, sys.executable, "-m", f"tests.system.bus.{module}", *map(str, arguments)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=240, env=os.environ)
    if "unshare: " in done.stderr:
        pytest.skip(f"no namespaces for this user: {done.stderr.strip()}")
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_full_disk_of_the_store_loses_and_doubles_nothing(tmp_path: Path) -> None:
    run_in_namespace("-Urm", "full_disk", tmp_path / "bus")


def test_a_partition_loses_and_doubles_nothing(tmp_path: Path) -> None:
    run_in_namespace("-Urn", "partition", tmp_path, 12)
