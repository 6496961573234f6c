"""Says what memory a model takes to serve and to train, on how many GPUs of a kind. Pure: the estimate counts."""

from __future__ import annotations

from typing import NamedTuple

from prime_train.estimate.inference import inference_memory, plain_setup
from prime_train.estimate.inference_weights import weight_gib
from prime_train.estimate.shape import ModelShape
from prime_train.estimate.values import Hardware
from prime_train.units import GIB, format_bytes, format_count
from prime_train.verify.check import Check, not_known, ok, warning
from prime_train.verify.config import Config

# Weights, gradients and both Adam moments in fp32. Source: ZeRO, arXiv 1910.02054, s. 3.1, with an fp32 master copy
# that is the weights themselves: prime-rl's and the bundled trainer's way.
STATE_BYTES = 16
_COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
_SHARE = 0.8  # of a GPU for states that are sharded: the rest is activations, logits and the allocator


class Serving(NamedTuple):
    """One vLLM server with tensor parallelism over `gpus`. `kv_tokens` of cache, of `ctx_tokens` each at most."""

    gpus: int
    weight_bytes: float
    kv_tokens: int
    ctx_tokens: int


def serving(shape: ModelShape, hardware: Hardware, version: str = "") -> Serving | None:
    """The smallest server that takes one request of the model's whole context; None where none of up to 8 GPUs does."""
    for gpus in _COUNTS[:4]:
        if shape.heads % gpus:
            continue
        setup = plain_setup(shape, hardware, version)._replace(tensor_parallel=gpus)
        memory = inference_memory(setup, hardware)
        if memory.starts:
            return Serving(gpus, weight_gib(setup) * GIB, memory.kv_tokens, setup.ctx_tokens)
    return None


def training_gpus(shape: ModelShape, hardware: Hardware) -> int | None:
    """GPUs over which all states of a full training are sharded and still leave room; None beyond 512."""
    room = hardware.usable_bytes * _SHARE
    return next((count for count in _COUNTS if shape.parameters * STATE_BYTES / count <= room), None)


def check_memory(config: Config, hardware: Hardware, version: str = "") -> Check:
    shape = config.shape
    if shape is None:
        return not_known("memory", f"its sizes are not known: {config.shape_fault}")
    states = format_bytes(shape.parameters * STATE_BYTES)
    gpus = training_gpus(shape, hardware)
    train = (
        f"train in full (AdamW, fp32 states): {states} of states"
        + (f", {gpus} x {hardware.id}" if gpus else f", more than {_COUNTS[-1]} x {hardware.id}")
        + " before activations"
    )
    found = serving(shape, hardware, version)
    if found is None:
        return warning(
            "memory",
            f"no server of up to 8 x {hardware.id} takes a request of {format_count(shape.ctx_tokens)} tokens; {train}",
            "vLLM refuses to start where one request of max_model_len does not fit into its cache",
            "serve it with a smaller max_model_len, quantised, or over several nodes",
        )
    serve = (
        f"serve: {format_bytes(found.weight_bytes * found.gpus)} of weights, {found.gpus} x {hardware.id} with "
        f"{format_count(found.kv_tokens)} tokens of KV cache (context {format_count(found.ctx_tokens)})"
    )
    return ok("memory", f"{serve}; {train}")
