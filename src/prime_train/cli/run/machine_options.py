"""The options of `run` for several machines, and the place of this machine among them. Starts nothing."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Annotated, NamedTuple

import typer

from prime_train.core.errors import UserError
from prime_train.core.machines import ADDRESSES, PORT, RANK, Machines
from prime_train.spec import RunSpec

MachineRank = Annotated[
    int | None,
    typer.Option("--machine-rank", metavar="N", min=0, help="Several machines: the number of this one, from 0."),
]
MachineAddresses = Annotated[
    str | None,
    typer.Option(
        "--machine-addresses",
        metavar="A,B,...",
        help="Several machines: the address of each, by its number. SkyPilot and srun set both.",
    ),
]
MachinePort = Annotated[
    int | None,
    typer.Option("--machine-port", metavar="PORT", help="Several machines: a port of machine 0; it uses the next too."),
]


class MachineOptions(NamedTuple):
    """The options, as given. Each replaces its variable."""

    rank: int | None = None
    addresses: str | None = None
    port: int | None = None

    @property
    def variables(self) -> dict[str, str]:
        given = {RANK: self.rank, ADDRESSES: self.addresses, PORT: self.port}
        return {name: str(value) for name, value in given.items() if value is not None}


def find_place(run: RunSpec, options: MachineOptions) -> Machines | None:
    """The machines of the run; None for a run on one machine. Raises UserError where config and variables differ."""
    from prime_train.supervise.machines import addresses  # here, because a run on one machine does not need them
    from prime_train.supervise.machines.node_variables import find_machines

    found = find_machines({**os.environ, **options.variables})
    wanted, count = run.parallel.machines, found.count if found is not None else 1
    if wanted != count:
        raise _wrong_count(wanted, count)
    if found is None:
        return None
    return replace(found, interface=addresses.find_interface(addresses.find_own(found)))


def _wrong_count(wanted: int, count: int) -> UserError:
    if count == 1:
        return UserError(
            what=f"the run needs {wanted} machines, and no variable or option names them",
            where="parallel.machines",
            why="each machine must know its number and the address of machine 0",
            fix="on each machine: --machine-rank N --machine-addresses A,B,...; or srun, or SkyPilot with num_nodes",
        )
    return UserError(
        what=f"{count} machines are named, and the run needs {wanted}",
        where="parallel.machines",
        why="each machine would train a run of its own, or wait for one that never comes",
        fix=f"parallel.machines = {count}, with parallel.processes of all of them together",
    )
