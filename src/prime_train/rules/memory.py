"""Plain lower bounds on GPU memory: what cannot fit whatever else is done. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prime_train.findings import Problem, Severity
from prime_train.rules.base import facts_rule, known, rule
from prime_train.rules.sizes import ModelSizes, sizes_of
from prime_train.spec import RunSpec
from prime_train.units import format_bytes

if TYPE_CHECKING:
    from prime_train.facts.facts import Facts

_MOST_OF_A_GPU = 0.95  # a CUDA context takes 0.5 GiB and graphs 0.2 to 0.8; measured on vLLM's logs
_LOGIT_BYTES = (
    15  # per position and token of the vocabulary at the peak: 4 copies in fp32; measured with prime-rl's sft
)
_LOGITS_LIMIT = 40 * 2**30
_LONG_TOKENS = 32768
_WEIGHT_BYTES = 2  # bf16
_TRAINED_BYTES = 16  # fp32 weight, gradient and two moments; ZeRO, arXiv 1910.02054, s. 3.1
_OFFLOADED_BYTES = 4  # the fp32 weight is what stays on the GPU between steps, at least
_FROZEN_BYTES = 4  # prime-rl keeps the base of an adapter in fp32


@rule("MEM001", Severity.ERROR)
def fraction_out_of_range(run: RunSpec) -> Iterator[Problem]:
    """gpu_memory_utilization is a fraction of the GPU.

    vLLM refuses less than nothing and more than all; above 0.95 the CUDA context and graphs have no room

    Above 0.95 it is a warning.

    Source: vLLM, CacheConfig.gpu_memory_utilization.

    Bad (prime-rl 2026-08):
        [inference.vllm]
        gpu_memory_utilization = 90.0
    Bad (prime-rl 2026-08):
        [inference.vllm]
        gpu_memory_utilization = 0.98
    Good (prime-rl 2026-08):
        [inference.vllm]
        gpu_memory_utilization = 0.9
    """
    fraction = run.inference.gpu_memory_fraction if run.inference is not None else None
    if fraction is None or 0 < fraction <= _MOST_OF_A_GPU:
        return
    meant = fraction / 100 if 1 < fraction <= 95 else 0.9
    yield Problem(
        "inference.gpu_memory_fraction",
        f"{fraction:g} leaves nothing of the GPU" if 0 < fraction <= 1 else f"{fraction:g} is no fraction of a GPU",
        patch={"inference.gpu_memory_fraction": meant},
        severity=Severity.WARNING if 0 < fraction <= 1 else None,
    )


@rule("MEM002", Severity.WARNING)
def long_without_checkpointing(run: RunSpec) -> Iterator[Problem]:
    """Long sequences need activation checkpointing.

    the activations of every layer are held until the backward pass: at 32768 tokens they outgrow the model

    Source: Reducing Activation Recomputation, arXiv 2205.05198, s. 4.1.

    Bad (prime-rl 2026-05):
        seq_len = 32768
        [inference.model]
        max_model_len = 32768
        [trainer.model]
        fused_lm_head_token_chunk_size = 8192
    Good (prime-rl 2026-05):
        seq_len = 32768
        [inference.model]
        max_model_len = 32768
        [trainer.model]
        fused_lm_head_token_chunk_size = 8192
        [trainer.model.ac]
        freq = 1
    """
    trainer = run.trainer
    if trainer is None or trainer.activation_checkpointing is not False or trainer.ctx_tokens is None:
        return
    if trainer.activation_offloading:
        return
    local_tokens = trainer.ctx_tokens // max(1, trainer.context_parallel or 1)
    if local_tokens >= _LONG_TOKENS:
        yield Problem(
            "trainer.activation_checkpointing",
            f"not set, at {local_tokens} tokens on a GPU",
            fix="add `trainer.activation_checkpointing`",
        )


@rule("MEM003", Severity.WARNING)
def whole_logits(run: RunSpec) -> Iterator[Problem]:
    """Logits of a long sequence should be computed in chunks.

    at their peak they take 15 bytes for each position and token of the vocabulary, more than the rest together

    More than 40 GiB on a GPU is told of; a model that is not in the registry is not judged.

    Source: measured with prime-rl at 16384 tokens and a vocabulary of 151936: 35 GiB.

    Bad (prime-rl 2026-05):
        seq_len = 32768
        [inference.model]
        max_model_len = 32768
        [trainer.model.ac]
        freq = 1
    Good (prime-rl 2026-05):
        seq_len = 32768
        [inference.model]
        max_model_len = 32768
        [trainer.model]
        fused_lm_head_token_chunk_size = 8192
        [trainer.model.ac]
        freq = 1
    """
    trainer = run.trainer
    if trainer is None or run.finetune is not None or run.rollout is None or trainer.ctx_tokens is None:
        return
    sizes = sizes_of(trainer.model_name)
    if sizes is None or trainer.head_chunk_tokens is not None or run.launch is None:
        return
    if run.launch.generation == "2026-01":  # its head is chunked over the vocabulary
        return
    logit_bytes = _LOGIT_BYTES * trainer.ctx_tokens // max(1, trainer.context_parallel or 1) * sizes.vocab_size
    if logit_bytes > _LOGITS_LIMIT:
        yield Problem(
            "trainer.head_chunk_tokens",
            f"{trainer.ctx_tokens} tokens x {sizes.vocab_size} of the vocabulary: {format_bytes(logit_bytes)}",
            patch={"trainer.head_chunk_tokens": 8192},
        )


@facts_rule("MEM004", Severity.ERROR, needs=("gpus",))
def weights_beyond_the_servers_gpus(run: RunSpec, facts: Facts) -> Iterator[Problem]:
    """The weights must fit on the GPUs that serve them.

    vLLM loads them before it reckons what is left for the cache: it ends with "out of memory" or no cache blocks

    bf16, over the GPUs of one replica; a model that is not in the registry is not judged.

    Source: config.json of the models; vLLM's "No available memory for the cache blocks".

    Bad (prime-rl 2026-08):
        [model]
        name = "Qwen/Qwen3-32B"
        [deployment]
        num_train_gpus = 1
        num_infer_gpus = 1
        [inference.vllm]
        data_parallel_size = 1
        [trainer.model]
        fsdp_cpu_offload = true
        [facts.gpus]
        devices = [
            {name = "NVIDIA A10G", memory_bytes = 25769803776, compute_capability = [8, 6]},
            {name = "NVIDIA A10G", memory_bytes = 25769803776, compute_capability = [8, 6]},
        ]
    Good (prime-rl 2026-08):
        [model]
        name = "Qwen/Qwen3-1.7B"
        [deployment]
        num_train_gpus = 1
        num_infer_gpus = 1
        [inference.vllm]
        data_parallel_size = 1
        [facts.gpus]
        devices = [
            {name = "NVIDIA A10G", memory_bytes = 25769803776, compute_capability = [8, 6]},
            {name = "NVIDIA A10G", memory_bytes = 25769803776, compute_capability = [8, 6]},
        ]
    """
    inference, devices = run.inference, known(facts.gpus).devices
    sizes = sizes_of(inference.model_name) if inference is not None else None
    if inference is None or sizes is None or not devices or inference.quantization is not None:
        return
    width = (inference.tensor_parallel or 1) * (inference.pipeline_parallel or 1)
    fraction = 0.9 if inference.gpu_memory_fraction is None else inference.gpu_memory_fraction
    room = int(min(gpu.memory_bytes for gpu in devices) * fraction) if 0 < fraction <= 1 else 0
    share = _WEIGHT_BYTES * sizes.parameters // max(1, width)
    if share >= room > 0:
        yield Problem(
            "inference.tensor_parallel",
            f"{format_bytes(share)} of weights on a GPU that gives {format_bytes(room)}",
            fix=f"`inference.tensor_parallel` = {_width(sizes, room)} at least, or a smaller model",
        )


@facts_rule("MEM005", Severity.ERROR, needs=("gpus",))
def training_state_beyond_the_gpus(run: RunSpec, facts: Facts) -> Iterator[Problem]:
    """What is trained must fit on the GPUs that train it.

    weights, gradients and moments are there in every step, whatever is done about activations

    16 bytes per parameter, 4 where the optimizer is offloaded or the base of an adapter is frozen; spread over the
    training GPUs. A model that is not in the registry is not judged.

    Source: ZeRO, arXiv 1910.02054, s. 3.1.

    Bad (prime-rl 2026-08):
        [model]
        name = "Qwen/Qwen3-8B"
        [deployment]
        num_train_gpus = 1
        num_infer_gpus = 1
        [inference.vllm]
        data_parallel_size = 1
        [facts.gpus]
        devices = [
            {name = "NVIDIA A10G", memory_bytes = 25769803776, compute_capability = [8, 6]},
            {name = "NVIDIA A10G", memory_bytes = 25769803776, compute_capability = [8, 6]},
        ]
    Good (prime-rl 2026-08):
        [model]
        name = "Qwen/Qwen3-4B"
        [deployment]
        num_train_gpus = 1
        num_infer_gpus = 1
        [inference.vllm]
        data_parallel_size = 1
        [facts.gpus]
        devices = [
            {name = "NVIDIA A10G", memory_bytes = 25769803776, compute_capability = [8, 6]},
            {name = "NVIDIA A10G", memory_bytes = 25769803776, compute_capability = [8, 6]},
        ]
    """
    trainer, devices = run.trainer, known(facts.gpus).devices
    sizes = sizes_of(trainer.model_name) if trainer is not None else None
    gpus = run.deployment.train_gpus if run.deployment is not None else None
    if trainer is None or sizes is None or not devices or not gpus or trainer.fsdp_cpu_offload:
        return
    if run.lora is not None:
        per_parameter = _FROZEN_BYTES
    else:
        per_parameter = _OFFLOADED_BYTES if trainer.optim_cpu_offload else _TRAINED_BYTES
    share = per_parameter * sizes.parameters * (trainer.dp_replicate or 1) // gpus
    memory_bytes = min(gpu.memory_bytes for gpu in devices)
    if share >= memory_bytes:
        yield Problem(
            "deployment.train_gpus",
            f"{format_bytes(share)} of weights and state on a GPU of {format_bytes(memory_bytes)}",
            fix=f"`deployment.train_gpus` = {-(-share * gpus // memory_bytes)} at least, or a smaller model",
        )


def _width(sizes: ModelSizes, room: int) -> int:
    """The smallest power of two of GPUs that the weights fit on."""
    width = 1
    while _WEIGHT_BYTES * sizes.parameters >= width * room:
        width *= 2
    return width
