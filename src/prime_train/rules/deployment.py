"""How GPUs and nodes are divided between trainer and inference. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator

from prime_train.findings import Problem, Severity
from prime_train.rules.base import rule
from prime_train.spec import RunSpec

SHARED_GPU_FRACTION = 0.7  # the most that vLLM may take of a GPU that it shares, so that the trainer's state has room


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
    requested = gpus.train_gpus + gpus.infer_gpus
    if requested > gpus.gpus_per_node:
        left = gpus.gpus_per_node - gpus.infer_gpus
        yield Problem(
            "deployment.train_gpus",
            f"{gpus.train_gpus} + `deployment.infer_gpus` {gpus.infer_gpus} = {requested} GPUs, and "
            f"`deployment.gpus_per_node` is {gpus.gpus_per_node}",
            fix="" if left > 0 else "lower one of the two",
            patch={"deployment.train_gpus": left} if left > 0 else {},
        )


@rule("PAR003", Severity.ERROR)
def tensor_parallel_does_not_divide(run: RunSpec) -> Iterator[Problem]:
    """The inference GPUs must divide by the tensor-parallel size.

    each replica of the server needs that many GPUs

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


@rule("PAR007", Severity.WARNING)
def gpus_shared(run: RunSpec) -> Iterator[Problem]:
    """A GPU that trainer and inference share needs room for both.

    vLLM takes its fraction of the whole GPU at the start, and the trainer has only the rest

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
    if shared and fraction is not None and fraction > SHARED_GPU_FRACTION:
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

    each group holds one sharded copy of the model, and every node belongs to one group

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
