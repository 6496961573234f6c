"""The machines of one run, and the place of this one among them. Opens nothing.

`prime-train run` reads the variables of SkyPilot or Slurm once (`find_machines`) and hands them to its children as
variables of this project, so nothing else knows where they come from.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from prime_train.core.errors import UserError

RANK = "PRIME_TRAIN_MACHINE_RANK"
ADDRESSES = "PRIME_TRAIN_MACHINE_ADDRESSES"
PORT = "PRIME_TRAIN_MACHINE_PORT"
INTERFACE = "PRIME_TRAIN_MACHINE_INTERFACE"
OWN = "PRIME_TRAIN_MACHINE_OWN_ADDRESS"
SECRET = "PRIME_TRAIN_MACHINE_SECRET"  # what the machines of a run share, and no other user of them knows
USUAL_PORT = 29400  # torchrun's for c10d (torch 2.13, elastic/rendezvous/c10d_rendezvous_backend.py)
MOST_MACHINES = 4096
LOOPBACK = "127.0.0.1"
_SLURM_PORTS = range(20_000, 28_000, 2)  # two jobs may share a node, so the port depends on the number of the job


@dataclass(frozen=True, slots=True)
class Machines:
    """The address of each machine, by its number; `rank` is the number of this one.

    Machine 0 listens on `port` for the supervisors of the others, and its rank 0 on `port` + 1 for their ranks.
    `interface`: the network interface of this machine; "" = the library chooses. `own`: the address of that interface,
    which is not always the one that a name of this machine has here.
    """

    rank: int
    addresses: tuple[str, ...]
    port: int = USUAL_PORT
    interface: str = ""
    own: str = ""

    @property
    def count(self) -> int:
        return len(self.addresses)

    @property
    def store_port(self) -> int:
        return self.port + 1

    def name(self, rank: int) -> str:
        """ "machine 1 (10.0.0.2)"."""
        return f"machine {rank} ({self.addresses[rank]})"

    def variables(self) -> dict[str, str]:
        """The variables from which `read_machines` makes this value again."""
        return {
            RANK: str(self.rank),
            ADDRESSES: ",".join(self.addresses),
            PORT: str(self.port),
            INTERFACE: self.interface,
            OWN: self.own,
        }


def name_machine(rank: int) -> str:
    """The name of a machine on the bus, and among the GPUs of a command."""
    return f"machine-{rank}"


def find_machine(name: str) -> int:
    """The machine with this name; -1 if it is none."""
    number = name.removeprefix("machine-")
    return int(number) if name != number and number.isascii() and number.isdecimal() else -1


def count_machines(config: Mapping[str, Any]) -> int:
    """The machines of a run, by its config as JSON; 1 where that has no such number."""
    match config.get("parallel"):
        case {"machines": int(count)} if 1 < count <= MOST_MACHINES:
            return count
    return 1


def is_loopback(host: str) -> bool:
    """Whether only this machine has the address. A name other than localhost is not judged, and counts as another's."""
    from ipaddress import ip_address  # here, because most runs have one machine

    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def read_machines(environment: Mapping[str, str]) -> Machines | None:
    """The machines in this project's own variables; None without them. Raises ValueError if they contradict."""
    if not environment.get(ADDRESSES):
        return None
    addresses = tuple(name.strip() for name in environment[ADDRESSES].split(","))
    rank, port = int(environment.get(RANK, "")), int(environment.get(PORT) or USUAL_PORT)
    if not all(addresses) or len(addresses) > MOST_MACHINES:
        raise ValueError(f"{ADDRESSES} names {len(addresses)} machines, or one without a name")
    if not 0 <= rank < len(addresses):
        raise ValueError(f"{RANK} is {rank}, and {ADDRESSES} names {len(addresses)} machines")
    if not 0 < port < 65_535:
        raise ValueError(f"{PORT} is {port}")
    return Machines(rank, addresses, port, environment.get(INTERFACE, ""), environment.get(OWN, ""))


