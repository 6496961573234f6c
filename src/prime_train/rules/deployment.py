"""GPUs and nodes: who gets which, and whether the layouts of trainer and inference fill them. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator

from prime_train.findings import Problem, Severity
from prime_train.rules.base import rule
from prime_train.rules.sizes import sizes_of
from prime_train.spec import RunSpec

_SHARED_GPU_FRACTION = 0.7  # of a GPU that a trainer lives on too: beyond it the trainer's state has no room


@rule("PAR011", Severity.ERROR)
def more_gpus_than_the_node(run: RunSpec) -> Iterator[Problem]:
    """Trainer and inference must fit on the node together.

    each GPU belongs to one of them: prime-rl refuses a split that asks for more than the node has

    Source: prime-rl's validator "num_train_gpus + num_infer_gpus <= gpus_per_node".

    Bad (prime-rl 2026-08):
        [deployment]
        num_train_gpus = 4
        num_infer_gpus = 6
        [inference.vllm]
        data_parallel_size = 6
    Good (prime-rl 2026-08):
        [deployment]
        num_train_gpus = 2
        num_infer_gpus = 6
        [inference.vllm]
        data_parallel_size = 6
    """
    gpus = run.deployment
    if gpus is None or gpus.gpus_per_node is None or gpus.kind == "multi_node":
        return
    if gpus.train_gpus is None or gpus.infer_gpus is None or (run.finetune is not None and run.inference is None):
        return  # a fine-tuning launches no server unless its file has one
    asked = gpus.train_gpus + gpus.infer_gpus
    if asked > gpus.gpus_per_node:
        left = gpus.gpus_per_node - gpus.infer_gpus
        yield Problem(
            "deployment.train_gpus",
            f"{gpus.train_gpus} + `deployment.infer_gpus` {gpus.infer_gpus} = {asked} GPUs, and "
            f"`deployment.gpus_per_node` is {gpus.gpus_per_node}",
            fix="" if left > 0 else "lower one of the two",
            patch={"deployment.train_gpus": left} if left > 0 else {},
        )


@rule("PAR003", Severity.ERROR)
def tensor_parallel_does_not_divide(run: RunSpec) -> Iterator[Problem]:
    """The inference GPUs must divide by the tensor-parallel size.

    each replica of the server takes that many GPUs, and none can take a part of them

    Source: prime-rl's validator on inference parallelism; vLLM's tensor_parallel_size.

    Bad (prime-rl 2026-08):
        [deployment]
        num_infer_gpus = 3
        [inference.vllm]
        tensor_parallel_size = 2
        data_parallel_size = 1
    Good (prime-rl 2026-08):
        [deployment]
        num_infer_gpus = 4
        [inference.vllm]
        tensor_parallel_size = 2
        data_parallel_size = 2
    """
    gpus, inference = run.deployment, run.inference
    if gpus is None or inference is None or gpus.kind == "multi_node":
        return
    width = inference.tensor_parallel
    if not gpus.infer_gpus or not width or gpus.infer_gpus % width == 0:
        return
    yield Problem(
        "inference.tensor_parallel",
        f"`deployment.infer_gpus` {gpus.infer_gpus} do not divide by {width}",
        patch={"inference.tensor_parallel": math.gcd(gpus.infer_gpus, width)},
    )


@rule("PAR004", Severity.ERROR)
def trainer_layout_does_not_fill(run: RunSpec) -> Iterator[Problem]:
    """The trainer's GPUs must divide by its replicas, context and tensor parallelism.

    what remains is the number of shards, and it must be a whole number: the mesh cannot be built otherwise

    Source: torchtitan's ParallelDims, which prime-rl's trainer uses.

    Bad (prime-rl 2026-08):
        [deployment]
        num_train_gpus = 3
        [trainer.model]
        cp = 2
    Bad (prime-rl 2026-08):
        [trainer.model]
        dp_replicate = 4
    Good (prime-rl 2026-08):
        [deployment]
        num_train_gpus = 4
        [trainer.model]
        dp_replicate = 2
        cp = 2
    """
    trainer, gpus = run.trainer, _train_gpus(run)
    if trainer is None or gpus is None:
        return
    degrees = {
        "trainer.dp_replicate": trainer.dp_replicate,
        "trainer.context_parallel": trainer.context_parallel,
        "trainer.tensor_parallel": trainer.tensor_parallel,
    }
    used = {name: degree for name, degree in degrees.items() if degree is not None and degree > 1}
    product = math.prod(used.values())
    if used and gpus % product:
        shown = " x ".join(f"`{name}` {degree}" for name, degree in used.items())
        yield Problem(
            max(used, key=lambda name: used[name]),
            f"{gpus} training GPUs do not divide by {shown}{f' = {product}' if len(used) > 1 else ''}",
            fix=f"train on a multiple of {product} GPUs, or lower a degree",
        )


@rule("PAR005", Severity.ERROR)
def experts_do_not_spread(run: RunSpec) -> Iterator[Problem]:
    """The expert-parallel degree must divide the GPUs of one replica, and the experts.

    experts are spread over the ranks of a replica, as many on each as on every other

    Source: torchtitan's ParallelDims, which prime-rl's trainer uses; num_experts in config.json.

    Bad (prime-rl 2026-08):
        [deployment]
        num_train_gpus = 4
        [trainer.model]
        name = "Qwen/Qwen3-30B-A3B"
        ep = 8
        [model]
        name = "Qwen/Qwen3-30B-A3B"
    Good (prime-rl 2026-08):
        [deployment]
        num_train_gpus = 4
        [trainer.model]
        ep = 4
        [model]
        name = "Qwen/Qwen3-30B-A3B"
    """
    trainer, gpus = run.trainer, _train_gpus(run)
    if trainer is None or trainer.expert_parallel is None or trainer.expert_parallel < 2:
        return
    degree = trainer.expert_parallel
    replica = None if gpus is None else gpus // (trainer.dp_replicate or 1)
    if replica is not None and replica % degree:
        yield Problem(
            "trainer.expert_parallel",
            f"{replica} GPUs of a replica do not divide by {degree}",
            patch={"trainer.expert_parallel": math.gcd(replica, degree)},
        )
        return
    sizes = sizes_of(trainer.model_name)
    if sizes is not None and sizes.experts and sizes.experts % degree:
        yield Problem(
            "trainer.expert_parallel",
            f"{sizes.experts} experts of {sizes.name} do not divide by {degree}",
            patch={"trainer.expert_parallel": math.gcd(sizes.experts, degree)},
        )


@rule("PAR006", Severity.ERROR)
def heads_do_not_spread(run: RunSpec) -> Iterator[Problem]:
    """The tensor-parallel size must divide the model's heads, and its key and value heads or the other way round.

    every GPU takes whole heads; key and value heads may be copied, but not cut

    A model that is not in the registry is not judged.

    Source: vLLM's "Total number of attention heads must be divisible by tensor parallel size"; config.json.

    Bad (prime-rl 2026-08):
        [deployment]
        num_infer_gpus = 6
        [inference.vllm]
        tensor_parallel_size = 6
        data_parallel_size = 1
    Good (prime-rl 2026-08):
        [deployment]
        num_infer_gpus = 4
        [inference.vllm]
        tensor_parallel_size = 4
        data_parallel_size = 1
    """
    inference = run.inference
    if inference is None or inference.tensor_parallel is None or inference.tensor_parallel < 2:
        return
    width, sizes = inference.tensor_parallel, sizes_of(inference.model_name)
    if sizes is None:
        return
    if sizes.heads % width or max(sizes.kv_heads, width) % min(sizes.kv_heads, width):
        yield Problem(
            "inference.tensor_parallel",
            f"{width} GPUs for the {sizes.heads} heads and {sizes.kv_heads} key and value heads of {sizes.name}",
            patch={"inference.tensor_parallel": math.gcd(sizes.heads, math.gcd(sizes.kv_heads, width))},
        )


@rule("PAR007", Severity.WARNING)
def gpus_shared(run: RunSpec) -> Iterator[Problem]:
    """A GPU that trainer and inference share needs room for both.

    vLLM takes its fraction of the whole GPU at the start, whatever the trainer needs afterwards

    Source: vLLM, gpu_memory_utilization; prime-rl 2026-01, trainer_gpu_ids and inference_gpu_ids.

    Bad (prime-rl 2026-01):
        trainer_gpu_ids = [0]
        inference_gpu_ids = [0]
        [inference.parallel]
        dp = 1
    Good (prime-rl 2026-01):
        trainer_gpu_ids = [0]
        inference_gpu_ids = [0]
        [inference]
        gpu_memory_utilization = 0.5
        [inference.parallel]
        dp = 1
    """
    gpus, inference = run.deployment, run.inference
    if gpus is None or inference is None or gpus.train_gpu_ids is None or gpus.infer_gpu_ids is None:
        return
    shared = sorted(set(gpus.train_gpu_ids) & set(gpus.infer_gpu_ids))
    fraction = inference.gpu_memory_fraction
    if shared and fraction is not None and fraction > _SHARED_GPU_FRACTION:
        yield Problem(
            "inference.gpu_memory_fraction",
            f"GPU {', '.join(map(str, shared))} is the trainer's too, and vLLM takes {fraction:.0%} of it",
            patch={"inference.gpu_memory_fraction": 0.5},
        )


@rule("PAR008", Severity.ERROR)
def nodes_without_a_scheduler(run: RunSpec) -> Iterator[Problem]:
    """Several nodes need a [slurm] section.

    prime-rl starts processes on other nodes through SLURM only, and refuses without it

    Source: prime-rl's validator on deployment.type = "multi_node".

    Bad (prime-rl 2026-08):
        [deployment]
        num_train_gpus = "-"
        num_infer_gpus = "-"
        type = "multi_node"
        num_train_nodes = 2
        num_infer_nodes = 1
    Good (prime-rl 2026-08):
        [slurm]
        job_name = "example"
        [deployment]
        num_train_gpus = "-"
        num_infer_gpus = "-"
        type = "multi_node"
        num_train_nodes = 2
        num_infer_nodes = 1
    """
    if run.deployment is None or run.deployment.kind != "multi_node" or run.launch is None:
        return
    if run.launch.slurm is False:
        yield Problem(
            "deployment.kind",
            "several nodes, and no [slurm]",
            fix='add [slurm], or take `deployment.kind` = "single_node"',
        )


@rule("PAR009", Severity.ERROR)
def fsdp_group_does_not_divide(run: RunSpec) -> Iterator[Problem]:
    """nodes_per_fsdp_group must divide the training nodes.

    each group holds one sharded copy of the model, and every node is in one

    Source: prime-rl's validator on nodes_per_fsdp_group.

    Bad (prime-rl 2026-08):
        [slurm]
        job_name = "example"
        [deployment]
        num_train_gpus = "-"
        num_infer_gpus = "-"
        type = "multi_node"
        num_train_nodes = 4
        num_infer_nodes = 1
        nodes_per_fsdp_group = 3
    Good (prime-rl 2026-08):
        [slurm]
        job_name = "example"
        [deployment]
        num_train_gpus = "-"
        num_infer_gpus = "-"
        type = "multi_node"
        num_train_nodes = 4
        num_infer_nodes = 1
        nodes_per_fsdp_group = 2
    """
    gpus = run.deployment
    if gpus is None or not gpus.nodes_per_fsdp_group or not gpus.train_nodes:
        return
    if gpus.train_nodes % gpus.nodes_per_fsdp_group:
        yield Problem(
            "deployment.nodes_per_fsdp_group",
            f"`deployment.train_nodes` {gpus.train_nodes} do not divide by {gpus.nodes_per_fsdp_group}",
            patch={"deployment.nodes_per_fsdp_group": math.gcd(gpus.train_nodes, gpus.nodes_per_fsdp_group)},
        )


@rule("PAR010", Severity.ERROR)
def context_parallel_without_flash(run: RunSpec) -> Iterator[Problem]:
    """Context parallelism needs flash attention.

    the ring and the all-to-all are built on its kernels: prime-rl refuses another

    Source: prime-rl's trainer validator on model.cp.

    Bad (prime-rl 2026-05):
        [trainer.model]
        cp = 2
        attn = "sdpa"
    Good (prime-rl 2026-08):
        [trainer.model]
        cp = 2
        attn = "flash_attention_2"
    """
    trainer = run.trainer
    if trainer is None or (trainer.context_parallel or 1) < 2:
        return
    if trainer.attention in ("sdpa", "eager"):
        yield Problem(
            "trainer.attention",
            f'"{trainer.attention}", and `trainer.context_parallel` is {trainer.context_parallel}',
            patch={"trainer.attention": "flash_attention_2"},
        )


def _train_gpus(run: RunSpec) -> int | None:
    """GPUs of the trainer over all nodes; None where the file does not say."""
    gpus = run.deployment
    if gpus is None:
        return None
    if gpus.kind == "multi_node":
        if gpus.train_nodes is None or gpus.gpus_per_node is None:
            return None
        return gpus.train_nodes * gpus.gpus_per_node
    return gpus.train_gpus or None
