"""How processes, GPUs and nodes are divided, and whether there are enough. Pure: the facts are given."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from prime_train.core.findings import Problem, Severity
from prime_train.rules.rule import Problems, facts_rule, if_known, known, rule, suggest, unused, values_of
from prime_train.spec import RunSpec
from prime_train.spec.answers import prime_rl_of

if TYPE_CHECKING:
    from prime_train.facts.facts import Facts

SHARED_GPU_FRACTION = 0.7  # the most that vLLM may take of a GPU that it shares, so that the trainer's state has room


@rule("PAR001", Severity.ERROR)
def layout_does_not_fill_processes(run: RunSpec) -> Problems:
    """dp_replicate x dp_shard must be the number of processes, or of those of one of parallel.replicas.

    every process has one place in the mesh: the launch fails when some have none

    Source: torch.distributed, init_device_mesh (the product of a mesh's sizes is the world size).

    Bad:
        [parallel]
        processes = 4
        dp_replicate = 1
        dp_shard = 2
    Bad:
        [parallel]
        processes = 4
        dp_shard = 3
    Good:
        [parallel]
        processes = 4
        dp_replicate = 2
        dp_shard = 2
    """
    layout = run.parallel
    groups, in_group = max(1, layout.replicas), layout.group_processes
    named = "`parallel.processes`" if groups == 1 else f"`parallel.processes` / {groups} replicas:"
    if layout.dp_replicate is not None:
        product = layout.dp_replicate * layout.dp_shard
        if product != in_group:
            yield suggest(
                "parallel.processes",
                f"`parallel.dp_replicate` {layout.dp_replicate} x `parallel.dp_shard` {layout.dp_shard} = {product}, "
                f"not {in_group}",
                product * groups,
            )
    elif in_group % layout.dp_shard:
        yield suggest(
            "parallel.dp_shard",
            f"{named} {in_group} do not divide by {layout.dp_shard}",
            math.gcd(in_group, layout.dp_shard),
        )


@facts_rule("PAR002", Severity.ERROR, needs=("gpus",), uses=("cpu",))
def more_processes_than_devices(run: RunSpec, facts: Facts) -> Problems:
    """There must be a GPU for every process; without GPUs there should be a core.

    a rank without a GPU of its own ends the launch

    On a machine without GPUs, more processes than cores is a warning: they take turns.

    Source: trainer/device.py (one GPU per rank).

    Bad:
        [parallel]
        processes = 16
    Bad:
        [parallel]
        processes = 16
        [facts.gpus]
        devices = [{name = "NVIDIA H200"}]
    Good:
        [parallel]
        processes = 2
    """
    processes, gpus = run.parallel.processes_here, len(known(facts.gpus).devices)
    cpu = if_known(facts, "cpu")  # of another machine only its GPUs are known
    cores = cpu.cores if cpu is not None else processes
    if processes <= (gpus or cores):
        return
    plain = (
        run.parallel.machines == run.parallel.dp_shard == 1
        and run.parallel.dp_replicate is None
        and run.batch.global_batch is None
    )
    patch = {"parallel.processes": gpus or cores} if plain and run.batch.global_batch_tokens is None else {}
    if gpus:
        what = f"{processes} processes, and {gpus} GPU{'s are' if gpus > 1 else ' is'} visible"
        yield Problem("parallel.processes", what, "`parallel.processes` <= GPUs" if not patch else "", patch)
    else:
        yield Problem(
            "parallel.processes",
            f"{processes} processes share {cores} core{'s' if cores > 1 else ''}, and no GPU is visible",
            "`parallel.processes` <= cores" if not patch else "",
            patch,
            why="they take turns: more processes are no faster, and each holds its own memory",
            severity=Severity.WARNING,
        )


@rule("PAR011", Severity.ERROR)
def more_gpus_than_the_node(run: RunSpec) -> Problems:
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
    parts = prime_rl_of(run)
    gpus = parts.deployment
    if gpus is None or gpus.gpus_per_node is None or gpus.kind == "multi_node":
        return
    if gpus.train_gpus is None or gpus.infer_gpus is None or (parts.finetune is not None and run.inference is None):
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
def tensor_parallel_does_not_divide(run: RunSpec) -> Problems:
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
    gpus, inference = prime_rl_of(run).deployment, run.inference
    if gpus is None or inference is None or gpus.kind == "multi_node":
        return
    width = inference.tensor_parallel
    if not gpus.infer_gpus or not width or gpus.infer_gpus % width == 0:
        return
    yield suggest(
        "inference.tensor_parallel",
        f"`deployment.infer_gpus` {gpus.infer_gpus} do not divide by {width}",
        math.gcd(gpus.infer_gpus, width),
    )


@rule("PAR007", Severity.WARNING)
def gpus_shared(run: RunSpec) -> Problems:
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
    gpus, inference = prime_rl_of(run).deployment, run.inference
    if gpus is None or inference is None or gpus.train_gpu_ids is None or gpus.infer_gpu_ids is None:
        return
    shared = sorted(set(gpus.train_gpu_ids) & set(gpus.infer_gpu_ids))
    fraction = inference.gpu_memory_fraction
    if shared and fraction is not None and fraction > SHARED_GPU_FRACTION:
        yield suggest(
            "inference.gpu_memory_fraction",
            f"GPU {', '.join(map(str, shared))} is the trainer's too, and vLLM takes {fraction:.0%} of it",
            0.5,
        )


@rule("PAR008", Severity.ERROR)
def nodes_without_a_scheduler(run: RunSpec) -> Problems:
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
    parts = prime_rl_of(run)
    if parts.deployment is None or parts.deployment.kind != "multi_node":
        return
    if parts.launch.slurm is False:
        yield Problem(
            "deployment.kind",
            "several nodes, and no [slurm]",
            fix='add [slurm], or take `deployment.kind` = "single_node"',
        )


@rule("PAR009", Severity.ERROR)
def fsdp_group_does_not_divide(run: RunSpec) -> Problems:
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
    nodes, group = values_of(run, "deployment.train_nodes", "deployment.nodes_per_fsdp_group") or (0, 0)
    if group and nodes % group:
        what = f"`deployment.train_nodes` {nodes} do not divide by {group}"
        yield suggest("deployment.nodes_per_fsdp_group", what, math.gcd(nodes, group))


@rule("PAR014", Severity.WARNING)
def sharding_settings_without_shards(run: RunSpec) -> Problems:
    """reduce and reshard have an effect only with dp_shard above 1, collective_limit_s only with several processes.

    DDP sums gradients once a step and gathers no weights; one process waits for no other

    Source: trainer/parallel.py.

    Bad:
        [parallel]
        reduce = "last"
    Bad:
        [parallel]
        processes = 2
        reshard = false
    Bad:
        [parallel]
        collective_limit_s = 60.0
    Good:
        [parallel]
        processes = 2
        dp_shard = 2
        reduce = "last"
        reshard = false
        collective_limit_s = 60.0
    """
    layout = run.parallel
    unsharded, alone = "`parallel.dp_shard` is 1", "`parallel.processes` is 1"
    if layout.dp_shard == 1 and layout.reduce != "each":
        yield unused("parallel.reduce", f'"{layout.reduce}"', unsharded, fix="")
    if layout.dp_shard == 1 and not layout.reshard:
        yield unused("parallel.reshard", "false", unsharded, fix="")
    if layout.processes == 1 and layout.collective_limit_s is not None:
        yield unused("parallel.collective_limit_s", f"{layout.collective_limit_s:g}", alone, fix="")
