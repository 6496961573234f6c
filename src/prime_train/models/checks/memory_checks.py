"""Checks how many GPUs of one type a model needs for serving and for training. Pure: uses the estimate."""

from __future__ import annotations

from typing import NamedTuple

from prime_train.config.prime_rl.schema import newest
from prime_train.core.units import GIB, format_bytes, format_count
from prime_train.estimate.memory.sharding import lora_parameters
from prime_train.estimate.memory.train_setup import AdapterSize, Head, ModelLayout, Numerics, TrainSetup
from prime_train.estimate.memory.training import training_memory
from prime_train.estimate.model.shape import ModelShape
from prime_train.estimate.serving.server_memory import inference_memory
from prime_train.estimate.serving.server_setup import default_setup
from prime_train.estimate.serving.server_weights import weight_gib
from prime_train.estimate.values import Hardware
from prime_train.models.verdict.verdicts import Check, ok, warning

CTX_TOKENS = 8192  # in one micro-batch: enough for a chain of thought, and the chunk size of prime-rl's LM head
LORA_RANK = 16
_TILE = 8192  # tokens and logits at a time. Source: prime-rl 559b447, fused_lm_head_token_chunk_size
_COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


class ServingFit(NamedTuple):
    """One vLLM server with tensor parallelism over `gpus`. `kv_tokens`: cache size; `ctx_tokens`: limit per request."""

    gpus: int
    weight_bytes: float
    kv_tokens: int
    ctx_tokens: int


class TrainingFit(NamedTuple):
    """The smallest number of GPUs on which training fits, None above 512, and the peak bytes on each GPU.

    `expert_parallel`: GPUs over which the experts of a block are spread; 1 if each GPU gathers all of them.
    """

    gpus: int | None
    bytes_per_gpu: float
    expert_parallel: int = 1


def fit_serving(shape: ModelShape, hardware: Hardware, version: str = "") -> ServingFit | None:
    """The smallest server that fits one request of the model's full context; None if 8 GPUs are not enough."""
    for gpus in _COUNTS[:4]:
        if shape.heads % gpus:
            continue
        setup = default_setup(shape, hardware, version)._replace(tensor_parallel=gpus)
        memory = inference_memory(setup, hardware)
        if memory.starts:
            return ServingFit(gpus, weight_gib(setup) * GIB, memory.kv_tokens, setup.ctx_tokens)
    return None


def fit_training(shape: ModelShape, hardware: Hardware, *, lora: bool) -> TrainingFit:
    """prime-rl's trainer with activation checkpointing, without offload, with FSDP over as few GPUs as possible.

    A block of many experts can be larger than a GPU, so they are spread where gathering all of them does not fit.
    """
    needed = 0.0
    for gpus in _COUNTS:
        for spread in _COUNTS:
            if spread > 1 and (spread > gpus or not shape.experts or shape.experts % spread):
                break
            needed = training_memory(_setup(shape, gpus, spread, lora=lora), hardware).needed_bytes
            if needed <= hardware.usable_bytes:
                return TrainingFit(gpus, needed, spread)
    return TrainingFit(None, needed)


def _setup(shape: ModelShape, gpus: int, spread: int, *, lora: bool) -> TrainSetup:
    tokens = _tokens(shape)
    return TrainSetup(
        program="prime-rl",
        era=newest(),
        shape=shape,
        layout=ModelLayout("fsdp", shards=gpus, expert=spread),
        numerics=Numerics(),
        head=Head("tiled", chunk_tokens=_TILE, chunk_vocab=_TILE),
        tokens=tokens,
        ctx_tokens=tokens,
        micro_batches=2,
        checkpointing="full",
        adapter=AdapterSize("lora", LORA_RANK, lora_parameters(shape, LORA_RANK)) if lora else None,
        compiled=True,
    )


def _tokens(shape: ModelShape) -> int:
    return min(CTX_TOKENS, shape.ctx_tokens or CTX_TOKENS)


def check_serving(shape: ModelShape, hardware: Hardware, version: str) -> Check:
    found = fit_serving(shape, hardware, version)
    if found is None:
        return warning(
            "memory-to-serve",
            f"no server of up to 8 x {hardware.id} fits a request of {format_count(shape.ctx_tokens)} tokens",
            "vLLM refuses to start if one request of max_model_len does not fit into its KV cache",
            "use a smaller max_model_len, a quantised model, or several nodes",
        )
    return ok(
        "memory-to-serve",
        f"{found.gpus} x {hardware.id}: {format_bytes(found.weight_bytes * found.gpus)} of weights, "
        f"{format_count(found.kv_tokens)} tokens of KV cache (context {format_count(found.ctx_tokens)})",
    )


def check_training(shape: ModelShape, hardware: Hardware) -> Check:
    full, lora = fit_training(shape, hardware, lora=False), fit_training(shape, hardware, lora=True)
    setting = f"at {_tokens(shape):,} tokens per GPU, with checkpointing and AdamW in fp32"
    if lora.gpus is None:
        return warning(
            "memory-to-train",
            f"not even LoRA fits on {_COUNTS[-1]} x {hardware.id} {setting}",
            "each GPU needs at least its share of the weights and one gathered block",
            "use a smaller model, a GPU with more memory, or offload: prime-train estimate CONFIG",
        )
    whole = f"in full {_describe(full, hardware)}" if full.gpus else f"in full more than {_COUNTS[-1]} x {hardware.id}"
    return ok("memory-to-train", f"{whole}; by LoRA of rank {LORA_RANK} {_describe(lora, hardware)}; {setting}")


def _describe(found: TrainingFit, hardware: Hardware) -> str:
    spread = f", experts over {found.expert_parallel} GPUs" if found.expert_parallel > 1 else ""
    return f"{found.gpus} x {hardware.id} (at most {format_bytes(found.bytes_per_gpu)} on each{spread})"
