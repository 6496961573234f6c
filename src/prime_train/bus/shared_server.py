"""Starts a NATS server for machines that share a secret. It keeps nothing, and ends with the process that started it.

The configuration, with passwords and the key of the certificate, is in memory that the server inherits, so no file has
it. What it logs is read here and never stored, because strangers decide how much that is.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from queue import SimpleQueue

from nats.aio.msg import Msg

from prime_train.bus.base import MESSAGE_BYTES, BusError
from prime_train.bus.nats import NatsBus
from prime_train.bus.nats_server import end_server, find_binary, permissions
from prime_train.bus.server_folder import CONTROLLER
from prime_train.bus.shared_secret import create_server_pair, derive_credentials, derive_password
from prime_train.core.errors import ExitCode, UserError
from prime_train.core.machine_secret import refuse_weak
from prime_train.core.machines import is_loopback
from prime_train.core.python_child import own_module
from prime_train.core.redaction import redact

_START_S = 30.0
_END_S = 2.0
_RELEASE_S = 3.0  # the server of an attempt that was killed still has the port
_HANDSHAKE_S = 5
_PING_S = "20s"  # a machine that vanished is noticed after a minute; one that is only cut off must not be sooner
_MOST_NOTES = 20  # different refusals; a flood must not fill a log
_LINE = re.compile(r"\[(DBG|ERR|FTL)\] (?:(\S+):\d+ - )?(?:\S*cid:\d+ - )?(.*)")
_LINE_CHARACTERS = 4096
LEFT = "pt.machines.left"
_ACCOUNT = "RUN"
_LEFT = f"$SYS.ACCOUNT.{_ACCOUNT}.DISCONNECT"  # docs.nats.io, system events
_REFUSALS = (
    ("TLS Handshake Failure", "it does not speak TLS with the certificate of this run"),
    ("authentication error", "it has not the password of a machine of this run"),
    ("Publish Violation", "it may not send in another's name"),
    ("Subscription Violation", "it may not hear what is sent to others"),
)


class SharedServer:
    """`machines`: the names of the users beside the controller. `note` gets a line for each kind of refusal."""

    def __init__(self, secret: str, machines: Sequence[str], host: str, port: int, note: Callable[[str], None]) -> None:
        self._secret, self._machines, self._host, self._port, self._note = secret, machines, host, port, note
        self._noted: set[str] = set()
        self._process: subprocess.Popen[str] | None = None
        self._is_ready = threading.Event()
        self._reason = ""  # of an end
        self._binary = find_binary()

    @property
    def pid(self) -> int:
        assert self._process is not None, "start() was called"
        return self._process.pid

    def start(self) -> None:
        """Returns when it accepts connections. Call it from the main thread.

        Raises UserError, also for a secret that can be guessed where other hosts reach the port.
        """
        if not is_loopback(self._host):
            refuse_weak(self._secret)
        until_s = time.monotonic() + _RELEASE_S
        while not self._try_start():
            if "in use" not in self._reason or time.monotonic() > until_s:
                what, why = f"it cannot be listened on: {self._reason}", "machine 0 has the bus of the other machines"
                fix = "--machine-port PORT, the same on every machine; it and the next one must be free"
                raise UserError(what, f"{self._host}:{self._port}", why, fix, ExitCode.OUT_OF_REACH)
            time.sleep(0.2)

    def keep(self) -> None:
        """Start it again if it has ended."""
        if self._process is not None and self._process.poll() is not None:
            self._note("the server of the bus has ended, and is started again")
            self.start()

    def open_bus(self) -> NatsBus:
        """The bus of machine 0, which may speak to every machine. Raises UserError."""
        bus = NatsBus(derive_credentials(self._secret, CONTROLLER, self._host, self._port), CONTROLLER, 0.25)
        if bus.wait_connected(_START_S):
            return bus
        problems = "; ".join(bus.take_problems())
        bus.close()
        what, why = (
            f"the server that it started does not answer: {problems[:300]}",
            "machine 0 has the bus of the other machines",
        )
        raise UserError(what, f"{self._host}:{self._port}", why, "look at the memory of this machine, and start again")

    def close(self) -> None:
        if self._process is not None:
            end_server(self._process, _END_S)

    def _try_start(self) -> bool:
        self._is_ready.clear()
        self._reason = "it ended without a word"
        certificate, key = create_server_pair(self._secret)
        files = [_in_memory("certificate", certificate), _in_memory("key", key)]
        try:
            files.append(_in_memory("configuration", json.dumps(self._configure(*map(_path, files)))))
            command = own_module("prime_train.bus.nats_start", str(os.getpid()), self._binary, _path(files[-1]))
            # In another session Ctrl-C does not end it before the trainers have saved.
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                cwd="/",
                pass_fds=files,
                start_new_session=True,
                text=True,
                errors="replace",
            )
        finally:
            for file in files:
                os.close(file)
        reader = threading.Thread(target=self._read, args=(self._process,), name="bus server", daemon=True)
        reader.start()
        until_s = time.monotonic() + _START_S
        while time.monotonic() < until_s:
            if self._is_ready.wait(0.05):
                return True
            if self._process.poll() is not None:
                reader.join(_END_S)
                return False
        self.close()
        self._reason = f"it did not start within {_START_S:g} s"
        return False

    def _configure(self, certificate: str, key: str) -> dict[str, object]:
        names = (CONTROLLER, *self._machines)
        users = [
            {"user": name, "password": derive_password(self._secret, name), "permissions": permissions(name)}
            for name in names
        ]
        # The events of the server belong to another account, and machine 0 hears when a machine has left.
        exported = {"exports": [{"stream": _LEFT}], "users": []}
        imported = [{"stream": {"account": "SYS", "subject": _LEFT}, "to": LEFT}]
        return {
            "server_name": "prime-train",
            "host": self._host,
            "port": self._port,
            "max_payload": MESSAGE_BYTES + 2**20,
            "ping_interval": _PING_S,
            "logtime": False,
            "debug": True,  # else the log has no failed handshake
            "accounts": {"SYS": exported, _ACCOUNT: {"users": users, "imports": imported}},
            "system_account": "SYS",
            "authorization": {"timeout": _HANDSHAKE_S},
            "tls": {"cert_file": certificate, "key_file": key, "handshake_first": True, "timeout": _HANDSHAKE_S},
        }

    def _read(self, process: subprocess.Popen[str]) -> None:
        """Read the log of one server to the end."""
        assert process.stdout is not None, "it was opened"
        while line := process.stdout.readline(_LINE_CHARACTERS):
            if "Server is ready" in line:
                self._is_ready.set()
            elif found := _LINE.search(line):
                level, address, text = found.groups()
                if level == "FTL":
                    self._reason = redact(text.rpartition("bind: ")[2].strip().strip('"'), ())
                elif why := next((why for mark, why in _REFUSALS if mark in text), ""):
                    # Nothing else of the line, because a stranger chose its words.
                    self._report(f"the bus refused {address}: {why}")
        process.stdout.close()

    def _report(self, text: str) -> None:
        if text not in self._noted and len(self._noted) < _MOST_NOTES:
            self._noted.add(text)
            self._note(text)


def _in_memory(name: str, content: str) -> int:
    file = os.memfd_create(name)
    os.write(file, content.encode())
    return file


def _path(file: int) -> str:
    return f"/proc/self/fd/{file}"


class Departures:
    """The users whose connection a server saw end. `bus`: that of the controller."""

    def __init__(self, bus: NatsBus) -> None:
        self._connection = bus.connection
        self._lives = 0
        self._left: SimpleQueue[str] = SimpleQueue()

    def take(self) -> list[str]:
        """The users since the last call."""
        if self._lives != self._connection.lives:
            with contextlib.suppress(BusError):  # tried again at the next call
                lives = self._connection.lives
                self._connection.call(self._connection.client.subscribe(LEFT, cb=self._receive), about=LEFT)
                self._lives = lives
        return [self._left.get() for _ in range(self._left.qsize())]

    async def _receive(self, message: Msg) -> None:
        with contextlib.suppress(ValueError, KeyError, TypeError):  # of another release of the server
            self._left.put(str(json.loads(message.data)["client"]["user"]))