def find_machines(environment: Mapping[str, str]) -> Machines | None:
    """The machines that the variables name; None if they name one or none.

    Raises UserError if they contradict. This project's own variables come first, then those of a Slurm step, then those
    of SkyPilot.
    """
    for source, read in _SOURCES:
        try:
            found = read(environment)
        except (ValueError, KeyError) as error:
            raise _contradiction(source, error) from None
        if found is not None and found.count > 1:
            return found
    return None


def _read_skypilot(environment: Mapping[str, str]) -> Machines | None:
    """SkyPilot sets one address per line. Source: skypilot 0.14.1, skylet/constants.py (SKYPILOT_NODE_IPS)."""
    addresses = tuple(environment.get("SKYPILOT_NODE_IPS", "").split())
    if not addresses:
        return None
    if (number := int(environment["SKYPILOT_NUM_NODES"])) != len(addresses):
        raise ValueError(f"SKYPILOT_NUM_NODES is {number}, and SKYPILOT_NODE_IPS has {len(addresses)} addresses")
    return _machines(environment["SKYPILOT_NODE_RANK"], addresses, environment)


def _read_slurm(environment: Mapping[str, str]) -> Machines | None:
    """The nodes of a step that srun started; a batch script alone runs on one node. Source: srun(1), OUTPUT."""
    nodes = environment.get("SLURM_STEP_NODELIST", "")
    if not nodes or "SLURM_PROCID" not in environment:
        return None
    return _machines(environment["SLURM_NODEID"], tuple(expand_nodes(nodes)), environment)


_SOURCES: tuple[tuple[str, Callable[[Mapping[str, str]], Machines | None]], ...] = (
    (ADDRESSES, read_machines),
    ("SLURM_STEP_NODELIST", _read_slurm),
    ("SKYPILOT_NODE_IPS", _read_skypilot),
)


def _machines(rank: str, addresses: tuple[str, ...], environment: Mapping[str, str]) -> Machines | None:
    job = environment.get("SLURM_JOB_ID", "")
    usual = _SLURM_PORTS[int(job) % len(_SLURM_PORTS)] if job.isdecimal() else USUAL_PORT
    own = {RANK: rank, ADDRESSES: ",".join(addresses), PORT: environment.get(PORT) or str(usual)}
    return read_machines(own)


_PART = re.compile(r"([^,\[\]]*)(?:\[([0-9,-]+)\])?([^,\[\]]*)(?:,|\Z)")


def expand_nodes(text: str) -> Iterator[str]:
    """The names in a list of Slurm: "gpu[01-03,7],login" is gpu01, gpu02, gpu03, gpu7, login.

    Raises ValueError. Source: Slurm 22.05, scontrol show hostnames.
    """
    position = count = 0
    while position < len(text):
        found = _PART.match(text, position)
        if found is None or found.end() == position:
            raise ValueError(f"{text[:200]!r} is no list of nodes")
        position = found.end()
        before, numbers, after = found.groups()
        for number in [""] if numbers is None else _expand_numbers(numbers):
            count += 1
            if count > MOST_MACHINES:
                raise ValueError(f"it names more than {MOST_MACHINES} nodes")
            yield f"{before}{number}{after}"


def _expand_numbers(text: str) -> Iterator[str]:
    """ "01-03,7" is 01, 02, 03, 7: a number keeps its leading zeros."""
    for part in text.split(","):
        first, _, last = part.partition("-")
        for number in range(int(first), int(last or first) + 1):
            yield str(number).zfill(len(first))


def _contradiction(source: str, error: Exception) -> UserError:
    problem = f"{error} is not set" if isinstance(error, KeyError) else str(error)
    why = "the machines of a run need the address of machine 0, and each its own number"
    fix = "--machine-rank N --machine-addresses ADDRESS,ADDRESS,... on every machine, or unset the variable"
    return UserError(f"it does not describe the machines of a run: {problem}", source, why, fix)
