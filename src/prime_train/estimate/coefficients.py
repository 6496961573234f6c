"""Reads the coefficients of each trainer from registry/memory.toml. Holds no formula: what a field multiplies stands
beside it here, and the formula in the module named in front of its group."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from prime_train import registry


class Coefficients(NamedTuple):
    """The numbers of one trainer and era. The defaults are counted from the operations, not fitted."""

    # sharding.py: multiples of the bytes of the group named
    gather_alone: float = 1.0  # a block's compute copy where one GPU holds all shards
    gather: float = 2.0  # a block's gathered weights: the one at work and the one prefetched
    root_gather_alone: float = 1.0  # the compute copy of head, or of the tied embedding, on one GPU
    root_gather: float = 1.0  # the same gathered from shards
    embedding_gather: float = 0.0  # an untied embedding's, beside it
    block_gradient: float = 1.0  # a block's whole gradient before it is cut, in the compute type
    reduce: float = 1.0  # the same in the reduce type, on its way
    root_gradient: float = 4.0  # bytes per number of the head's whole gradient
    whole_copy: float = 0.0  # the whole model in its own type beside the shards
    bucket_bytes: float = 0.0  # flat communication buffers

    # activations.py: per token and layer; "kept" in numbers of the compute type, "block" in bytes
    residual: float = 1.0  # the residual stream that checkpointing keeps at each block
    kept_hidden: float = 4.0  # two norm inputs, two norm outputs
    kept_query: float = 2.0  # rotated queries, attention's output
    kept_kv: float = 1.0  # rotated keys and values, of both together
    kept_mlp: float = 4.0  # gate, its activation, up, their product; 2 where the MLP has no gate
    kept_eager: float = 6.0  # of hidden size, where nothing is compiled: norms in fp32
    kept_quantized: float = 0.0  # of the MLP's inner numbers, where the base is quantised
    kept_selective: float = 0.6  # part of what is kept that selective checkpointing keeps
    block_hidden: float = 24.0
    block_query: float = 8.0
    block_kv: float = 4.0
    block_mlp: float = 10.0
    eager_hidden: float = 0.0  # beside block_hidden and block_mlp where these are of compiled runs and this is none
    eager_mlp: float = 0.0
    expert_hidden: float = 4.0  # per visited expert: tokens sorted by expert and their gradient
    expert_mlp: float = 10.0  # of the experts' inner width, all visited together
    adapter_hidden: float = 0.0  # beside block_hidden and block_mlp where adapters are trained
    adapter_mlp: float = 0.0
    adapter_kept: float = 0.0  # kept without checkpointing, in numbers of hidden size, by LoRA
    scaled_kept: float = 1.0  # the same for each output that adapter-v2 scales
    tensor_gather: float = 4.0  # whole-width copies of the stream that tensor parallelism gathers, in numbers
    in_flight: float = 4.0  # residual streams on their way to the host where five may be, in layers
    backward_block: float = 2.0  # without checkpointing: gradients of one block, in its kept numbers' bytes

    # head.py: bytes per logit, per logit of a chunk, per number of the hidden state
    logit: float = 14.0
    chunk_logit: float = 24.0
    tile_logit: float = 9.0  # of all logits of a chunk of tokens, where the vocabulary is cut too
    chunks_kept: float = 2.0  # token chunks: bytes per logit of all chunks together
    head_hidden: float = 8.0

    # adapters.py and the optimizer: multiples, and bytes per number
    embeddings_trained: float = 12.0  # embedding and head that an adapter run trains beside the adapter
    optimizer_temporary: float = 4.0  # bytes per trained number that the update itself needs

    # allocator.py
    reserve: float = 1.08  # what the allocator holds for each byte that comes and goes
    reserve_static: float = 1.0  # and for each byte that stays
    workspace_bytes: float = 0.2e9  # cuBLAS workspaces, small tensors, what is measured beside the tensors
    low: float = 0.9  # the interval, as factors of the typical value
    high: float = 1.12


class Fitted(NamedTuple):
    """One trainer's entry: its coefficients, and which rows they were fitted to."""

    coefficients: Coefficients
    source: str
    models: tuple[str, ...]  # the model families that were among the rows
    checkpointing: tuple[str, ...]  # and which activation checkpointing
    compiled: tuple[bool, ...]  # and whether they were compiled


@cache
def _tables() -> dict[str, Any]:
    return registry.memory_coefficients()


def fitted(program: str, era: str) -> Fitted:
    """The entry of `program` in its newest era that is not after `era`; that of "hf" where the program is unknown."""
    tables = _tables()
    entry = tables.get(program) or tables["hf"]
    numbers: dict[str, float] = dict(entry.get("coefficients", {}))
    for since, changed in sorted(entry.get("era", {}).items()):
        if since <= era:
            numbers.update(changed)
    seen = (tuple(entry.get(name, ())) for name in ("models", "checkpointing", "compiled"))
    return Fitted(Coefficients(**numbers), entry["source"], *seen)


def is_known(program: str) -> bool:
    return program in _tables()
