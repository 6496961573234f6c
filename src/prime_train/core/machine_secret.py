"""The secret that the machines of one run share: how strong it must be, and how each machine gets it.

The bus of the machines makes its passwords and its certificate from it. Writes no file.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, MutableMapping, Sequence
from typing import NamedTuple

from prime_train.core.errors import UserError
from prime_train.core.machines import SECRET, Machines, is_loopback

SHORTEST_CHARACTERS = 16  # 64 bits where they are hexadecimal digits
_FEWEST_DIFFERENT = 6  # 16 random hexadecimal digits have fewer once in 30,000 times
MAKE = "openssl rand -hex 32"
_FILE = "machine.secret"  # in the home folder
_READ = f"export {SECRET}=$(cat ~/{_FILE})"
_CREATE = f"(umask 077; {MAKE} > ~/{_FILE})"
_MOST_SHOWN = 4  # machines in a message
_UNSET = "it is not set"
_GUESSED = "shows each host a certificate made from it, on which a short one is guessed unseen"


class SecretFault(NamedTuple):
    """Three parts of a message; the caller adds where."""

    what: str
    why: str
    fix: str


def create_secret(environment: MutableMapping[str, str]) -> None:
    """Set a secret for the machines of a run, unless the user has set one."""
    import secrets  # here, because it loads OpenSSL, and a run on one machine needs none

    if not environment.get(SECRET):
        environment[SECRET] = secrets.token_hex(32)


def find_weakness(secret: str) -> str:
    """Why a secret protects nothing; "" if it is strong enough."""
    if not secret:
        return _UNSET
    if len(secret) < SHORTEST_CHARACTERS:
        return f"it has {len(secret)} characters, fewer than {SHORTEST_CHARACTERS}"
    different = len(set(secret))
    return f"it has only {different} different characters" if different < _FEWEST_DIFFERENT else ""


def find_launcher(environment: Mapping[str, str]) -> str:
    """What has started this machine: "slurm", "skypilot", or "" for a person."""
    if environment.get("SLURM_STEP_NODELIST"):
        return "slurm"
    return "skypilot" if environment.get("SKYPILOT_NODE_IPS") else ""


def find_fault(machines: Machines, weakness: str, launcher: str) -> SecretFault | None:
    """The fault of a secret with this weakness. None where all machines are on loopback, which no other host reaches.

    A name counts as another host, because it may have another address later.
    """
    beyond = next((rank for rank, name in enumerate(machines.addresses) if not is_loopback(name)), None)
    if not weakness or beyond is None:
        return None
    return SecretFault(
        what=f"{weakness}, and {machines.name(beyond)} is beyond loopback",
        why=f"any host that reaches port {machines.port} of machine 0 could join the run, hear it and end it"
        if weakness == _UNSET
        else f"port {machines.port} of machine 0 {_GUESSED}",
        fix=_advise(machines, launcher),
    )


def require_secret(machines: Machines, environment: Mapping[str, str]) -> None:
    """Raise UserError where machines beyond loopback share no secret, or one that can be guessed."""
    fault = find_fault(machines, find_weakness(environment.get(SECRET, "")), find_launcher(environment))
    if fault is not None:
        raise UserError(fault.what, SECRET, fault.why, fault.fix)


def refuse_weak(secret: str) -> None:
    """Raise UserError for a secret that is not strong enough for a port that other hosts reach."""
    if weakness := find_weakness(secret):
        raise UserError(weakness, SECRET, f"the port of machine 0 {_GUESSED}", f"export {SECRET}=$({MAKE})")


def _advise(machines: Machines, launcher: str) -> str:
    """The commands that make a secret and bring it to this machine, without a value in a command line."""
    if launcher == "slurm":
        return f"export {SECRET}=$({MAKE}) before srun, in the batch script; then srun --export=ALL"
    if launcher == "skypilot":
        return f"{SECRET}=$({MAKE}) sky launch --secret {SECRET} TASK"
    if machines.rank == 0:
        return f"{_CREATE}; {_copy_to(machines.addresses[1:])}; on every machine: {_READ}"
    return f"on machine 0: {_CREATE}; here: scp -p {_host(machines.addresses[0])}:{_FILE} ~/; {_READ}"


def _copy_to(addresses: Sequence[str]) -> str:
    hosts = [*map(_host, addresses[:_MOST_SHOWN]), *(["..."] if len(addresses) > _MOST_SHOWN else [])]
    if len(hosts) == 1:
        return f"scp -p ~/{_FILE} {hosts[0]}:"
    return f'for machine in {" ".join(hosts)}; do scp -p ~/{_FILE} "$machine:"; done'


def _host(address: str) -> str:
    return shlex.quote(f"[{address}]" if ":" in address else address)
