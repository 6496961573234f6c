"""Environment variables that a file sets for the processes of a run. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from prime_train.core.findings import Problem, Severity
from prime_train.rules.machine.grpc_proxy import NO_PROXIES, PROXIES, bypasses_proxy
from prime_train.rules.rule import Problems, rule, suggest
from prime_train.spec import RunSpec
from prime_train.spec.answers import prime_rl_of

_SET_BY_LAUNCHER = (
    *("CUDA_VISIBLE_DEVICES", "PRL_RUN_ID", "PRL_RUN_NAME", "WANDB_RUN_ID"),
    *("WANDB_SHARED_MODE", "WANDB_SHARED_LABEL", "WANDB_SHARED_PRIMARY", "WANDB_SHARED_FINISHER"),
)
_PROXIES = ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY")
_NO_PROXY = ("no_proxy", "NO_PROXY")
_JAX_COORDINATOR = "JAX_COORDINATOR_ADDRESS"
_JAX_PREEMPTION = "JAX_ENABLE_PREEMPTION_SERVICE"
_JAX_COUNTS = ("JAX_NUM_PROCESSES", "JAX_PROCESS_COUNT")  # names that programs use; JAX itself reads neither
_PARTS = ("env_vars", "trainer_env_vars", "orchestrator_env_vars", "inference_env_vars")


@rule("VAR001", Severity.ERROR)
def variable_overridden(run: RunSpec) -> Problems:
    """Variables that prime-rl sets itself do not belong in a file.

    the launcher sets the variables of its GPUs and of the shared W&B run last, and prime-rl refuses them in a file

    Source: prime-rl 559b447, configs/shared.py, PROTECTED_ENV_VARS.

    Bad (prime-rl 2026-08):
        [env_vars]
        CUDA_VISIBLE_DEVICES = "0,1"
    Good (prime-rl 2026-08):
        [env_vars]
        NCCL_DEBUG = "WARN"
    """
    for at, name, value in _variables(run):
        if name in _SET_BY_LAUNCHER:
            yield suggest(
                at,
                f"{name} = {value}, which the launcher sets itself",
                None,
                fix=f"take it out, and export {name} before the launch",
                safe=True,
            )


@rule("VAR002", Severity.WARNING)
def proxy_before_local_services(run: RunSpec) -> Problems:
    """A proxy needs no_proxy for the services of the run itself.

    the orchestrator calls inference on localhost: through the proxy it reaches another machine, or none

    Source: curl and Python's urllib, http_proxy and no_proxy.

    Bad (prime-rl 2026-08):
        [env_vars]
        http_proxy = "http://proxy.example.org:3128"
    Good (prime-rl 2026-08):
        [env_vars]
        http_proxy = "http://proxy.example.org:3128"
        no_proxy = "localhost,127.0.0.1"
    """
    variables = list(_variables(run))
    if any(name in _NO_PROXY for _, name, _ in variables):
        return
    for at, name, _ in variables:
        if name in _PROXIES:
            yield Problem(at, f"{name} without no_proxy", fix='no_proxy = "localhost,127.0.0.1" beside it')


@rule("VAR003", Severity.WARNING)
def every_kernel_waited_for(run: RunSpec) -> Problems:
    """CUDA_LAUNCH_BLOCKING is for finding a fault, not for training.

    the host waits for every kernel: nothing overlaps, and a step takes several times as long

    Source: NVIDIA, CUDA C++ programming guide, environment variables.

    Bad (prime-rl 2026-08):
        [trainer.env_vars]
        CUDA_LAUNCH_BLOCKING = "1"
    Good (prime-rl 2026-08):
        [trainer.env_vars]
        CUDA_LAUNCH_BLOCKING = "0"
    """
    for at, name, value in _variables(run):
        if name == "CUDA_LAUNCH_BLOCKING" and value not in ("", "0"):
            yield suggest(at, f"{name} = {value}", None, fix="take it out")


@rule("VAR004", Severity.WARNING)
def segments_expand_in_inference(run: RunSpec) -> Problems:
    """Inference should not use expandable segments.

    vLLM maps its memory itself when weights are exchanged, so prime-rl turns expandable segments off there

    Source: prime-rl's launcher (expandable_segments:True for the trainer, False for inference).

    Bad (prime-rl 2026-08):
        [inference.env_vars]
        PYTORCH_CUDA_ALLOC_CONF = "expandable_segments:True"
    Good (prime-rl 2026-08):
        [trainer.env_vars]
        PYTORCH_CUDA_ALLOC_CONF = "expandable_segments:True"
    """
    for at, name, value in _variables(run):
        expands = name == "PYTORCH_CUDA_ALLOC_CONF" and "expandable_segments:true" in value.lower()
        if expands and at.startswith("launch.inference_env_vars"):
            yield suggest(at, f"{name} = {value}", None, fix="take it out")


@rule("VAR005", Severity.WARNING)
def jax_without_a_coordinator(run: RunSpec) -> Problems:
    """A JAX program of several processes needs JAX_COORDINATOR_ADDRESS.

    without a cluster manager, jax.distributed.initialize ends with "coordinator_address should be defined"

    Under SLURM, Open MPI and on Cloud TPUs JAX finds the address itself. It is host:port of process 0; localhost works
    on one machine only.

    Source: JAX 0.10.2, jax/_src/distributed.py; docs.jax.dev, jax.distributed.initialize.

    Bad (prime-rl 2026-08):
        [env_vars]
        JAX_NUM_PROCESSES = "4"
    Bad (prime-rl 2026-08):
        [env_vars]
        JAX_PROCESS_COUNT = "2"
        JAX_COORDINATOR_ADDRESS = "10.0.0.1"
    Good (prime-rl 2026-08):
        [env_vars]
        JAX_NUM_PROCESSES = "4"
        JAX_COORDINATOR_ADDRESS = "10.0.0.1:1234"
        JAX_ENABLE_PREEMPTION_SERVICE = "false"
    """
    if run.prime_rl is None or prime_rl_of(run).launch.slurm:
        return
    for variables in _by_process(run):
        several = next((name for name in _JAX_COUNTS if _count(variables.get(name)) > 1), None)
        address = variables.get(_JAX_COORDINATOR)
        if address is not None and ":" not in address.value:
            what = f"{_JAX_COORDINATOR} = {address.value} has no port"
            yield Problem(address.at, what, fix=f'{_JAX_COORDINATOR} = "{address.value}:1234", any free port')
        elif several is not None and address is None:
            what = f"{several} = {variables[several].value}, and no {_JAX_COORDINATOR}"
            yield Problem(variables[several].at, what, fix=f'{_JAX_COORDINATOR} = "HOST_OF_PROCESS_0:1234" beside it')


@rule("VAR006", Severity.NOTE)
def jax_takes_sigterm(run: RunSpec) -> Problems:
    """JAX's preemption service takes SIGTERM for itself.

    SIGTERM then only sets a notice: a program that does not check for it trains on until it is killed, and never saves

    A program that polls multihost_utils.reached_preemption_sync_point and saves there needs the service.

    Source: JAX 0.10.2, jax/_src/distributed.py (jax_enable_preemption_service, on by default).

    Bad (prime-rl 2026-08):
        [env_vars]
        JAX_COORDINATOR_ADDRESS = "10.0.0.1:1234"
    Good (prime-rl 2026-08):
        [env_vars]
        JAX_COORDINATOR_ADDRESS = "10.0.0.1:1234"
        JAX_ENABLE_PREEMPTION_SERVICE = "false"
    """
    for variables in _by_process(run):
        address = variables.get(_JAX_COORDINATOR)
        if address is not None and ":" in address.value and _JAX_PREEMPTION not in variables:
            yield Problem(
                address.at,
                f"the program starts jax.distributed, and {_JAX_PREEMPTION} is not set",
                fix=f'{_JAX_PREEMPTION} = "false", or "true" if the program checks for the notice and saves',
            )


@rule("VAR007", Severity.WARNING)
def jax_through_a_proxy(run: RunSpec) -> Problems:
    """The coordinator of a JAX program must not be reached through a proxy.

    jax.distributed.initialize waits for a port that it cannot reach through the proxy, until it times out

    Source: JAX 0.10.2, jax/_src/distributed.py ("JAX detected proxy variable(s)"); grpc@0638416,
    src/core/handshaker/http_connect/http_proxy_mapper.cc (lower case only; name endings and networks).

    Bad (prime-rl 2026-08):
        [env_vars]
        https_proxy = "http://proxy.example.org:3128"
        JAX_COORDINATOR_ADDRESS = "10.0.0.1:1234"
        JAX_ENABLE_PREEMPTION_SERVICE = "false"
    Good (prime-rl 2026-08):
        [env_vars]
        https_proxy = "http://proxy.example.org:3128"
        no_proxy = "localhost,10.0.0.1"
        JAX_COORDINATOR_ADDRESS = "10.0.0.1:1234"
        JAX_ENABLE_PREEMPTION_SERVICE = "false"
    """
    for variables in _by_process(run):
        address = variables.get(_JAX_COORDINATOR)
        if address is None:
            continue
        proxy = next((name for name in PROXIES if name in variables), None)
        around = next((name for name in NO_PROXIES if name in variables), None)
        host = (address.value.rpartition(":")[0] or address.value).strip("[]")
        no_proxy = variables[around].value if around is not None else ""
        if proxy is not None and variables[proxy].value and not bypasses_proxy(host, no_proxy):
            yield Problem(
                variables[proxy].at,
                f"{proxy}, and the coordinator {host} is not in {around or 'no_proxy'}",
                fix=f'no_proxy = "localhost,127.0.0.1,{host}" beside it',
            )


class _Variable(NamedTuple):
    """A variable: the RunSpec field that sets it, and its value."""

    at: str
    value: str


def _by_process(run: RunSpec) -> Iterator[dict[str, _Variable]]:
    """The variables of each process that has its own in the file; the shared ones if no process has."""
    shared = _variables_of(run, "env_vars")
    own = [_variables_of(run, part) for part in _PARTS[1:]]
    yield from ({**shared, **part} for part in own if part)
    if shared and not any(own):
        yield shared


def _variables_of(run: RunSpec, part: str) -> dict[str, _Variable]:
    given = getattr(prime_rl_of(run).launch, part, None) or {}
    return {name: _Variable(f"launch.{part}.{name}", str(value)) for name, value in given.items()}


def _count(variable: _Variable | None) -> int:
    return int(variable.value) if variable is not None and variable.value.isdecimal() else 0


def _variables(run: RunSpec) -> Iterator[tuple[str, str, str]]:
    """(RunSpec field, variable, value) of every variable the file sets."""
    for part in _PARTS:
        yield from ((variable.at, name, variable.value) for name, variable in _variables_of(run, part).items())
