"""Bytes that each GPU sends in one optimizer step, collective by collective, and the least time they take. Pure.

A ring over n GPUs sends (n-1)/n of a tensor to gather or to reduce-scatter it, and twice that to all-reduce it.
Source: Patarasuk and Yuan, Bandwidth optimal all-reduce, J. Parallel Distrib. Comput. 69 (2009), s. 3.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from prime_train.estimate.throughput_rates import links_of
from prime_train.estimate.train_setup import TrainSetup
from prime_train.estimate.values import Hardware

_ZERO = "ZeRO, arXiv 1910.02054, s. 7"
_FSDP = "PyTorch FSDP, arXiv 2304.11277, s. 3.2"
_TENSOR = "Megatron-LM, arXiv 1909.08053, s. 3"
_CONTEXT = "Ring Attention, arXiv 2310.01889, s. 3"
_EXPERTS = "GShard, arXiv 2006.16668, s. 3.2"


class Transfer(NamedTuple):
    """One kind of collective, over all its calls in one step.

    `bytes` is what one GPU sends. The group has `members` GPUs, `members_per_node` of them in one machine.
    """

    name: str
    bytes: float
    members: int
    members_per_node: int
    formula: str
    source: str

    @property
    def crosses_nodes(self) -> bool:
        return self.members > self.members_per_node


class _Group(NamedTuple):
    """GPUs that take part in one collective, `stride` apart."""

    members: int
    stride: int

    def members_per_node(self, gpus_per_node: int) -> int:
        return max(1, min(self.members, gpus_per_node // self.stride))


def gathered(size_bytes: float, members: int) -> float:
    """Bytes that each member sends to gather a tensor of that size, or to reduce-scatter it."""
    return size_bytes * (members - 1) / members


def reduced(size_bytes: float, members: int) -> float:
    """Bytes that each member sends to all-reduce a tensor of that size."""
    return 2 * gathered(size_bytes, members)


def traffic_of(setup: TrainSetup, gpus_per_node: int = 8) -> tuple[Transfer, ...]:
    """What one GPU sends in one step. GPUs are numbered so that tensor-parallel ones are neighbours, then shards,
    then replicas; () on a single GPU."""
    transfers = (
        *_of_shards(setup, gpus_per_node),
        *_of_replicas(setup, gpus_per_node),
        *_of_tensor(setup, gpus_per_node),
        *_of_context(setup, gpus_per_node),
        *_of_experts(setup, gpus_per_node),
    )
    return tuple(transfer for transfer in transfers if transfer.bytes > 0)


def least_seconds(transfer: Transfer, hardware: Hardware) -> float:
    """The time at the full rate of the links: a lower bound, of which a part hides behind compute.

    Rings that fill a machine use all its network ports together, so that the rate of a GPU is that of its share of
    the machine, at most that of the links inside it.
    """
    links = links_of(hardware)
    rate = links.node
    if transfer.crosses_nodes:
        rate = min(links.node, links.network * transfer.members_per_node)
    return transfer.bytes / rate


def _weight_numbers(setup: TrainSetup) -> float:
    """Numbers of weights that one tensor- and pipeline-parallel rank has to do with."""
    return setup.shape.parameters / (setup.layout.tensor * setup.layout.pipeline)


def _gradient_numbers(setup: TrainSetup) -> float:
    if setup.adapter is None:
        return _weight_numbers(setup)
    return setup.adapter.parameters / (setup.layout.tensor * setup.layout.pipeline)


def _transfer(name: str, size_bytes: float, group: _Group, gpus_per_node: int, told: tuple[str, str]) -> Transfer:
    return Transfer(name, size_bytes, group.members, group.members_per_node(gpus_per_node), *told)


def _of_shards(setup: TrainSetup, gpus_per_node: int) -> Iterator[Transfer]:
    """FSDP and ZeRO-3 gather the weights for every forward, and for every backward where they were dropped, and
    reduce-scatter every micro-batch's gradients; ZeRO-1 and -2 do it once in a step."""
    layout, numerics = setup.layout, setup.numerics
    group = _Group(layout.shards, layout.tensor)
    if layout.shards == 1 or layout.sharding in ("none", "ddp", "device_map"):
        return
    weights = _weight_numbers(setup) * numerics.compute
    gradients = _gradient_numbers(setup) * numerics.reduce
    once = layout.sharding in ("zero1", "zero2")
    times = 1 if once else setup.micro_batches
    passes = times * (2 if layout.reshards and not once else 1)
    source = _ZERO if layout.sharding.startswith("zero") else _FSDP
    ring = f"({group.members}-1)/{group.members}"
    yield _transfer(
        "weight all-gather",
        passes * gathered(weights, group.members),
        group,
        gpus_per_node,
        (f"{passes} x {ring} x {weights:.4g} B", source),
    )
    yield _transfer(
        "gradient reduce-scatter",
        times * gathered(gradients, group.members),
        group,
        gpus_per_node,
        (f"{times} x {ring} x {gradients:.4g} B", source),
    )


