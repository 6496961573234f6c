"""How a Python script starts jax.distributed: coordinator address, number of processes, process ids. Pure.

Rules judge only literal values, because values that the script computes may be right.
"""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_address

from prime_train.config.parsed_config import WRONG_ARGUMENT
from prime_train.core.findings import Problem, Severity
from prime_train.rules.machine.grpc_proxy import NO_PROXIES, PROXIES, bypasses_proxy
from prime_train.rules.rule import Problems, reader_rule, rule
from prime_train.spec import RunSpec
from prime_train.spec.run_spec import Jax, JaxStart

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

    where every host runs this script, all have this process_id, and wait for the other processes until they time out

    Scripts that are linted together are judged as one process each, if they have one coordinator and different numbers.

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


_PREEMPTION = "jax_enable_preemption_service"
_OFF = frozenset({"n", "no", "f", "false", "off", "0"})  # as JAX reads a variable: jax/_src/config.py, bool_env
_DEFAULT_INITIALIZATION_S = 300
_DEFAULT_HEARTBEAT_S = 100
_LONG_COMPILE_S = 120
_MANY_PROCESSES = 8
_COLD_START_S = 1800


@rule("JAX005", Severity.WARNING)
def heartbeat_shorter_than_a_compile(run: RunSpec) -> Problems:
    """The heartbeat limit should be longer than a first compile.

    a host that compiles sends no heartbeat and counts as dead, and all other hosts end with it

    JAX's default of 100 s is a note. The argument exists since JAX 0.7.0. A compile on several slices was measured at
    327 s.

    Source: JAX 0.10.2, jax/_src/distributed.py; github.com/jax-ml/jax/issues/23599;
    github.com/GoogleCloudPlatform/ml-auto-solutions/pull/1166.

    Bad (jax):
        jax.distributed.initialize(heartbeat_timeout_seconds=30)
    Bad (jax):
        jax.distributed.initialize()
    Good (jax):
        jax.distributed.initialize(heartbeat_timeout_seconds=600)
    """
    for at, start, _ in starts(run):
        limit_s = start.heartbeat_timeout_s
        field = f"{at}.heartbeat_timeout_s"
        fix = "heartbeat_timeout_seconds=600, longer than the longest compile"
        if limit_s is not None and limit_s < _LONG_COMPILE_S:
            what = f"{limit_s} s; a first compile of {_LONG_COMPILE_S} s and more is usual for a language model"
            yield Problem(field, what, fix=fix)
        elif "heartbeat_timeout_s" not in start.given and not start.passes_more:
            what = f"heartbeat_timeout_seconds is not given: {_DEFAULT_HEARTBEAT_S} s"
            yield Problem(field, what, fix=fix, severity=Severity.NOTE)


@rule("JAX006", Severity.WARNING)
def start_not_waited_for(run: RunSpec) -> Problems:
    """All processes need enough time to start.

    the first process waits for the last one: after the limit it ends with DEADLINE_EXCEEDED, and all others with it

    Hosts of a spot fleet start minutes apart, and install packages and read data first: with eight hosts JAX's default
    of 300 s was too short after a preemption, and 1800 s was enough. A longer limit has no other cost.

    Source: JAX 0.10.2, jax/_src/distributed.py; github.com/marin-community/marin/pull/7232.

    Bad (jax):
        jax.distributed.initialize(initialization_timeout=60, heartbeat_timeout_seconds=600)
    Bad (jax):
        jax.distributed.initialize("10.0.0.1:1234", 16, int(os.environ["RANK"]), heartbeat_timeout_seconds=600)
    Good (jax):
        jax.distributed.initialize(
            "10.0.0.1:1234", 16, int(os.environ["RANK"]), initialization_timeout=30 * 60, heartbeat_timeout_seconds=600
        )
    """
    for at, start, _ in starts(run):
        limit_s, count = start.initialization_timeout_s, start.num_processes or 0
        is_given = "initialization_timeout_s" in start.given or bool(start.passes_more)
        many = f" for {count} processes" if count >= _MANY_PROCESSES else ""
        shown_s = _DEFAULT_INITIALIZATION_S if limit_s is None and not is_given else limit_s
        if count == 1 or shown_s is None or shown_s > _DEFAULT_INITIALIZATION_S:
            continue
        if many or shown_s < _DEFAULT_INITIALIZATION_S:
            yield Problem(
                f"{at}.initialization_timeout_s",
                f"initialization_timeout of {shown_s} s{many}" + ("" if is_given else ", JAX's default"),
                fix=f"initialization_timeout={_COLD_START_S}",
            )


