"""Opens the bus that a config or an option names."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from prime_train.bus.base import Bus
from prime_train.bus.credentials import Credentials, read_credentials
from prime_train.core.errors import ExitCode, UserError
from prime_train.core.installation import data_path, install_command

LOCAL = "local"


def read_link(url: str, file: str | None, variable: str | None, environment: Mapping[str, str]) -> Credentials | None:
    """The credentials for `open_bus`; None for the folder of this machine. Raises UserError. Opens nothing."""
    if url == LOCAL:
        return None
    found = read_credentials(url, file, variable, environment)
    if find_spec("nats") is None:
        what, why = "the package nats-py is not installed", "it speaks with the server of the bus"
        raise UserError(what, "[prime_train.bus] url", why, install_command("control"), ExitCode.OUT_OF_REACH)
    return found


def require_server(where: str) -> None:
    """Raises UserError where this installation can not start a server for machines that share a secret."""
    needed = (("nats", "nats-py"), ("cryptography", "cryptography"))
    missing = [package for module, package in needed if find_spec(module) is None]
    if missing:
        what, why = (
            f"not installed: {', '.join(missing)}",
            "the machines of a run speak over a NATS server of machine 0",
        )
        raise UserError(what, where, why, install_command("machines"), ExitCode.OUT_OF_REACH)
    from prime_train.bus.nats_server import find_binary  # here, because it needs the extra

    find_binary(where, "machines")


def open_bus(credentials: Credentials | None, name: str) -> Bus:
    """A bus, which connects in the background. `name`: how a server lists this client."""
    if credentials is None:
        from prime_train.bus.local import LocalBus

        return LocalBus(Path(data_path("bus")))
    from prime_train.bus.nats import NatsBus  # here, because it needs an extra

    return NatsBus(credentials, name)