def _of_replicas(setup: TrainSetup, gpus_per_node: int) -> Iterator[Transfer]:
    """Copies all-reduce gradients: DDP all of them once in a step, HSDP each GPU its shard in every micro-batch."""
    layout = setup.layout
    if layout.replicas == 1:
        return
    group = _Group(layout.replicas, layout.shards * layout.tensor * layout.pipeline)
    sharded = layout.shards > 1
    times = setup.micro_batches if sharded else 1
    width = setup.numerics.reduce if sharded else setup.numerics.gradient
    size = _gradient_numbers(setup) * width / layout.shards
    yield _transfer(
        "gradient all-reduce",
        times * reduced(size, group.members),
        group,
        gpus_per_node,
        (f"{times} x 2 x ({group.members}-1)/{group.members} x {size:.4g} B", _FSDP if sharded else _ZERO),
    )


def _of_tensor(setup: TrainSetup, gpus_per_node: int) -> Iterator[Transfer]:
    """Two all-reduces of the residual stream in each layer's forward, two in its backward, two more if recomputed."""
    layout = setup.layout
    if layout.tensor == 1:
        return
    passes = 6 if setup.checkpointing == "full" else 4
    size = setup.tokens * setup.shape.hidden_size * setup.numerics.compute
    calls = passes * setup.micro_batches * setup.shape.layers // layout.pipeline
    formula = f"{calls} x 2 x ({layout.tensor}-1)/{layout.tensor} x {setup.tokens} tokens x {setup.shape.hidden_size}"
    yield _transfer(
        "activation all-reduce",
        calls * reduced(size, layout.tensor),
        _Group(layout.tensor, 1),
        gpus_per_node,
        (formula, _TENSOR),
    )


def _of_context(setup: TrainSetup, gpus_per_node: int) -> Iterator[Transfer]:
    """Keys and values go round the ring in the forward; they and their gradients in the backward."""
    layout, shape = setup.layout, setup.shape
    if layout.context == 1:
        return
    size = 2 * setup.tokens * shape.kv_heads * shape.head_dim * setup.numerics.compute / layout.tensor
    rounds = 4 if setup.checkpointing == "full" else 3
    layers = shape.layers - shape.linear_layers
    sent = rounds * setup.micro_batches * layers * (layout.context - 1) * size
    formula = f"{rounds} x {layers} layers x ({layout.context}-1) x {size:.4g} B of keys and values"
    yield _transfer("key-value ring", sent, _Group(layout.context, layout.tensor), gpus_per_node, (formula, _CONTEXT))


def _of_experts(setup: TrainSetup, gpus_per_node: int) -> Iterator[Transfer]:
    """Tokens go to their experts and back, in the forward and in the backward, and once more if recomputed."""
    layout, shape = setup.layout, setup.shape
    if layout.expert == 1 or not shape.is_moe:
        return
    passes = 6 if setup.checkpointing == "full" else 4
    layers = shape.layers - shape.dense_layers
    rows = setup.tokens * shape.experts_per_token
    size = rows * shape.hidden_size * setup.numerics.compute
    sent = passes * setup.micro_batches * layers * gathered(size, layout.expert)
    formula = f"{passes} x {layers} layers x ({layout.expert}-1)/{layout.expert} x {rows} rows x {shape.hidden_size}"
    yield _transfer("token all-to-all", sent, _Group(layout.expert, layout.tensor), gpus_per_node, (formula, _EXPERTS))
