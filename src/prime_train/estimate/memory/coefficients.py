"""Reads the memory coefficients of each trainer from registry/memory.toml.

The comment beside a field names what the field multiplies; the formulas are in the module named above each group.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from prime_train.estimate.memory.train_setup import COMPILATION, TrainSetup, features_of
from prime_train.registry import gpus


class Coefficients(NamedTuple):
    """The numbers of one trainer and era. The defaults are counted from the operations, not fitted."""

    # sharding.py: multiples of the bytes of the named group
    gather_alone: float = 1.0  # a block's compute copy if one GPU holds all shards
    gather: float = 2.0  # a block's gathered weights: the current block and the prefetched one
    root_gather_alone: float = 1.0  # the compute copy of the head, or of the tied embedding, on one GPU
    root_gather: float = 1.0  # the same, gathered from shards
    embedding_gather: float = 0.0  # an untied embedding, gathered too
    block_gradient: float = 1.0  # a block's full gradient before it is sharded, in the compute type
    reduce: float = 1.0  # the same in the reduce type, during the reduction
    root_gradient: float = 4.0  # bytes per number of the head's full gradient
    whole_copy: float = 0.0  # the full model in its own type, beside the shards
    bucket_bytes: float = 0.0  # flat communication buffers

    # activations.py: per token and layer; "kept" in numbers of the compute type, "block" in bytes
    residual: float = 1.0  # the residual stream that checkpointing keeps at each block
    residual_sharded: float = 1.0  # times that, in the backward of adapters of a gathered base: its fp32 gradients
    kept_hidden: float = 4.0  # two norm inputs, two norm outputs
    kept_query: float = 2.0  # rotated queries, attention's output
    kept_kv: float = 1.0  # rotated keys and values together
    kept_mlp: float = 4.0  # gate, its activation, up, their product; 2 if the MLP has no gate
    kept_eager: float = 6.0  # of hidden size, if nothing is compiled: norms in fp32
    kept_quantized: float = 0.0  # of the MLP's inner numbers, if the base is quantised
    kept_selective: float = 0.6  # share of the kept numbers that selective checkpointing keeps
    block_hidden: float = 24.0
    block_query: float = 8.0
    block_kv: float = 4.0
    block_mlp: float = 10.0
    eager_hidden: float = 0.0  # added to block_hidden in runs that are not compiled
    eager_mlp: float = 0.0  # added to block_mlp in runs that are not compiled
    expert_hidden: float = 4.0  # per visited expert: tokens sorted by expert and their gradient
    expert_mlp: float = 10.0  # per inner number of all visited experts together
    adapter_hidden: float = 0.0  # added to block_hidden if adapters are trained
    adapter_mlp: float = 0.0  # added to block_mlp if adapters are trained
    adapter_kept: float = 0.0  # numbers of hidden size that LoRA keeps without checkpointing
    scaled_kept: float = 1.0  # the same for each output that adapter-v2 scales
    tensor_gather: float = 4.0  # full-width copies of the residual stream that tensor parallelism gathers, in numbers
    in_flight: float = 4.0  # residual streams on their way to the host if five are allowed, in layers
    backward_block: float = 2.0  # without checkpointing: gradients of one block, in bytes of its kept numbers

    # head.py: bytes per logit, per logit of a chunk, per number of the hidden state
    logit: float = 14.0
    logit_fp32: float = 16.0  # the same of a head in fp32: logits, their shifted copy, log-softmax, its gradient
    logit_fused: float = 8.0  # per logit if one kernel computes loss and gradient
    logit_compiled: float = 4.0  # per logit if the loss is compiled: the logit and its gradient in 16 bits
    in_place: float = 4.0  # beside the compute type, if the gradient overwrites the logits; 0: it overwrites their own
    chunk_logit: float = 24.0
    tile_logit: float = 9.0  # per logit of a token chunk, if the vocabulary is chunked too
    chunks_kept: float = 2.0  # token chunks: bytes per logit of all chunks together
    head_hidden: float = 8.0

    # training.py: segments that the allocator holds and nothing uses, per byte of short-lived tensors. Only where the
    # measured runs have the allocated memory; elsewhere `reserve` has it.
    cached: float = 0.0

    # adapters.py and the optimizer: multiples, and bytes per number
    embeddings_trained: float = 12.0  # embedding and head that an adapter run trains beside the adapter
    optimizer_temporary: float = 4.0  # bytes per trained number that the update itself needs
    optimizer_temporary_16: float = 0.0  # the same for weights in 16 bits; 0: as in 32

    # allocator.py
    reserve: float = 1.08  # bytes the allocator holds per byte that comes and goes within a step
    reserve_lengths: float = (
        0.0  # the same beside it for activations and logits, if every micro-batch has another length
    )
    reserve_static: float = 1.0  # bytes it holds per byte that stays for the whole run
    workspace_bytes: float = 0.2e9  # cuBLAS workspaces, small tensors, everything else that is measured


class Fitted(NamedTuple):
    """One trainer's entry: its coefficients, and the rows they were fitted to.

    `features` are what some row had (train_setup.features_of), `most_tokens` the longest micro-batch of a GPU and
    `most_vocab` the largest vocabulary. An entry without rows has none of them.
    """

    coefficients: Coefficients
    source: str
    models: tuple[str, ...]  # model families of the rows
    intervals: Mapping[str, tuple[float, float]]  # method -> factors between which 90 % of unseen tables' rows lie
    programs: tuple[str, ...] = ()  # those that the rows are of
    features: frozenset[str] = frozenset()
    most_tokens: int = 0
    most_vocab: int = 0
    allocated: bool = False  # the rows have the allocated memory; else the reserved one
    compared: bool = False  # every term was compared with live tensors, so it needs no rows

    def interval_of(self, method: str) -> tuple[float, float]:
        """The factors of "full", "adapter" or "quantized"; those of all methods where too few rows have it."""
        return self.intervals.get(method) or self.intervals["any"]

    def unlike(self, setup: TrainSetup) -> tuple[str, ...]:
        """What of a training no row had, as texts; its model family and its compilation do not count."""
        if self.compared:
            return ()
        if setup.program not in self.programs:
            return (f"no measured run of {setup.program}",)
        missing = features_of(setup) - self.features - COMPILATION
        found = [f"no measured run with {name}" for name in sorted(missing)]
        if setup.tokens > self.most_tokens:
            found.append(f"no measured run with more than {self.most_tokens:,} tokens at once on a GPU")
        if setup.shape.vocab_size > self.most_vocab:
            found.append(f"no measured run with a vocabulary of more than {self.most_vocab:,}")
        return tuple(found)


def fitted_entry(program: str, era: str) -> Fitted:
    """The entry of `program` in its newest era that is not after `era`; the entry of "hf" for an unknown program."""
    tables = gpus.read_table("memory.toml")
    entry = tables.get(program) or tables[_like(program)]
    numbers: dict[str, float] = dict(entry.get("coefficients", {}))
    for since, changed in sorted(entry.get("era", {}).items()):
        if since <= era:
            numbers.update(changed)
    intervals = {method: (float(low), float(high)) for method, (low, high) in entry["interval"].items()}
    if not is_known(program):
        intervals |= {method: intervals["unknown"] for method in intervals if method != "cached"}
    return Fitted(
        Coefficients(**numbers),
        entry["source"],
        tuple(entry.get("models", ())),
        intervals,
        programs=tuple(entry.get("programs", ())),
        features=frozenset(entry.get("features", ())),
        most_tokens=int(entry.get("most_tokens", 0)),
        most_vocab=int(entry.get("most_vocab", 0)),
        allocated=bool(entry.get("allocated")),
        compared=bool(entry.get("compared")),
    )


def _like(program: str) -> str:
    """The entry of a program that has none of its own, by registry/recipes.toml."""
    recipes = gpus.read_table("recipes.toml")
    return str((recipes.get(program) or recipes["hf"])["like"])


def is_known(program: str) -> bool:
    return program in gpus.read_table("memory.toml") or program in gpus.read_table("recipes.toml")
