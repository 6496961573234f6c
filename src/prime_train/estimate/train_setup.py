"""Everything the memory of a training depends on, resolved to numbers: values only. Reads no config and no formula."""

from __future__ import annotations

from typing import Literal, NamedTuple

from prime_train.estimate.shape import ModelShape

Sharding = Literal["none", "ddp", "fsdp", "zero1", "zero2", "zero3", "device_map"]
Checkpointing = Literal["none", "selective", "full"]
HeadKind = Literal["full", "in_place", "vocab_chunked", "token_chunked", "tiled"]
AdapterKind = Literal["lora", "adapter", "adapter_v2"]


class Layout(NamedTuple):
    """How the model is laid over GPUs. `shards` GPUs hold one copy of the weights, `replicas` copies there are.

    `context` of the shards split one sequence, `tensor` splits every matrix, `pipeline` the layers; `expert` of the
    shards split the experts of a block.
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

    @property
    def gpus(self) -> int:
        return self.shards * self.replicas * self.tensor * self.pipeline

    @property
    def split(self) -> int:
        """Parts that the weights of all layers are cut into, whoever cuts them."""
        return self.shards * self.tensor * self.pipeline


class Numerics(NamedTuple):
    """Bytes of one number of each kind. `state` is both moments of the optimizer together."""

    weight: float = 4.0  # of a weight that is trained
    base: float = 4.0  # of a weight that is frozen and not quantised
    compute: float = 2.0
    gradient: float = 4.0
    reduce: float = 4.0  # in which gradients are summed over GPUs
    state: float = 8.0
    master: float = 0.0  # a second copy of the trained weights beside `weight`
    quantized_ends: float = 2.0  # of embedding and head beside a quantised base
    autocast: bool = False  # weights are cast to `compute` at use and the casts kept until the step ends


class Head(NamedTuple):
    """How the logits are made. `in_place`: one fp32 buffer that becomes the gradient; `tiled`: tokens x vocabulary."""

    kind: HeadKind = "full"
    chunk_tokens: int = 0
    chunk_vocab: int = 0


class Adapter(NamedTuple):
    """What is trained beside a frozen base. `parameters` are of one slot; `slots` have weights and gradients."""

    kind: AdapterKind
    rank: int
    parameters: int
    slots: int = 1
    trains_embeddings: bool = False


class Offload(NamedTuple):
    """What lives in the host's memory instead of the GPU's."""

    optimizer: bool = False
    parameters: bool = False
    activations: bool = False
    in_flight: int = 5  # most layers' residual streams on their way at once; prime-rl's default


class TrainSetup(NamedTuple):
    """One training, resolved. `tokens` is what one GPU holds of one micro-batch, context parallelism counted."""

    program: str  # "bundled", "prime-rl", "torchtitan", "hf", ...: whose coefficients hold
    era: str  # "2026-01": the version of the program, by its date; "" where versions are not told apart
    shape: ModelShape
    layout: Layout
    numerics: Numerics
    head: Head
    tokens: int
    ctx_tokens: int
    micro_batches: int = 1  # in one optimizer step, on one GPU: beyond the first, gradients lie there from the start
    checkpointing: Checkpointing = "none"
    optimizer: str = "adamw"
    optimizer_in_backward: bool = False
    fused_optimizer: bool = False
    offload: Offload = Offload()
    adapter: Adapter | None = None
    quantization: str = ""  # of the frozen base: "nf4", "nf4-dq", "int4", "int8"; "float8": matrix products
    compiled: bool = False
    attention: str = ""
    packed: bool = False  # several documents in a sequence, kept apart by a mask of all pairs of its positions
    assumptions: tuple[str, ...] = ()
