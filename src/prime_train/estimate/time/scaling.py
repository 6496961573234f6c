"""Estimates one training on 1 to N GPUs with each strategy: memory, largest micro-batch, bytes per collective. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from prime_train.estimate.memory.train_setup import Layout, Sharding, TrainSetup
from prime_train.estimate.time.collectives import Transfer, least_seconds, traffic_of
from prime_train.estimate.values import Hardware, RoleMemory, find_largest

_MOST_SEQUENCES = 4096

MemoryOf = Callable[[TrainSetup], RoleMemory]  # must not fall when tokens grow


class ScaledLayout(NamedTuple):
    """One strategy on a number of GPUs.

    `largest_micro_batch`: sequences of ctx_tokens that fit on one data-parallel rank, 0 if none. `sent_bytes`: bytes
    that one GPU sends in a step with the run's own micro-batch; `least_s`: their time at the full rate of the links,
    one collective after the other.
    """

    strategy: str
    gpus: int
    layout: Layout
    memory: RoleMemory
    fits: bool
    largest_micro_batch: int
    transfers: tuple[Transfer, ...]
    sent_bytes: float
    least_s: float


def scale(setup: TrainSetup, hardware: Hardware, memory_of: MemoryOf) -> tuple[ScaledLayout, ...]:
    """Every strategy on 1, 2, 4 ... GPUs of the hardware, with the same micro-batch on each data-parallel rank."""
    tokens = setup.tokens * setup.layout.context
    return tuple(
        _estimate(strategy, setup._replace(layout=layout, tokens=tokens), hardware, memory_of)
        for gpus in counts(hardware.gpus)
        for strategy, layout in layouts(setup, gpus, hardware.gpus_per_node)
    )


def counts(most: int) -> tuple[int, ...]:
    """The powers of two up to `most`, and `most` itself."""
    powers = [2**power for power in range(most.bit_length()) if 2**power <= most]
    return tuple(sorted({*powers, most})) if most > 0 else ()


def layouts(setup: TrainSetup, gpus: int, gpus_per_node: int) -> Iterator[tuple[str, Layout]]:
    """(name, layout) of each strategy on `gpus` GPUs. HSDP keeps a copy per machine, or per half of one machine. TP
    stays within a machine and must divide the heads; over several machines the model is sharded as well."""
    reshards = setup.layout.reshards
    fsdp: Sharding = "zero3" if setup.layout.sharding.startswith("zero") else "fsdp"
    if gpus == 1:
        sharding = setup.layout.sharding if setup.layout.sharding in ("fsdp", "zero3") else "none"
        yield "one GPU", Layout(sharding, reshards=reshards)
        return
    yield "FSDP", Layout(fsdp, shards=gpus, reshards=reshards)
    shards = gpus_per_node if gpus > gpus_per_node else gpus // 2
    if shards > 1 and gpus % shards == 0:
        yield "HSDP", Layout(fsdp, shards=shards, replicas=gpus // shards, reshards=reshards)
    yield "DDP", Layout("ddp", replicas=gpus)
    tensor = min(gpus, gpus_per_node)
    if setup.shape.heads % tensor == 0 and gpus % tensor == 0:
        sharded = gpus // tensor
        yield "TP", Layout(fsdp if sharded > 1 else "none", shards=sharded, tensor=tensor, reshards=reshards)


def largest_micro_batch(setup: TrainSetup, usable_bytes: float, memory_of: MemoryOf) -> int:
    """The most sequences of ctx_tokens that fit at once on one data-parallel rank; 0 if not even one fits."""

    def fits(sequences: int) -> bool:
        tokens = -(-sequences * setup.ctx_tokens // setup.layout.context)
        return memory_of(setup._replace(tokens=tokens)).needed_bytes <= usable_bytes

    return find_largest(0, _MOST_SEQUENCES, fits)


def _estimate(strategy: str, setup: TrainSetup, hardware: Hardware, memory_of: MemoryOf) -> ScaledLayout:
    memory = memory_of(setup)
    transfers = traffic_of(setup, hardware.gpus_per_node)
    return ScaledLayout(
        strategy=strategy,
        gpus=setup.layout.gpus,
        layout=setup.layout,
        memory=memory,
        fits=memory.needed_bytes <= hardware.usable_bytes,
        largest_micro_batch=largest_micro_batch(setup, hardware.usable_bytes, memory_of),
        transfers=transfers,
        sent_bytes=sum(transfer.bytes for transfer in transfers),
        least_s=sum(least_seconds(transfer, hardware) for transfer in transfers),
    )
