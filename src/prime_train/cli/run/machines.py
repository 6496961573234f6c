"""`prime-train run` on one of several machines: machine 0 reports its end to the others, which follow it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from prime_train.cli.run.preflight import CheckedConfig
from prime_train.cli.terminal.standard_streams import write_note
from prime_train.core.errors import ExitCode, UserError
from prime_train.core.machines import Machines
from prime_train.programs import program_of
from prime_train.programs.base import absolute
from prime_train.supervise.machines.protocol import CONFIG_HASH, hash_config
from prime_train.supervise.processes.lock import hold_run


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
        _report_end(machines, codes[-1] if codes else ExitCode.BUG)


def _report_end(machines: Machines, code: ExitCode) -> None:
    from prime_train.supervise.machines.relay import report_end

    try:
        report_end(machines, code)
    except UserError as error:  # the other machines stop waiting by themselves
        write_note(f"warning: the other machines do not learn that the run has ended: {error}")
