"""Estimates one training on 1 to N GPUs with each strategy: memory, largest micro-batch, bytes per collective. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from prime_train.estimate.memory.train_setup import ModelLayout, Sharding, TrainSetup
from prime_train.estimate.time.step_terms import links_of
from prime_train.estimate.values import Hardware, RoleMemory, find_largest

_MOST_SEQUENCES = 4096

_NEAR_FASTEST = 0.98  # share of the highest speed at which a smaller micro-batch is as good

MemoryOf = Callable[[TrainSetup], RoleMemory]  # must not fall when tokens grow
SpeedOf = Callable[[TrainSetup], float]  # tokens per second of all GPUs; 0 if not known


class ScaledLayout(NamedTuple):
    """One strategy on a number of GPUs.

    `largest_micro_batch`: sequences of ctx_tokens that fit on one data-parallel rank, 0 if none. `best_micro_batch`:
    the smallest at nearly the highest speed, which is `tokens_per_s`; 0 if none fits or no speed is known.
    `sent_bytes`: bytes that one GPU sends in a step with the run's own micro-batch; `least_s`: their time at the full
    rate of the links, one collective after the other.
    """

    strategy: str
    gpus: int
    layout: ModelLayout
    memory: RoleMemory
    fits: bool
    largest_micro_batch: int
    transfers: tuple[Transfer, ...]
    sent_bytes: float
    least_s: float
    best_micro_batch: int = 0
    tokens_per_s: float = 0.0


def scale(
    setup: TrainSetup, hardware: Hardware, memory_of: MemoryOf, speed_of: SpeedOf = lambda _: 0.0
) -> tuple[ScaledLayout, ...]:
    """Every strategy on 1, 2, 4 ... GPUs of the hardware, with the same micro-batch on each data-parallel rank."""
    tokens = setup.tokens * setup.layout.context
    return tuple(
        _estimate(strategy, setup._replace(layout=layout, tokens=tokens), hardware, memory_of, speed_of)
        for gpus in counts(hardware.gpus)
        for strategy, layout in layouts(setup, gpus, hardware.gpus_per_node)
    )


def counts(most: int) -> tuple[int, ...]:
    """The powers of two up to `most`, and `most` itself."""
    powers = [2**power for power in range(most.bit_length()) if 2**power <= most]
    return tuple(sorted({*powers, most})) if most > 0 else ()


def layouts(setup: TrainSetup, gpus: int, gpus_per_node: int) -> Iterator[tuple[str, ModelLayout]]:
    """(name, layout) of each strategy on `gpus` GPUs.

    HSDP keeps a copy per machine, or per half of one machine. TP stays within a machine and must divide the heads; over
    several machines the model is sharded as well.
    """
    reshards = setup.layout.reshards
    fsdp: Sharding = "zero3" if setup.layout.sharding.startswith("zero") else "fsdp"
    if gpus == 1:
        sharding = setup.layout.sharding if setup.layout.sharding in ("fsdp", "zero3") else "none"
        yield "one GPU", ModelLayout(sharding, reshards=reshards)
        return
    yield "FSDP", ModelLayout(fsdp, shards=gpus, reshards=reshards)
    shards = gpus_per_node if gpus > gpus_per_node else gpus // 2
    if shards > 1 and gpus % shards == 0:
        yield "HSDP", ModelLayout(fsdp, shards=shards, replicas=gpus // shards, reshards=reshards)
    yield "DDP", ModelLayout("ddp", replicas=gpus)
    tensor = min(gpus, gpus_per_node)
    if setup.shape.heads % tensor == 0 and gpus % tensor == 0:
        sharded = gpus // tensor
        yield "TP", ModelLayout(fsdp if sharded > 1 else "none", shards=sharded, tensor=tensor, reshards=reshards)


def largest_micro_batch(setup: TrainSetup, usable_bytes: float, memory_of: MemoryOf) -> int:
    """The most sequences of ctx_tokens that fit at once on one data-parallel rank; 0 if not even one fits."""

    def fits(sequences: int) -> bool:
        return memory_of(_with_sequences(setup, sequences)).needed_bytes <= usable_bytes

    return find_largest(0, _MOST_SEQUENCES, fits)


def best_micro_batch(setup: TrainSetup, largest: int, speed_of: SpeedOf) -> tuple[int, float]:
    """(sequences at once, tokens per second): the smallest power of two, or `largest`, near the highest speed."""
    sizes = counts(largest)
    speeds = [speed_of(_with_sequences(setup, sequences)) for sequences in sizes]
    if not max(speeds, default=0.0):
        return 0, 0.0
    return next(pair for pair in zip(sizes, speeds, strict=True) if pair[1] >= _NEAR_FASTEST * max(speeds))


def _with_sequences(setup: TrainSetup, sequences: int) -> TrainSetup:
    return setup._replace(tokens=-(-sequences * setup.ctx_tokens // setup.layout.context))


def _estimate(
    strategy: str, setup: TrainSetup, hardware: Hardware, memory_of: MemoryOf, speed_of: SpeedOf
) -> ScaledLayout:
    memory = memory_of(setup)
    largest = largest_micro_batch(setup, hardware.usable_bytes, memory_of)
    best, tokens_per_s = best_micro_batch(setup, largest, speed_of)
    transfers = traffic_of(setup, hardware.gpus_per_node)
    return ScaledLayout(
        strategy=strategy,
        gpus=setup.layout.gpus,
        layout=setup.layout,
        memory=memory,
        fits=memory.needed_bytes <= hardware.usable_bytes,
        largest_micro_batch=largest,
        best_micro_batch=best,
        tokens_per_s=tokens_per_s,
        transfers=transfers,
        sent_bytes=sum(transfer.bytes for transfer in transfers),
        least_s=sum(least_seconds(transfer, hardware) for transfer in transfers),
    )


_ZERO = "ZeRO, arXiv 1910.02054, s. 7"
_FSDP = "PyTorch FSDP, arXiv 2304.11277, s. 3.2"
_TENSOR = "Megatron-LM, arXiv 1909.08053, s. 3"
_CONTEXT = "Ring Attention, arXiv 2310.01889, s. 3"
_EXPERTS = "GShard, arXiv 2006.16668, s. 3.2"


class Transfer(NamedTuple):
    """One kind of collective, over all its calls in one step.

    `bytes`: sent by one GPU. The group has `members` GPUs, `members_per_node` of them in one machine.
    """

    name: str
    bytes: float
    members: int
    members_per_node: int
    formula: str
    source: str


_Sent = tuple[str, float, int, int, str, str]  # name, bytes, members, distance of their ranks, formula, source


def gather_bytes(size_bytes: float, members: int) -> float:
    """Bytes that each member of a ring sends to all-gather or reduce-scatter a tensor of `size_bytes`.

    Source: Patarasuk and Yuan, Bandwidth optimal all-reduce, J. Parallel Distrib. Comput. 69 (2009), s. 3.
    """
    return size_bytes * (members - 1) / members


def all_reduce_bytes(size_bytes: float, members: int) -> float:
    """Bytes that each member sends to all-reduce a tensor of `size_bytes`."""
    return 2 * gather_bytes(size_bytes, members)


def traffic_of(setup: TrainSetup, gpus_per_node: int = 8) -> tuple[Transfer, ...]:
    """What one GPU sends in one step; () on a single GPU.

    Ranks are ordered by tensor parallelism first, then shards, then replicas.
    """
    kinds = (_shard_transfers, _replica_transfers, _tensor_transfers, _context_transfers, _expert_transfers)
    return tuple(
        Transfer(name, size, members, max(1, min(members, gpus_per_node // stride)), formula, source)
        for kind in kinds
        for name, size, members, stride, formula, source in kind(setup)
        if size > 0
    )


def least_seconds(transfer: Transfer, hardware: Hardware) -> float:
    """Seconds at the full rate of the links. Compute may overlap with a part of them.

    Rings over full machines use all network ports of a machine together, up to the rate of the links inside it.
    """
    links = links_of(hardware)
    crosses_nodes = transfer.members > transfer.members_per_node
    return transfer.bytes / (
        min(links.node, links.network * transfer.members_per_node) if crosses_nodes else links.node
    )


def _shard_transfers(setup: TrainSetup) -> Iterator[_Sent]:
    """Gathers of the weights and reduce-scatters of the gradients.

    FSDP and ZeRO-3 gather the weights in every forward, and in every backward if they were dropped, and reduce-scatter
    the gradients of every micro-batch. ZeRO-1 and ZeRO-2 do both once per step.
    """
    layout, numerics = setup.layout, setup.numerics
    if layout.shards == 1 or layout.sharding in ("none", "ddp", "device_map"):
        return
    ranks = layout.tensor * layout.pipeline  # that hold different parts of the model
    weights = setup.shape.parameters / ranks * numerics.compute
    gradients = setup.trained / ranks * numerics.reduce
    once = layout.sharding in ("zero1", "zero2")
    times = 1 if once else setup.micro_batches
    passes = times * (2 if layout.reshards and not once else 1)
    source = _ZERO if layout.sharding.startswith("zero") else _FSDP
    ring = f"({layout.shards}-1)/{layout.shards}"
    sent, formula = passes * gather_bytes(weights, layout.shards), f"{passes} x {ring} x {weights:.4g} B"
    yield "weight all-gather", sent, layout.shards, layout.tensor, formula, source
    sums = 1 if setup.reduces_last else times
    sent, formula = sums * gather_bytes(gradients, layout.shards), f"{sums} x {ring} x {gradients:.4g} B"
    yield "gradient reduce-scatter", sent, layout.shards, layout.tensor, formula, source


def _replica_transfers(setup: TrainSetup) -> Iterator[_Sent]:
    """Replicas all-reduce gradients: DDP all of them once per step, HSDP each GPU's shard in every micro-batch."""
    layout = setup.layout
    if layout.replicas == 1:
        return
    sharded = layout.shards > 1
    times = setup.micro_batches if sharded and not setup.reduces_last else 1
    width = setup.numerics.reduce if sharded else setup.numerics.gradient
    size = setup.trained / (layout.tensor * layout.pipeline) * width / layout.shards
    sent, source = times * all_reduce_bytes(size, layout.replicas), _FSDP if sharded else _ZERO
    formula = f"{times} x 2 x ({layout.replicas}-1)/{layout.replicas} x {size:.4g} B"
    yield "gradient all-reduce", sent, layout.replicas, layout.state_parts, formula, source


