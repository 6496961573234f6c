"""The machines of one run, and the place of this one among them. Opens nothing.

`prime-train run` reads the variables of the cloud or the scheduler once (supervise/machines/node_variables.py) and
hands them to its children as variables of its own, so no other module knows where they come from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

RANK = "PRIME_TRAIN_MACHINE_RANK"
ADDRESSES = "PRIME_TRAIN_MACHINE_ADDRESSES"
PORT = "PRIME_TRAIN_MACHINE_PORT"
INTERFACE = "PRIME_TRAIN_MACHINE_INTERFACE"
USUAL_PORT = 29400  # torchrun's for c10d (torch 2.13, elastic/rendezvous/c10d_rendezvous_backend.py)
MOST_MACHINES = 4096


@dataclass(frozen=True, slots=True)
class Machines:
    """The address of each machine, by its number; `rank` is the number of this one.

    Machine 0 listens on `port` for the supervisors of the others, and its rank 0 on `port` + 1 for their ranks.
    `interface`: the network interface of this machine; "" = the library chooses.
    """

    rank: int
    addresses: tuple[str, ...]
    port: int = USUAL_PORT
    interface: str = ""

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
        }


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
    return Machines(rank, addresses, port, environment.get(INTERFACE, ""))
