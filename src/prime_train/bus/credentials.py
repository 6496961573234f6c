"""Who a client of the bus is: the address of the server, and a name and a password from a private file or a variable.

No config and no command line has a password, because both are shown and copied.
"""

from __future__ import annotations

import json
import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from prime_train.bus.base import check_name
from prime_train.core.errors import ExitCode, UserError
from prime_train.core.machines import is_loopback
from prime_train.core.outside import MARK_BYTES, parse_json, read_text
from prime_train.core.rundir import write_atomic

PORT = 4222  # docs.nats.io, configuration: the usual port of clients
VARIABLE = "PRIME_TRAIN_BUS_CREDENTIALS"
_URL = "[prime_train.bus] url"
_FIX = "nats://127.0.0.1:4222 on this machine, tls://HOST:4222 for another one"


@dataclass(frozen=True, slots=True)
class Credentials:
    """`user` is the name of a machine or "controller". `ca`: the certificate that signed the server's, as PEM.

    `server_name`: the name in that certificate where it is not the host; such a server speaks TLS from its first byte.
    """

    host: str
    port: int
    user: str = ""
    password: str = field(default="", repr=False)
    ca: str = ""
    tls: bool = False
    server_name: str = ""

    @property
    def address(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'tls' if self.tls else 'nats'}://{host}:{self.port}"

    def ssl_context(self) -> ssl.SSLContext | None:
        return ssl.create_default_context(cadata=self.ca or None) if self.tls else None

    def write(self, path: Path) -> None:
        """Writes all but the address into a file for its owner alone."""
        path.unlink(missing_ok=True)
        write_atomic(path, json.dumps({"user": self.user, "password": self.password, "ca": self.ca}))


def read_credentials(url: str, file: str | None, variable: str | None, environment: Mapping[str, str]) -> Credentials:
    """The credentials for a server, from a file of mode 600, or from a variable with the content of such a file.

    Without both the server must take everybody. Raises UserError.
    """
    host, port, tls = parse_url(url)
    if file is None and variable is None:
        variable = VARIABLE if VARIABLE in environment else None
    text, where = "", ""
    if file is not None:
        text, where = _read_private(Path(file).expanduser()), file
    elif variable is not None:
        text, where = environment.get(variable, ""), f"${variable}"
        if not text:
            raise UserError("the variable is not set", where, "it has the credentials of the bus", f"export {variable}")
    if not text:
        return Credentials(host, port, tls=tls)
    try:
        found = parse_json(text)
        user, password, ca = found["user"], found["password"], found.get("ca", "")
        if not isinstance(password, str) or not isinstance(ca, str):
            raise TypeError
        return Credentials(host, port, check_name(user), password, ca, tls)
    except (ValueError, KeyError, TypeError, AttributeError):
        what, why = "these are no credentials of a bus", "they are one JSON object with user, password and ca"
        raise UserError(what, where, why, "copy the file that the controller wrote for this machine") from None


def _read_private(path: Path) -> str:
    fix = f"chmod 600 {path}"
    try:
        text = read_text(path, MARK_BYTES)
        if path.stat().st_mode & 0o077:
            raise UserError("others may read it", str(path), "it has the password of this machine", fix)
        if path.stat().st_uid != os.getuid():
            raise UserError("it belongs to another user", str(path), "who could change whom this run obeys", fix)
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        why, fix = f"it has the credentials of the bus: {reason}", "copy the file that the controller wrote"
        raise UserError("it cannot be read", str(path), why, fix, ExitCode.OUT_OF_REACH) from error
    return text


def parse_url(url: str) -> tuple[str, int, bool]:
    """Host, port and whether TLS is used. Raises UserError for no address of a server, and for one with a password."""
    try:
        found = urlsplit(url)
        host, port = found.hostname or "", found.port or PORT
    except ValueError:
        found, host, port = urlsplit(""), "", 0
    if found.username or found.password:
        what, why = "the address has a name or a password", "configs and command lines are shown and copied"
        raise UserError(what, _URL, why, "write them into a file of mode 600: prime_train.bus.credentials_file")
    if found.scheme not in ("nats", "tls") or not host or found.path.strip("/") or found.query or found.fragment:
        raise UserError(
            f"{url[:200]!r} is no address of a bus", _URL, "it is made of a scheme, a host and a port", _FIX
        )
    if found.scheme == "nats" and not is_loopback(host):
        what, why = (
            "the address is beyond this machine and has no TLS",
            "the password and every command would be readable",
        )
        raise UserError(what, _URL, why, f"tls://{found.netloc}")
    return host, port, found.scheme == "tls"
