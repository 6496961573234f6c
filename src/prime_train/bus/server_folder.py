"""The files of a server of the bus that other commands need: its address, and the credentials of each machine.

They are below one folder of mode 700. The files of credentials are the list of the machines: a server that runs takes
one that was added, and refuses one that was removed.
"""

from __future__ import annotations

import contextlib
import secrets
from pathlib import Path

from prime_train.bus.base import check_name
from prime_train.bus.credentials import Credentials
from prime_train.core.errors import ExitCode, UserError
from prime_train.core.outside import MARK_BYTES, read_json
from prime_train.core.rundir import make_folder

CONTROLLER = "controller"
ADDRESS = "address.json"  # of the server that runs, or ran last
_BELOW_RUNS = (".control", "bus")


def server_folder(runs: Path) -> Path:
    """The folder of the server that `prime-train control --bus nats` starts, below the folder of runs."""
    return runs.joinpath(*_BELOW_RUNS)


def read_address(folder: Path) -> str:
    """The address of the server. Raises UserError where none was started with this folder."""
    try:
        found = read_json(folder / ADDRESS, MARK_BYTES, folder)
        if isinstance(found, str):
            return found
        raise ValueError("it is no address")
    except (OSError, ValueError) as error:
        what = "no server of the bus was started here"
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        fix = "prime-train control --bus nats in this folder, or give its address: nats://127.0.0.1:4222"
        raise UserError(what, str(folder / ADDRESS), reason, fix, ExitCode.OUT_OF_REACH) from None


def credentials_file(folder: Path, name: str) -> Path:
    """The file of a machine, or of the controller. Raises ValueError for no plain name."""
    return folder / "credentials" / f"{check_name(name)}.json"


def list_machines(folder: Path) -> list[str]:
    """The machines with a file of credentials, in alphabetical order."""
    found = []
    for path in sorted((folder / "credentials").glob("*.json")):
        with contextlib.suppress(ValueError):
            found.append(check_name(path.stem))
    return [name for name in found if name != CONTROLLER]


def create_credentials(folder: Path, name: str) -> Path:
    """The file of a machine or of the controller, which is made where it is missing. Raises ValueError, OSError."""
    path = credentials_file(folder, name)
    if not path.exists():
        make_folder(folder)
        folder.chmod(0o700)  # a group that shares the folder above must not have the passwords
        make_folder(path.parent)
        Credentials("", 0, name, secrets.token_urlsafe(24)).write(path)
    return path
