"""Defines everything that the memory of a training depends on. Values only; reads no config."""

from __future__ import annotations

from typing import Literal, NamedTuple

from prime_train.estimate.model.shape import ModelShape
from prime_train.estimate.values import Term
from prime_train.spec.audio import Audio

Sharding = Literal["none", "ddp", "fsdp", "zero1", "zero2", "zero3", "device_map"]
Checkpointing = Literal["none", "selective", "full"]
HeadKind = Literal[
    "full",
    "in_place",
    "in_chunks",
    "logprobs",
    "vocab_chunked",
    "token_chunked",
    "tiled",
    "fused",
    "fused_loss",
    "objective",
]
AdapterKind = Literal["lora", "adapter", "adapter_v2"]


class ModelLayout(NamedTuple):
    """How the model is distributed. `shards` GPUs hold one copy of the weights; there are `replicas` copies.

    `context` of the shards split one sequence, `expert` of them the experts of a block. `tensor` splits every matrix,
    `pipeline` the layers.
    """

    sharding: Sharding = "none"
    shards: int = 1
    replicas: int = 1
    tensor: int = 1
    context: int = 1
    expert: int = 1
    pipeline: int = 1
    in_flight: int = 1  # micro-batches whose activations the first stage of a pipeline holds at once
    reshards: bool = True  # a block's gathered weights are dropped after its forward
    ends_apart: bool = False  # embedding and head are gathered on their own, and dropped before the blocks' backward

    @property
    def gpus(self) -> int:
        return self.shards * self.replicas * self.tensor * self.pipeline

    @property
    def gathers(self) -> bool:
        """Whether the weights of a block are gathered from shards before their use."""
        return self.sharding in ("fsdp", "zero3")

    @property
    def weight_parts(self) -> int:
        """Number of parts into which one copy of the weights is split."""
        sharded = self.shards if self.sharding in ("fsdp", "zero3", "device_map") else 1
        return sharded * self.tensor * self.pipeline

    @property
    def state_parts(self) -> int:
        """Number of parts into which the states of the optimizer are split. DDP has one shard."""
        return self.shards * self.tensor * self.pipeline


class Numerics(NamedTuple):
    """Bytes of one number of each kind. `state` is both moments of the optimizer together."""

    weight: float = 4.0  # trained weights
    base: float = 4.0  # frozen weights that are not quantised
    compute: float = 2.0
    gradient: float = 4.0
    reduce: float = 4.0  # gradients while they are summed over GPUs
    state: float = 8.0
    master: float = 0.0  # a second copy of the trained weights beside `weight`
    quantized_ends: float = 2.0  # embedding and head beside a quantised base
    quantizes_head: bool = False  # the head is quantised too
    autocast: bool = False  # weights are cast to `compute` at use; the casts are kept until the step ends


class Head(NamedTuple):
    """How the logits are computed.

    `in_place`: the gradient reuses a buffer; `in_chunks`: so it does, at most `chunk_tokens` rows at a time;
    `logprobs`: log-probabilities and entropies of as many rows, which the backward computes again; `tiled`: tokens x
    vocabulary.

    `fused_loss`: all logits, and their gradient in one kernel without a log-softmax in fp32. `fused`: loss and gradient
    are computed from the hidden states, at most `chunk_tokens` rows at a time. `objective`: there are no logits of
    tokens, but what an encoder learns on clips.
    """

    kind: HeadKind = "full"
    chunk_tokens: int = 0
    chunk_vocab: int = 0
    compiled: bool = False  # one compiled function computes the loss, so nothing is kept in fp32


class AdapterSize(NamedTuple):
    """What is trained beside a frozen base. `parameters` counts one slot; every slot has weights and gradients."""

    kind: AdapterKind
    rank: int
    parameters: int
    slots: int = 1
    trains_embeddings: bool = False
    scaled_outputs: int = 0  # outputs of one layer whose magnitude DoRA trains


class Offload(NamedTuple):
    """What is kept in the host's memory instead of the GPU's."""

    optimizer: bool = False
    parameters: bool = False
    activations: bool = False
    in_flight: int = 5  # most residual streams that are copied at once; prime-rl's default


class TrainSetup(NamedTuple):
    """One training. `tokens`: tokens of one micro-batch on one GPU, after the split by context parallelism."""

    program: str  # selects the coefficients: "bundled", "prime-rl", "torchtitan", "hf", ...
    era: str  # date of the program's version, such as "2026-01"; "" if versions do not matter
    shape: ModelShape
    layout: ModelLayout
    numerics: Numerics
    head: Head
    tokens: int
    ctx_tokens: int
    micro_batches: int = 1  # per optimizer step and GPU; from the second on, gradients exist from the start
    checkpointing: Checkpointing = "none"
    checkpoint_every: int = 1  # only every N-th block is checkpointed
    reduces_last: bool = False  # gradients of the whole model are kept until the last micro-batch of a step
    optimizer: str = "adamw"
    optimizer_in_backward: bool = False
    fused_optimizer: bool = False
    offload: Offload = Offload()
    adapter: AdapterSize | None = None
    quantization: str = ""  # of the frozen base: "nf4", "nf4-dq", "int4", "int8"; "float8": of matrix products
    compiled: bool = False
    attention: str = ""
    beside: tuple[Term, ...] = ()  # held on the GPU during all of a step: a reference model, an engine of its own
    packed: bool = False  # sequences hold several documents, which do not attend to each other
    audio: Audio | None = None  # of an encoder on clips

    @property
    def trained(self) -> int:
        """Trained numbers of the whole model, or of one adapter slot."""
        return self.adapter.parameters if self.adapter else self.shape.parameters

    @property
    def has_fp32_head(self) -> bool:
        """Whether the head beside a quantised base is in fp32, although the blocks compute in fewer bits."""
        return bool(self.quantization) and self.numerics.quantized_ends > self.numerics.compute

    @property
    def method(self) -> str:
        """The family of an interval: "full", "adapter", or "quantized" for an adapter of such a base."""
        if self.adapter is None:
            return "full"
        return "quantized" if self.quantization and self.quantization != "float8" else "adapter"


COMPILATION = frozenset({"compilation", "no compilation"})


def features_of(setup: TrainSetup) -> frozenset[str]:
    """What of a training decides which terms it has, as texts; sizes are not in it."""
    layout, offload = setup.layout, setup.offload
    has = {
        f"{setup.method} training": True,
        f"a head of kind {setup.head.kind}": True,
        "a compiled loss": setup.head.compiled,
        f"{setup.checkpointing} checkpointing": True,
        f"sharding {layout.sharding}": True,
        "compilation" if setup.compiled else "no compilation": True,
        f"a base in {setup.quantization.split('-')[0]}": bool(setup.quantization),
        "tensor parallelism": layout.tensor > 1,
        "context parallelism": layout.context > 1,
        "expert parallelism": layout.expert > 1,
        "pipeline parallelism": layout.pipeline > 1,
        "experts": setup.shape.is_moe,
        "an optimizer in the backward": setup.optimizer_in_backward,
        "the optimizer on the host": offload.optimizer,
        "weights on the host": offload.parameters,
        "activations on the host": offload.activations,
        **{f"a {term.name}": True for term in setup.beside},
    }
    return frozenset(name for name, present in has.items() if present)
