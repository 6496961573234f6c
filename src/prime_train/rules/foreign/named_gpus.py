"""A training and the machine that its own file names: whether it fits, by the estimate. Judges literal numbers only."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from prime_train.config.foreign.values import ForeignPart
from prime_train.config.parsed_config import Fault, Reading
from prime_train.core.errors import UserError
from prime_train.core.findings import Severity
from prime_train.core.units import GIB
from prime_train.registry.gpus import GpuPeak, gpu_peaks
from prime_train.rules.rule import file_rule
from prime_train.toml.document import value_at

# What computes an estimate is imported inside functions, because few files name their GPUs.

_SURELY = 0.05  # below it the lower bound of the estimate exceeds the GPU too
_MEMORY = re.compile(r"(\d{1,9})([KMGT]?)B?", re.IGNORECASE)
_UNITS = {"K": 2**10, "": 2**20, "M": 2**20, "G": 2**30, "T": 2**40}  # sbatch(1), --mem: megabytes without a letter


class NamedGpus(NamedTuple):
    """GPUs that a file names, and the part and key that name them. `gpu`: the largest one that the name can mean."""

    gpu: GpuPeak
    number: int
    part: ForeignPart
    key: tuple[str, ...]


@file_rule("FIT001", Severity.WARNING)
def training_beyond_the_named_gpus(reading: Reading) -> Iterator[Fault]:
    """A training fits on the GPUs that its own file asks for.

    it ends out of memory in its first steps, after the machine was waited and paid for

    Judged are the GPUs of a SkyPilot task or a Slurm job, a model of the registry, and values that the file has. A name
    that several GPUs have means the largest. The lower bound of the estimate must exceed them.

    Source: estimate/, compared with measured runs: docs/estimate.md; torchtitan#620.

    Bad:
        # file skypilot.yaml
        resources: {accelerators: L4:2}
        run: |
          torchrun --nproc_per_node 2 -m torchtitan.train --module llama3 --config llama3_8b --checkpoint.enable
    Good:
        # file skypilot.yaml
        resources: {accelerators: H100:8}
        run: |
          torchrun --nproc_per_node 8 -m torchtitan.train --module llama3 --config llama3_8b --checkpoint.enable
    """
    named = _named_gpus(reading.foreign or ())
    need_gib = None if named is None else _need_beyond(reading, named)
    if named is not None and need_gib is not None:
        what = f"a GPU needs about {need_gib:.0f} GiB, and {named.number} x {named.gpu.name} have less"
        fix = f"prime-train estimate {reading.document.path} --gpus {named.number}x{named.gpu.id} shows what to change"
        yield Fault("FIT001", (*named.part.at, *named.key), what, fix, document=named.part.document)


def _need_beyond(reading: Reading, named: NamedGpus) -> float | None:
    """The typical GiB of a GPU if the training surely does not fit; None if it may, or is not known."""
    from prime_train.config.foreign.recipe.draft import to_recipe
    from prime_train.estimate.estimate import estimate
    from prime_train.estimate.hardware import hardware_from_entry
    from prime_train.estimate.model.shape import shape_from_registry
    from prime_train.estimate.open_fields import explain

    draft = to_recipe(reading.foreign or (), named.number)
    shape = None if draft is None else shape_from_registry(draft.recipe.model_name or "")
    if draft is None or shape is None or draft.undecided:
        return None
    try:
        found = estimate(draft.run, hardware_from_entry(named.gpu, named.number), shape)
    except (UserError, ArithmeticError):
        return None
    found = explain(found, draft, draft.run)
    if not found.is_refused or found.chance.probability > _SURELY:
        return None
    return max(role.memory.reserved.typical for role in found.memory.roles) / GIB


def _named_gpus(parts: tuple[ForeignPart, ...]) -> NamedGpus | None:
    for part in parts:
        key: tuple[str, ...] = ()
        if part.format == "skypilot":
            key, nodes = ("resources", "accelerators"), part.values.get("num_nodes", 1)
        elif part.format == "sbatch":
            key, nodes = ("gpus_per_node" if "gpus_per_node" in part.values else "gres",), part.values.get("nodes", 1)
        if not key:
            continue
        text = value_at(part.values, key)
        found = _asked(text.removeprefix("gpu:")) if isinstance(text, str) else None
        if found is not None and type(nodes) is int and nodes > 0:
            return NamedGpus(found[0], found[1] * nodes, part, key)
    return None


def _asked(text: str) -> tuple[GpuPeak, int] | None:
    """The GPU and the number in "H100:8" or "h100"; None for any other text, or a name that no GPU has."""
    asked = re.fullmatch(r"([A-Za-z][\w-]*)(?::(\d{1,4}))?", text)
    if asked is None:
        return None
    name = asked[1].lower().replace("_", "-").replace("gb", "")
    meant = [gpu for gpu in gpu_peaks() if re.fullmatch(rf"{re.escape(name)}(-\w+)*", gpu.id.replace("gb", ""))]
    count = int(asked[2] or 1)
    return (max(meant, key=lambda gpu: gpu.memory_gb), count) if meant and count else None


@file_rule("FIT002", Severity.WARNING)
def sleeping_engines_beyond_the_memory(reading: Reading) -> Iterator[Fault]:
    """Engines that sleep keep their weights in the memory of the host, which the job must ask for.

    vLLM moves the weights of each engine to the host, and the job is killed when it has no more memory

    Judged is a Slurm job with --mem and a model of the registry. Each engine keeps 2 bytes for each parameter.

    Source: vLLM, sleep mode level 1; OpenRLHF#1013; sbatch(1), --mem.

    Bad:
        # file job.sh
        #!/bin/bash
        #SBATCH --nodes=1
        #SBATCH --gpus-per-node=8
        #SBATCH --mem=64G
        ray job submit -- python3 -m openrlhf.cli.train_ppo_ray --pretrain meta-llama/Meta-Llama-3-8B \\
            --actor_num_nodes 1 --actor_num_gpus_per_node 8 --vllm_num_engines 8 --vllm_tensor_parallel_size 1 \\
            --colocate_all_models --vllm_enable_sleep --deepspeed_enable_sleep --vllm_gpu_memory_utilization 0.6 \\
            --zero_stage 3 --prompt_data d --save_path out --save_steps 20 --load_checkpoint
    Good:
        # file job.sh
        #!/bin/bash
        #SBATCH --nodes=1
        #SBATCH --gpus-per-node=8
        #SBATCH --mem=512G
        ray job submit -- python3 -m openrlhf.cli.train_ppo_ray --pretrain meta-llama/Meta-Llama-3-8B \\
            --actor_num_nodes 1 --actor_num_gpus_per_node 8 --vllm_num_engines 8 --vllm_tensor_parallel_size 1 \\
            --colocate_all_models --vllm_enable_sleep --deepspeed_enable_sleep --vllm_gpu_memory_utilization 0.6 \\
            --zero_stage 3 --prompt_data d --save_path out --save_steps 20 --load_checkpoint
    """
    parts = reading.foreign or ()
    job = next((part for part in parts if part.format == "sbatch"), None)
    memory = None if job is None else _memory_bytes(job.values.get("mem"))
    nodes = 1 if job is None else job.values.get("nodes", 1)
    for part in parts if job is not None and memory and type(nodes) is int and nodes > 0 else ():
        kept = _kept_bytes(part) if part.format == "openrlhf" else 0.0
        if job is not None and memory is not None and kept / nodes > memory:
            what = (
                f"sleeping engines keep {kept / nodes / GIB:.0f} GiB on a node, and the job asks for {memory / GIB:.0f}"
            )
            fix = f"#SBATCH --mem={2 * kept / nodes / GIB:.0f}G, or fewer engines"
            yield Fault("FIT002", (*job.at, "mem"), what, fix, document=job.document)


def _memory_bytes(value: object) -> float | None:
    found = _MEMORY.fullmatch(str(value))
    return None if found is None else float(found[1]) * _UNITS[found[2].upper()]


def _kept_bytes(part: ForeignPart) -> float:
    """Bytes that the sleeping engines of all nodes keep on the host; 0 if that is not known."""
    from prime_train.config.foreign.model_sizes import sizes_of
    from prime_train.config.foreign.recipe.fields import read_fields
    from prime_train.config.foreign.values import Open

    fields = read_fields("openrlhf", part.values)
    engines, sleeps = (fields[name].value if name in fields else None for name in ("engines", "engine_sleeps"))
    parameters = sizes_of(part).get("parameters")
    if not engines or isinstance(engines, Open) or str(sleeps).lower() != "true" or not parameters:
        return 0.0
    return 2.0 * float(parameters) * int(engines)
