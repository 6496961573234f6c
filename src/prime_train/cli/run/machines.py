"""`prime-train run` on one of several machines: machine 0 reports its end to the others, which follow it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Annotated

import typer

from prime_train.cli.run.preflight import CheckedConfig
from prime_train.cli.terminal.standard_streams import write_note
from prime_train.core.errors import ExitCode, UserError
from prime_train.core.machines import ADDRESSES, PORT, RANK, SECRET, Machines, is_loopback
from prime_train.programs import program_of
from prime_train.programs.base import absolute
from prime_train.spec import RunSpec
from prime_train.supervise.machines.protocol import CONFIG_HASH, hash_config
from prime_train.supervise.processes.lock import hold_run

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


def find_place(
    run: RunSpec, rank: int | None = None, addresses: str | None = None, port: int | None = None
) -> Machines | None:
    """The machines of the run; None for a run on one machine. Each option that is given replaces its variable.

    Raises UserError where config and variables differ, and where another host could join without a secret.
    """
    from prime_train.bus.open import require_server  # here, because a run on one machine does not need it
    from prime_train.core.machine_secret import MAKE, require_secret  # here, as find_machines
    from prime_train.core.machines import find_machines  # here, because a run on one machine does not need it
    from prime_train.supervise.machines import protocol  # here, because a run on one machine does not need them

    given = {RANK: rank, ADDRESSES: addresses, PORT: port}
    found = find_machines({**os.environ, **{name: str(value) for name, value in given.items() if value is not None}})
    wanted, count = run.parallel.machines, found.count if found is not None else 1
    if wanted != count:
        raise _wrong_count(wanted, count)
    if found is None:
        return None
    require_secret(found, os.environ)
    require_server("parallel.machines")
    if not os.environ.get(SECRET):
        write_note(f"warning: without a secret any user of this machine can join the run; set {SECRET}=$({MAKE})")
    own = protocol.find_own(found)
    if run.parallel.replicas:
        _check_addresses(found, own)
    return replace(found, interface=protocol.find_interface(own), own=own)


def _check_addresses(machines: Machines, own: str) -> None:
    """Warn of ports without authentication. UserError for an address that torchft cannot take apart."""
    if ":" in own:
        why = "torchft 0.2.0 writes addresses as HOST:PORT, which an IPv6 address makes ambiguous"
        fix = "--machine-addresses with IPv4 addresses, or parallel.replicas = 0"
        raise UserError("replicas on several machines need IPv4", machines.name(machines.rank), why, fix)
    if not is_loopback(own):
        write_note(
            f"warning: torchft listens on ports of {own} that the system chooses, and asks for no secret there: who "
            "reaches them can end replicas, change weights and run code; keep the machines in a private network"
        )


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


def follow_machine_0(checked: CheckedConfig, machines: Machines) -> ExitCode:
    """Train this machine's part until the run ends. Returns its exit code. Raises UserError."""
    from prime_train.supervise.machines.follower import follow, machine_dir

    os.environ.update(machines.variables())
    run_dir = machine_dir(checked.run_dir, machines.rank)
    run = absolute(checked.spec, checked.run_dir)
    write_note(f"{machines.name(machines.rank)} follows {machines.name(0)}, which has the run directory")
    with hold_run(run_dir):
        code = follow(run, run_dir, machines, program_of(run), hash_config(checked.text), write_note)
    write_note(f"the run has ended with exit code {code}")
    return code


@contextmanager
def open_machines(machines: Machines | None, text: str) -> Iterator[Callable[[ExitCode], None]]:
    """Machine 0: the attempts of the block start the others, and the exit code of the run is reported to them.

    Call what it yields with that code. An error of the block is reported too, and raised again. The caller holds the
    lock of the run, so no command that is refused for it ends the machines of the run that holds it.
    """
    codes: list[ExitCode] = []
    if machines is None:
        yield codes.append
        return
    os.environ.update({**machines.variables(), CONFIG_HASH: hash_config(text)})
    try:
        yield codes.append
    except UserError as error:
        codes.append(error.exit_code)
        raise
    finally:
        from prime_train.supervise.machines.relay import report_end

        try:
            report_end(machines, codes[-1] if codes else ExitCode.BUG, hash_config(text))
        except UserError as error:  # the other machines stop waiting by themselves
            write_note(f"warning: the other machines do not learn that the run has ended: {error}")
