"""How a Python script starts jax.distributed: coordinator address, number of processes, process ids. Pure.

Rules judge only literal values, because values that the script computes may be right.
"""

from __future__ import annotations

from collections.abc import Iterator

from prime_train.config.parsed_config import WRONG_ARGUMENT
from prime_train.core.findings import Problem, Severity
from prime_train.rules.rule import Problems, reader_rule, rule
from prime_train.spec import RunSpec
from prime_train.spec.jax import Jax, JaxStart

ADDRESS = "JAX_COORDINATOR_ADDRESS"


@rule("JAX001", Severity.WARNING)
def no_coordinator(run: RunSpec) -> Problems:
    """A start of several processes needs a coordinator address.

    without an address, and without a cluster that JAX detects, it ends with "coordinator_address should be defined"

    Under SLURM, Open MPI, Kubernetes and on Cloud TPUs JAX finds the address, the process number and the number of
    processes itself. JAX_COORDINATOR_ADDRESS in the environment sets the address, too.

    Source: JAX 0.10.2, jax/_src/distributed.py and jax/_src/clusters/cluster.py.

    Bad (jax):
        jax.distributed.initialize(num_processes=4, process_id=int(os.environ["RANK"]), heartbeat_timeout_seconds=600)
    Good (jax):
        jax.distributed.initialize(
            "10.0.0.1:1234", num_processes=4, process_id=int(os.environ["RANK"]), heartbeat_timeout_seconds=600
        )
    Good (jax):
        jax.distributed.initialize(heartbeat_timeout_seconds=600)
    """
    for at, start, jax in starts(run):
        detects = "cluster_detection_method" in start.given and start.cluster_detection_method != "deactivate"
        addressed = "coordinator_address" in start.given or ADDRESS in jax.variables
        hides = start.passes_more or not jax.environment_is_known  # an argument or a variable may not be visible
        if (start.num_processes or 0) < 2 or detects or addressed or hides:
            continue
        yield Problem(
            f"{at}.coordinator_address",
            f"{start.num_processes} processes, and no coordinator_address",
            fix='coordinator_address="HOST_OF_PROCESS_0:1234", or export JAX_COORDINATOR_ADDRESS',
        )


@rule("JAX002", Severity.ERROR)
def coordinator_without_port(run: RunSpec) -> Problems:
    """A coordinator address is host:port.

    JAX reads the port after the last colon, and ends with an IndexError if there is none

    Source: JAX 0.10.2, jax/_src/distributed.py (the default of coordinator_bind_address).

    Bad (jax):
        jax.distributed.initialize("10.0.0.1", 4, int(os.environ["RANK"]), heartbeat_timeout_seconds=600)
    Good (jax):
        jax.distributed.initialize("10.0.0.1:1234", 4, int(os.environ["RANK"]), heartbeat_timeout_seconds=600)
    """
    for at, start, _ in starts(run):
        address = start.coordinator_address
        if address and ":" not in address:
            what = f"{address} has no port"
            yield Problem(f"{at}.coordinator_address", what, fix=f'coordinator_address="{address}:1234", any free port')
    address = run.jax.variables.get(ADDRESS) if run.jax is not None else None
    if address and ":" not in address:
        yield Problem(f"jax.environment.{ADDRESS}", f"{address} has no port", fix=f'{ADDRESS} = "{address}:1234"')


@rule("JAX003", Severity.ERROR)
def process_outside_the_count(run: RunSpec) -> Problems:
    """Processes are numbered from 0 to num_processes - 1.

    JAX refuses any other number: the run ends before its first step

    Source: JAX 0.10.2, jax/_src/distributed.py ("process_id < num_processes").

    Bad (jax):
        jax.distributed.initialize("10.0.0.1:1234", 4, 4, heartbeat_timeout_seconds=600)
    Good (jax):
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
def one_number_for_all(run: RunSpec) -> Problems:
    """Each process needs its own process_id.

    every host runs the same script: all have this process_id, and wait for the other processes until they time out

    Source: JAX 0.10.2, jax/_src/distributed.py ("a dense range 0, 1, ..., num_processes - 1").

    Bad (jax):
        jax.distributed.initialize("10.0.0.1:1234", 4, 0, heartbeat_timeout_seconds=600)
    Good (jax):
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
                fix='process_id=int(os.environ["RANK"]), or the variable of your launcher',
            )


@reader_rule(WRONG_ARGUMENT, Severity.ERROR)
def no_such_argument() -> None:
    """A script must pass only arguments that jax.distributed.initialize accepts.

    the call ends with a TypeError on every host, after all hosts are paid for

    A name that resembles no argument is a warning, because a later JAX may accept it.

    Source: JAX 0.10.2, jax/_src/distributed.py.

    Bad (jax):
        jax.distributed.initialize(coordinator_adress="10.0.0.1:1234", heartbeat_timeout_seconds=600)
    Bad (jax):
        jax.distributed.initialize("10.0.0.1:1234", "4", int(os.environ["RANK"]), heartbeat_timeout_seconds=600)
    Good (jax):
        jax.distributed.initialize("10.0.0.1:1234", 4, int(os.environ["RANK"]), heartbeat_timeout_seconds=600)
    """


def starts(run: RunSpec) -> Iterator[tuple[str, JaxStart, Jax]]:
    """(RunSpec field, start, whole script) of each start."""
    if run.jax is not None:
        for number, start in enumerate(run.jax.starts):
            yield f"jax.starts.{number}", start, run.jax
