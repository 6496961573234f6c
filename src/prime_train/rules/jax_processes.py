"""The processes that a Python script starts jax.distributed with: where they meet, and which one each is. Pure.

A rule speaks of what stands in the script literally. What is computed there may be right.
"""

from __future__ import annotations

from collections.abc import Iterator

from prime_train.dialects.reading import WRONG_ARGUMENT, Fault, Reading
from prime_train.findings import Problem, Severity
from prime_train.rules.base import file_rule, rule
from prime_train.spec import RunSpec
from prime_train.spec.scripts import Jax, JaxStart

_ADDRESS = "JAX_COORDINATOR_ADDRESS"


@rule("JAX001", Severity.WARNING)
def no_coordinator(run: RunSpec) -> Iterator[Problem]:
    """A start of several processes needs a coordinator address.

    without one that JAX finds out from the cluster it ends with "coordinator_address should be defined"

    Under SLURM, Open MPI, Kubernetes and on Cloud TPUs JAX finds it out by itself, and the process number too; then
    the number of processes need not be given either. JAX_COORDINATOR_ADDRESS in the environment does as well.

    Source: JAX 0.10.2, jax/_src/distributed.py and jax/_src/clusters/cluster.py.

    Bad (script):
        import os

        import jax

        jax.config.update("jax_enable_preemption_service", False)
        jax.distributed.initialize(num_processes=4, process_id=int(os.environ["RANK"]), heartbeat_timeout_seconds=600)
    Good (script):
        import os

        import jax

        jax.config.update("jax_enable_preemption_service", False)
        jax.distributed.initialize(
            "10.0.0.1:1234", num_processes=4, process_id=int(os.environ["RANK"]), heartbeat_timeout_seconds=600
        )
    Good (script):
        import jax

        jax.config.update("jax_enable_preemption_service", False)
        jax.distributed.initialize(heartbeat_timeout_seconds=600)
    """
    for at, start, jax in starts(run):
        detects = "cluster_detection_method" in start.given and start.cluster_detection_method != "deactivate"
        addressed = "coordinator_address" in start.given or _ADDRESS in jax.variables
        if (start.num_processes or 0) < 2 or detects or addressed or not _is_all_known(start, jax):
            continue
        yield Problem(
            f"{at}.coordinator_address",
            f"{start.num_processes} processes, and no coordinator_address",
            fix='coordinator_address="HOST_OF_PROCESS_0:1234", or export JAX_COORDINATOR_ADDRESS',
        )


@rule("JAX002", Severity.ERROR)
def coordinator_without_port(run: RunSpec) -> Iterator[Problem]:
    """A coordinator address is host:port.

    JAX takes the port from behind the last colon, and ends with an IndexError where there is none

    Source: JAX 0.10.2, jax/_src/distributed.py (the default of coordinator_bind_address).

    Bad (script):
        import os

        import jax

        jax.config.update("jax_enable_preemption_service", False)
        jax.distributed.initialize("10.0.0.1", 4, int(os.environ["RANK"]), heartbeat_timeout_seconds=600)
    Good (script):
        import os

        import jax

        jax.config.update("jax_enable_preemption_service", False)
        jax.distributed.initialize("10.0.0.1:1234", 4, int(os.environ["RANK"]), heartbeat_timeout_seconds=600)
    """
    for at, start, _ in starts(run):
        address = start.coordinator_address
        if address and ":" not in address:
            what = f"{address} has no port"
            yield Problem(f"{at}.coordinator_address", what, fix=f'coordinator_address="{address}:1234", any free port')
    address = run.jax.variables.get(_ADDRESS) if run.jax is not None else None
    if address and ":" not in address:
        yield Problem(f"jax.environment.{_ADDRESS}", f"{address} has no port", fix=f'{_ADDRESS} = "{address}:1234"')


