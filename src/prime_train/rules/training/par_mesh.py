"""How a model is distributed over GPUs and machines: shards, context, experts, heads. Pure."""

from __future__ import annotations

import math

from prime_train.core.findings import Problem, Severity
from prime_train.rules.model.model_sizes import sizes_of
from prime_train.rules.rule import Problems, rule, suggest
from prime_train.spec import RunSpec
from prime_train.spec.answers import policy_of, prime_rl_of


@rule("PAR012", Severity.ERROR)
def machines_do_not_divide_processes(run: RunSpec) -> Problems:
    """Every machine must have the same number of processes.

    ranks are counted by machine, and a machine with fewer would leave ranks without a process

    Source: trainer/attempt.py (rank = machine x processes of a machine + local rank).

    Bad:
        [parallel]
        processes = 3
        machines = 2
    Good:
        [parallel]
        processes = 4
        machines = 2
    """
    layout = run.parallel
    if layout.processes % layout.machines:
        yield suggest(
            "parallel.processes",
            f"`parallel.processes` {layout.processes} do not divide by `parallel.machines` {layout.machines}",
            max(1, layout.processes // layout.machines) * layout.machines,
        )


@rule("PAR013", Severity.ERROR)
def kind_needs_one_machine(run: RunSpec) -> Problems:
    """A run with an engine, or one that serves, has one machine.

    its engine and its environments are on loopback beside rank 0, and answer no other machine

    Source: trainer/loops/grpo.py (rank 0 owns the engine), programs/vllm (a server on 127.0.0.1).

    Bad:
        [run]
        kind = "rl"
        [[tasks]]
        kind = "reverse-text"
        [rl]
        warmup_steps = 40
        [parallel]
        processes = 2
        machines = 2
    Good:
        [run]
        kind = "pretrain"
        [parallel]
        processes = 2
        machines = 2
    """
    if run.parallel.machines > 1 and (policy_of(run) is not None or run.inference is not None):
        yield Problem(
            "parallel.machines",
            f'`parallel.machines` {run.parallel.machines}, and run.kind = "{run.run.kind}" has an engine',
            "parallel.machines = 1, with `parallel.processes` of one machine",
            {"parallel.machines": 1},
        )


@rule("PAR004", Severity.ERROR)
def trainer_layout_does_not_fill(run: RunSpec) -> Problems:
    """The trainer's GPUs must divide by its replicas, context and tensor parallelism.

    the quotient is the number of shards, and the mesh needs a whole number of them

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
    trainer, gpus = prime_rl_of(run).trainer, _train_gpus(run)
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
def experts_do_not_spread(run: RunSpec) -> Problems:
    """The expert-parallel degree must divide the GPUs of one replica, and the experts.

    each rank of a replica holds the same number of experts

    Source: torchtitan's ParallelDims, which prime-rl's trainer uses; num_experts in config.json.

    Bad (prime-rl 2026-08):
        [deployment]
        num_train_gpus = 4
        [trainer.model]
        name = "Qwen/Qwen3-30B-A3B"
        ep = 8
        fsdp_cpu_offload = true
        optim_cpu_offload = false
        [model]
        name = "Qwen/Qwen3-30B-A3B"
    Good (prime-rl 2026-08):
        [deployment]
        num_train_gpus = 4
        [trainer.model]
        ep = 4
        fsdp_cpu_offload = true
        optim_cpu_offload = false
        [model]
        name = "Qwen/Qwen3-30B-A3B"
    """
    trainer, gpus = prime_rl_of(run).trainer, _train_gpus(run)
    if trainer is None or trainer.expert_parallel is None or trainer.expert_parallel < 2:
        return
    degree = trainer.expert_parallel
    replica = None if gpus is None else gpus // (trainer.dp_replicate or 1)
    if replica is not None and replica % degree:
        yield suggest(
            "trainer.expert_parallel",
            f"{replica} GPUs of a replica do not divide by {degree}",
            math.gcd(replica, degree),
        )
        return
    sizes = sizes_of(trainer.model_name)
    if sizes is not None and sizes.experts and sizes.experts % degree:
        yield suggest(
            "trainer.expert_parallel",
            f"{sizes.experts} experts of {sizes.name} do not divide by {degree}",
            math.gcd(sizes.experts, degree),
        )


@rule("PAR006", Severity.ERROR)
def heads_do_not_spread(run: RunSpec) -> Problems:
    """The tensor-parallel size must divide the model's heads, and divide its key-value heads or be a multiple of them.

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
        yield suggest(
            "inference.tensor_parallel",
            f"{width} GPUs for the {sizes.heads} heads and {sizes.kv_heads} key and value heads of {sizes.name}",
            math.gcd(sizes.heads, math.gcd(sizes.kv_heads, width)),
        )


@rule("PAR010", Severity.ERROR)
def context_parallel_without_flash(run: RunSpec) -> Problems:
    """Context parallelism needs flash attention.

    the ring and the all-to-all are built on its kernels: prime-rl refuses other ones

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
    trainer = prime_rl_of(run).trainer
    if trainer is None or (trainer.context_parallel or 1) < 2:
        return
    if trainer.attention in ("sdpa", "eager"):
        yield suggest(
            "trainer.attention",
            f'"{trainer.attention}", and `trainer.context_parallel` is {trainer.context_parallel}',
            "flash_attention_2",
        )


def _train_gpus(run: RunSpec) -> int | None:
    """GPUs of the trainer over all nodes; None if the file does not set them."""
    gpus = prime_rl_of(run).deployment
    if gpus is None:
        return None
    if gpus.kind == "multi_node":
        return (gpus.train_nodes or 0) * (gpus.gpus_per_node or 0) or None
    return gpus.train_gpus or None