def _tensor_transfers(setup: TrainSetup) -> Iterator[_Sent]:
    """Each layer all-reduces the residual stream twice in its forward, its backward and its recompute."""
    layout = setup.layout
    if layout.tensor == 1:
        return
    passes = 6 if setup.checkpointing == "full" else 4
    size = setup.tokens * setup.shape.hidden_size * setup.numerics.compute
    calls = passes * setup.micro_batches * setup.shape.layers // layout.pipeline
    formula = f"{calls} x 2 x ({layout.tensor}-1)/{layout.tensor} x {setup.tokens} tokens x {setup.shape.hidden_size}"
    yield "activation all-reduce", calls * all_reduce_bytes(size, layout.tensor), layout.tensor, 1, formula, _TENSOR


def _context_transfers(setup: TrainSetup) -> Iterator[_Sent]:
    """Keys and values pass around the ring in the forward; they and their gradients in the backward."""
    layout, shape = setup.layout, setup.shape
    if layout.context == 1:
        return
    size = 2 * setup.tokens * shape.kv_heads * shape.head_dim * setup.numerics.compute / layout.tensor
    rounds = 4 if setup.checkpointing == "full" else 3
    layers = shape.layers - shape.linear_layers
    sent = rounds * setup.micro_batches * layers * (layout.context - 1) * size
    formula = f"{rounds} x {layers} layers x ({layout.context}-1) x {size:.4g} B of keys and values"
    yield "key-value ring", sent, layout.context, layout.tensor, formula, _CONTEXT


def _expert_transfers(setup: TrainSetup) -> Iterator[_Sent]:
    """Tokens travel to their experts and back in the forward, in the backward, and in a recompute."""
    layout, shape = setup.layout, setup.shape
    if layout.expert == 1 or not shape.is_moe:
        return
    passes = 6 if setup.checkpointing == "full" else 4
    layers = shape.layers - shape.dense_layers
    rows = setup.tokens * shape.experts_per_token
    size = rows * shape.hidden_size * setup.numerics.compute
    sent = passes * setup.micro_batches * layers * gather_bytes(size, layout.expert)
    formula = f"{passes} x {layers} layers x ({layout.expert}-1)/{layout.expert} x {rows} rows x {shape.hidden_size}"
    yield "token all-to-all", sent, layout.expert, layout.tensor, formula, _EXPERTS