@rule("JAX003", Severity.ERROR)
def process_outside_the_count(run: RunSpec) -> Iterator[Problem]:
    """Processes are numbered from 0 to num_processes - 1.

    JAX refuses any other number: the run ends before its first step

    Source: JAX 0.10.2, jax/_src/distributed.py ("process_id < num_processes").

    Bad (script):
        import jax

        jax.config.update("jax_enable_preemption_service", False)
        jax.distributed.initialize("10.0.0.1:1234", 4, 4, heartbeat_timeout_seconds=600)
    Good (script):
        import jax

        jax.config.update("jax_enable_preemption_service", False)
        jax.distributed.initialize("10.0.0.1:1234", 1, 0, heartbeat_timeout_seconds=600)
    """
    for at, start, _ in starts(run):
        number, count = start.process_id, start.num_processes
        if number is not None and count is not None and not 0 <= number < count:
            yield Problem(
                f"{at}.process_id",
                f"process_id {number} of {count} processes",
                fix=f"process_id from 0 to {count - 1}, another in each process" if count > 0 else "num_processes=1",
            )


@rule("JAX004", Severity.WARNING)
def one_number_for_all(run: RunSpec) -> Iterator[Problem]:
    """Each process needs a number of its own.

    every host runs the same script: all of them are this process, and wait for the others until the time is over

    Source: JAX 0.10.2, jax/_src/distributed.py ("a dense range 0, 1, ..., num_processes - 1").

    Bad (script):
        import jax

        jax.config.update("jax_enable_preemption_service", False)
        jax.distributed.initialize("10.0.0.1:1234", 4, 0, heartbeat_timeout_seconds=600)
    Good (script):
        import os

        import jax

        jax.config.update("jax_enable_preemption_service", False)
        jax.distributed.initialize("10.0.0.1:1234", 4, int(os.environ["RANK"]), heartbeat_timeout_seconds=600)
    """
    found = list(starts(run))
    numbers = {start.process_id for _, start, _ in found}
    if len(numbers) > 1:
        return  # the script chooses among several starts
    for at, start, _ in found:
        number, count = start.process_id, start.num_processes
        if number is not None and count is not None and count > 1 and 0 <= number < count:
            yield Problem(
                f"{at}.process_id",
                f"process_id is {number} in each of {count} processes",
                fix='process_id=int(os.environ["RANK"]), or what your launcher calls it',
            )


@file_rule(WRONG_ARGUMENT, Severity.ERROR)
def no_such_argument(reading: Reading) -> Iterator[Fault]:
    """What a script passes to jax.distributed.initialize must be what it takes.

    the call ends with a TypeError on every host, once all of them are paid for

    A warning where no argument has a name like it: a later JAX may know it.

    Source: JAX 0.10.2, jax/_src/distributed.py.

    Bad (script):
        import jax

        jax.config.update("jax_enable_preemption_service", False)
        jax.distributed.initialize(coordinator_adress="10.0.0.1:1234", heartbeat_timeout_seconds=600)
    Bad (script):
        import os

        import jax

        jax.config.update("jax_enable_preemption_service", False)
        jax.distributed.initialize("10.0.0.1:1234", "4", int(os.environ["RANK"]), heartbeat_timeout_seconds=600)
    Good (script):
        import os

        import jax

        jax.config.update("jax_enable_preemption_service", False)
        jax.distributed.initialize("10.0.0.1:1234", 4, int(os.environ["RANK"]), heartbeat_timeout_seconds=600)
    """
    return (fault for fault in reading.faults if fault.code == WRONG_ARGUMENT)


def starts(run: RunSpec) -> Iterator[tuple[str, JaxStart, Jax]]:
    """(RunSpec field, start, all of the script) of each start."""
    if run.jax is not None:
        for number, start in enumerate(run.jax.starts):
            yield f"jax.starts.{number}", start, run.jax


def _is_all_known(start: JaxStart, jax: Jax) -> bool:
    """Whether what is not there is not given."""
    return not start.passes_more and bool(jax.environment_is_known)
