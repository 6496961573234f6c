"""Connects `control` and `top` with a bus, and makes credentials for machines. Prints no secret."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from prime_train.bus.base import BusError, check_name, to_word
from prime_train.bus.credentials import parse_url, read_credentials
from prime_train.bus.fleet_store import BUCKET
from prime_train.bus.server_folder import (
    CONTROLLER,
    create_credentials,
    credentials_file,
    list_machines,
    read_address,
    server_folder,
)
from prime_train.core.errors import ExitCode, UserError
from prime_train.core.installation import data_path, install_command
from prime_train.core.machines import is_loopback
from prime_train.views.run.runs import RUNS

if TYPE_CHECKING:
    from prime_train.control.nats_link import NatsLink
    from prime_train.control.remote import RemoteRuns

LOCAL, NATS = "local", "nats"
LOOPBACK = "127.0.0.1"
_CONNECT_S = 10.0
_TAKEN_S = 10.0  # a server looks for other machines each second
_POLL_S = 0.2
_EVERY = ("0.0.0.0", "::", "*")  # noqa: S104 - refused

BusUrl = Annotated[
    str | None,
    typer.Option(
        "--bus",
        metavar="nats|local|URL",
        help="Show runs on other machines too: nats starts a server, a URL is one that runs, local is a folder here.",
    ),
]
BusCredentials = Annotated[
    Path | None, typer.Option("--bus-credentials", metavar="FILE", help="Credentials for the server at the URL.")
]


@dataclass(frozen=True)
class Joined:
    """Runs on other machines, and how a machine joins."""

    remote: RemoteRuns
    address: str
    machines: dict[str, str]  # name -> file with credentials

    @property
    def document(self) -> dict[str, Any]:
        return {"address": self.address, "machines": self.machines}


def start_server(host: str, port: int, machines: list[str]) -> Joined:
    """Start a NATS server below the runs, and follow it. Raises UserError."""
    if host in _EVERY:
        why = "a certificate is for one address, and machines check it"
        raise UserError(f"{host} is no address", "--bus-host", why, "give the address by which other machines reach it")
    from prime_train.bus.nats_server import NatsServer  # here, because it needs the extra
    from prime_train.control.nats_link import NatsLink
    from prime_train.control.remote import RemoteRuns

    folder = server_folder(Path.cwd() / RUNS)
    named = [_check_machine(name) for name in machines]
    server = NatsServer(folder, [own_machine(), *named], host, port)
    server.start()
    link = NatsLink(server.credentials(CONTROLLER), server)
    files = {name: str(credentials_file(folder, name)) for name in list_machines(folder)}
    return Joined(RemoteRuns(link), server.address, files)


def connect(url: str, credentials: Path | None, *, reads_only: bool = False) -> Joined:
    """Follow a bus that is there: a folder here, or a server. `nats`: the one that a controller has started here."""
    from prime_train.control.remote import RemoteRuns

    if url == LOCAL:
        from prime_train.bus.local import LocalBus
        from prime_train.control.local_link import LocalLink

        folder = Path(data_path("bus"))
        try:
            return Joined(RemoteRuns(LocalLink(LocalBus(folder), reads_only=reads_only)), str(folder), {})
        except (BusError, OSError) as error:
            fix = f"chmod 700 {folder}"
            raise UserError("the local bus cannot be opened", str(folder), str(error), fix) from error
    require_nats()
    if url == NATS:
        folder = server_folder(Path.cwd() / RUNS)
        url, credentials = read_address(folder), credentials or credentials_file(folder, CONTROLLER)
    found = read_credentials(url, None if credentials is None else str(credentials), None, os.environ)
    from prime_train.control.nats_link import NatsLink

    link = NatsLink(found, reads_only=reads_only)
    try:
        _check_link(link, found.address, found.user)
    except UserError:
        link.close()
        raise
    return Joined(RemoteRuns(link), found.address, {})


def _check_link(link: NatsLink, address: str, user: str) -> None:
    """Raises UserError where the server is not reached, or refuses the credentials."""
    if why := link.wait_connected(_CONNECT_S):
        if "authorization" in why.lower():
            what, fix = (
                "the server refuses these credentials",
                "give --bus-credentials FILE, as its controller wrote it",
            )
        else:
            what, fix = "the bus server is not reached", "start it, or correct the address and the port"
        raise UserError(what, address, why, fix, ExitCode.OUT_OF_REACH)
    try:
        link.bus.kv(BUCKET).list_entries()
    except BusError as error:
        what = f"{user or 'a client without a name'} may not read what is known about machines"
        fix = "give --bus-credentials with the file controller.json"
        raise UserError(what, address, str(error), fix, ExitCode.OUT_OF_REACH) from error


def add_machine(name: str) -> list[str]:
    """Make credentials for a machine while the server runs. Returns how it joins. Raises UserError."""
    require_nats()
    folder = server_folder(Path.cwd() / RUNS)
    address, path = read_address(folder), create_credentials(folder, _check_machine(name))
    from prime_train.bus.nats import NatsBus

    until_s, why = time.monotonic() + _TAKEN_S, "it is not running"
    while time.monotonic() < until_s:
        try:
            bus = NatsBus(read_credentials(address, str(path), None, {}), name)
        except UserError:  # the server writes its certificate into it at this moment
            time.sleep(_POLL_S)
            continue
        is_taken = bus.wait_connected(1.0)
        why = next(reversed(bus.take_problems()), why)
        bus.close()
        if is_taken:
            return describe_joining(address, {name: str(path)})
    fix = "prime-train control --bus nats in this folder: the next start takes the machine"
    raise UserError(f"the server has not taken {name} yet", address, why, fix, ExitCode.OUT_OF_REACH)


def remove_machine(name: str) -> str:
    """Delete what a machine connects with. The server then ends its connection. Raises UserError."""
    folder = server_folder(Path.cwd() / RUNS)
    path = credentials_file(folder, _check_machine(name))
    try:
        path.unlink()
    except OSError as error:
        known = ", ".join(list_machines(folder)) or "none"
        fix = "give one of these names"
        raise UserError(f"{name} has no credentials: {error.strerror}", str(path), f"machines: {known}", fix) from error
    return f"{name} may not connect any more; a server that runs ends its connection within seconds"


def describe_joining(address: str, machines: dict[str, str]) -> list[str]:
    """The lines that show how machines join."""
    host, _, _ = parse_url(address)
    here = own_machine()
    lines = [f"bus {address}, machines: {', '.join(machines)}"]
    if here in machines:
        lines.append("  a run in this folder  prime-train run CONFIG --bus nats")
    for name, path in machines.items():
        use = f"--bus {address} --set prime_train.bus.credentials_file={path}"
        if name == here:
            lines.append(f"  elsewhere here        prime-train run CONFIG {use}")
        elif is_loopback(host):
            lines.append(f"  as {name:<18} prime-train run CONFIG {use}")
        else:
            use = f"--bus {address} --set prime_train.bus.credentials_file={name}.json"
            lines.append(f"  on {name}: copy {path} there with mode 600, then prime-train run CONFIG {use}")
    more = "only this machine reaches it; --bus-host ADDRESS listens for others, with TLS" if is_loopback(host) else ""
    lines.append(f"  another machine       prime-train control --add-machine NAME{f'; {more}' if more else ''}")
    return lines


def find_own_bus() -> tuple[str, Path]:
    """Where the server that was started here listens, and credentials for this machine. Raises UserError."""
    folder = server_folder(Path.cwd() / RUNS)
    address, path = read_address(folder), credentials_file(folder, own_machine())
    if not path.exists():
        why = f"the server has credentials for {', '.join(list_machines(folder)) or 'no machine'}"
        fix = f"prime-train control --add-machine {own_machine()}"
        raise UserError("this machine has no credentials", str(path), why, fix)
    return address, path


def own_machine() -> str:
    return to_word(os.uname().nodename)


def _check_machine(name: str) -> str:
    try:
        if check_name(name) != CONTROLLER:
            return name
        reason = "this name has the rights of the controller"
    except ValueError as error:
        reason = str(error)
    fix = "use its host name, without dots"
    raise UserError(f"{name[:100]!r} is no name for a machine", "--add-machine", reason, fix)


def require_nats() -> None:
    """Raises UserError where the packages for a server are not installed."""
    if find_spec("nats") is None:
        what, why = "the package nats-py is not installed", "it speaks with the bus server"
        raise UserError(what, "--bus", why, install_command("control"), ExitCode.OUT_OF_REACH)
