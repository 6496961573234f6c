"""Has the files by which other commands find the server: the address, and credentials for each machine.

They are below one folder with mode 700. The files with credentials are the list of machines: a server that runs takes
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
ADDRESS = "address.json"  # where the server listens, or did so last
_BELOW_RUNS = (".control", "bus")


def server_folder(runs: Path) -> Path:
    """Where `prime-train control --bus nats` keeps the files for its server, below the runs."""
    return runs.joinpath(*_BELOW_RUNS)


def read_address(folder: Path) -> str:
    """Where the server listens. Raises UserError where none was started with this folder."""
    try:
        found = read_json(folder / ADDRESS, MARK_BYTES, folder)
        if isinstance(found, str):
            return found
        raise ValueError("it is no address")
    except (OSError, ValueError) as error:
        what = "no bus server was started here"
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        fix = "prime-train control --bus nats in this folder, or give its address: nats://127.0.0.1:4222"
        raise UserError(what, str(folder / ADDRESS), reason, fix, ExitCode.OUT_OF_REACH) from None


def credentials_file(folder: Path, name: str) -> Path:
    """The file for a machine, or for the controller. Raises ValueError for no plain name."""
    return folder / "credentials" / f"{check_name(name)}.json"


def list_machines(folder: Path) -> list[str]:
    """The machines that have credentials, in alphabetical order."""
    found = []
    for path in sorted((folder / "credentials").glob("*.json")):
        with contextlib.suppress(ValueError):
            found.append(check_name(path.stem))
    return [name for name in found if name != CONTROLLER]


def create_credentials(folder: Path, name: str) -> Path:
    """The file for a machine or for the controller, made where it is missing. Raises ValueError, OSError."""
    path = credentials_file(folder, name)
    if not path.exists():
        make_folder(folder)
        folder.chmod(0o700)  # a group that shares the folder above must not have the passwords
        make_folder(path.parent)
        Credentials("", 0, name, secrets.token_urlsafe(24)).write(path)
    return path