@rule("JAX007", Severity.WARNING)
def preemption_notice_unanswered(run: RunSpec) -> Problems:
    """A script that leaves the preemption service on must check for its notice.

    JAX takes SIGTERM and only sets a notice: a script that never checks for the notice is killed before it saves

    jax.experimental.multihost_utils.reached_preemption_sync_point checks for it, and so does orbax's CheckpointManager.
    JAX reads JAX_ENABLE_PREEMPTION_SERVICE only when it is imported.

    Source: JAX 0.10.2, jax/_src/distributed.py (jax_enable_preemption_service, on by default).

    Bad (script):
        import jax

        jax.distributed.initialize(heartbeat_timeout_seconds=600)
    Bad (script):
        import os

        import jax

        os.environ["JAX_ENABLE_PREEMPTION_SERVICE"] = "false"
        jax.distributed.initialize(heartbeat_timeout_seconds=600)
    Good (script):
        import os

        os.environ["JAX_ENABLE_PREEMPTION_SERVICE"] = "false"
        import jax

        jax.distributed.initialize(heartbeat_timeout_seconds=600)
    Good (script):
        import jax
        from jax.experimental import multihost_utils

        jax.distributed.initialize(heartbeat_timeout_seconds=600)
        for step in range(1000):
            if multihost_utils.reached_preemption_sync_point(step):
                break
    """
    jax = run.jax
    if jax is None or jax.answers_preemption:
        return
    variable = _PREEMPTION.upper()
    config, environment = jax.config or {}, jax.variables
    off = f'jax.config.update("{_PREEMPTION}", False) above the start'
    fix = f"{off}, or save when multihost_utils.reached_preemption_sync_point(step) is true"
    if _PREEMPTION in config:
        if config[_PREEMPTION] is True:
            yield Problem(f"jax.config.{_PREEMPTION}", "it is on, and the script never checks for the notice", fix=fix)
        return
    if variable in environment:
        value = environment[variable]
        if variable in jax.set_after_import:
            yield Problem(f"jax.environment.{variable}", "it is set after `import jax`, which reads it", fix=off)
        elif value is not None and value.lower() not in _OFF:
            yield Problem(
                f"jax.environment.{variable}", "it is on, and the script never checks for the notice", fix=fix
            )
    elif jax.environment_is_known:
        what = f"{_PREEMPTION} is left on, and the script never checks for the notice"
        yield Problem(f"jax.config.{_PREEMPTION}", what, fix=fix)


@rule("JAX008", Severity.WARNING)
def coordinator_through_a_proxy(run: RunSpec) -> Problems:
    """The coordinator must not be reached through a proxy.

    gRPC connects to the coordinator through the proxy, and the start waits for an answer until it times out

    gRPC reads grpc_proxy, https_proxy and http_proxy, and exceptions from no_grpc_proxy or no_proxy, all in lower case.
    An exception is the end of a host name, or a network such as 10.0.0.0/8.

    Source: JAX 0.10.2, jax/_src/distributed.py ("JAX detected proxy variable(s)"); grpc@0638416,
    src/core/handshaker/http_connect/http_proxy_mapper.cc.

    Bad (jax):
        os.environ["https_proxy"] = "http://proxy.example.org:3128"
        jax.distributed.initialize("10.0.0.1:1234", 4, int(os.environ["RANK"]), heartbeat_timeout_seconds=600)
    Bad (jax):
        os.environ.update(https_proxy="http://proxy.example.org:3128", no_proxy="localhost")
        jax.distributed.initialize("10.0.0.1:1234", 4, int(os.environ["RANK"]), heartbeat_timeout_seconds=600)
    Good (jax):
        os.environ.update(https_proxy="http://proxy.example.org:3128", no_proxy="localhost,10.0.0.0/8")
        jax.distributed.initialize("10.0.0.1:1234", 4, int(os.environ["RANK"]), heartbeat_timeout_seconds=600)
    """
    for _, start, jax in starts(run):
        environment = jax.variables
        proxy = next((name for name in PROXIES if name in environment), None)
        around = next((name for name in NO_PROXIES if name in environment), None)
        if proxy is None or environment[proxy] == "" or (around is None and not jax.environment_is_known):
            continue
        host = _host(start.coordinator_address or environment.get(ADDRESS))
        no_proxy = environment[around] if around is not None else ""
        if no_proxy is None or (around is not None and not host) or (host and bypasses_proxy(host, no_proxy)):
            continue
        missing = f"{host} is not in {around}" if around is not None else "there is no no_proxy"
        value = ",".join(part for part in ("localhost,127.0.0.1", host or "HOST_OF_PROCESS_0") if part)
        yield Problem(
            f"jax.environment.{proxy}",
            f"{proxy} is set, and {missing}",
            fix=f'os.environ["no_proxy"] = "{value}" beside it',
        )
        return


_NODE_NUMBERS = frozenset({"SLURM_NODEID", "SKYPILOT_NODE_RANK", "NODE_RANK", "GROUP_RANK", "MACHINE_RANK"})


@rule("JAX010", Severity.WARNING)
def coordinator_on_each_machine(run: RunSpec) -> Problems:
    """The coordinator of several machines needs an address that all of them reach.

    a loopback address is another coordinator on each machine: all wait for each other until they time out

    A process_id from the number of a machine, such as SLURM_NODEID, starts one process on each. Several processes of
    one machine may use loopback.

    Source: JAX 0.10.2, jax/_src/distributed.py; github.com/ROCm/MAD/pull/228.

    Bad (jax):
        jax.distributed.initialize("127.0.0.1:1234", 4, int(os.environ["SLURM_NODEID"]), heartbeat_timeout_seconds=600)
    Bad (jax):
        jax.distributed.initialize("localhost:1234", 2, int(os.environ["NODE_RANK"]), heartbeat_timeout_seconds=600)
    Good (jax):
        jax.distributed.initialize("10.0.0.1:29500", 4, int(os.environ["SLURM_NODEID"]), heartbeat_timeout_seconds=600)
    Good (jax):
        jax.distributed.initialize("127.0.0.1:1234", 4, int(os.environ["RANK"]), heartbeat_timeout_seconds=600)
    """
    for at, start, _ in starts(run):
        host, count = _host(start.coordinator_address), start.num_processes or 0
        if count > 1 and start.numbered_by in _NODE_NUMBERS and _is_loopback(host):
            yield Problem(
                f"{at}.coordinator_address",
                f"{host} is loopback, and {start.numbered_by} numbers {count} machines",
                fix='coordinator_address="HOST_OF_PROCESS_0:1234", for example the first of SLURM_JOB_NODELIST',
            )


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:  # a name
        return host.lower() == "localhost"


def _host(address: str | None) -> str:
    """The host of host:port, as gRPC compares it."""
    return (address or "").rpartition(":")[0].strip("[]")
