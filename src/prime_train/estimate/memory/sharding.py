"""Counts adapters and groups of weights, and computes the memory of gathers and reductions. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from prime_train.estimate.memory.coefficients import Coefficients
from prime_train.estimate.memory.train_setup import TrainSetup
from prime_train.estimate.model.shape import ModelShape
from prime_train.estimate.values import Term

FSDP2 = "torch.distributed.fsdp.fully_shard; SimpleFSDP, arXiv 2411.00284, s. 3"
ZERO = "ZeRO, arXiv 1910.02054, s. 5"


class Groups(NamedTuple):
    """Parameter counts of groups that are gathered together. `head` is 0 if it is tied to the embedding."""

    embedding: float
    head: float
    block: float  # the largest block
    experts: float  # the part of `block` that is routed experts
    total: float

    @property
    def root(self) -> float:
        """The matrix that computes the logits."""
        return self.head or self.embedding


def groups_of(shape: ModelShape) -> Groups:
    """The groups of a model. The largest block is the average block, plus the experts in a mixture of experts.

    An encoder has its objective as the head, and what is before its blocks as the embedding.
    """
    if shape.encoder is not None:
        ends, objective, _ = shape.encoder
        block = (shape.parameters - ends - objective) / max(1, shape.layers)
        return Groups(float(ends), float(max(1, objective)), block, 0.0, shape.parameters)
    embedding = float(shape.vocab_size * shape.hidden_size)
    head = 0.0 if shape.tie_embeddings else embedding
    outside = shape.vision_parameters + shape.lookup_parameters
    blocks = max(0.0, shape.parameters - outside - embedding - head - shape.hidden_size)
    if not shape.is_moe:
        return Groups(embedding, head, blocks / max(1, shape.layers), 0.0, shape.parameters)
    matrices = 3 if shape.gated_mlp else 2
    experts = float(shape.experts * matrices * shape.hidden_size * shape.expert_mlp_size)
    expert_layers = max(1, shape.layers - shape.dense_layers)
    rest = max(0.0, blocks - expert_layers * experts) / max(1, shape.layers)
    return Groups(embedding, head, rest + experts, experts, shape.parameters)


def block_gather_terms(setup: TrainSetup, groups: Groups, k: Coefficients) -> tuple[Term, ...]:
    """The gathered weights of blocks, beside their shards, in the compute type."""
    layout = setup.layout
    if not setup.layout.gathers:
        return ()
    numbers = (groups.block - groups.experts) / layout.tensor + groups.experts / layout.tensor / layout.expert
    held = setup.shape.layers / layout.pipeline
    blocks = min(k.gather if layout.shards > 1 else k.gather_alone, held) if layout.reshards else held
    each = QUANTIZED_BYTES.get(setup.quantization, setup.numerics.compute)
    formula = f"{blocks:.2f} blocks x {numbers / 1e6:.1f} M x {each:g} B"
    return (Term("block gather", blocks * each * numbers, formula, FSDP2),)


def root_gather_terms(setup: TrainSetup, groups: Groups, k: Coefficients) -> tuple[Term, ...]:
    """The gathered head and embedding, beside their shards, in the compute type."""
    if not setup.layout.gathers:
        return ()
    compute, tensor = setup.numerics.compute, setup.layout.tensor
    copies = k.root_gather if setup.layout.shards > 1 else k.root_gather_alone
    size = copies * groups.root * compute / tensor
    if groups.head and setup.layout.shards > 1:
        size += k.embedding_gather * groups.embedding * compute / tensor
    formula = f"{copies:.2f} x {groups.root / 1e6:.1f} M x {compute:g} B / {tensor} (tensor parallel)"
    return (Term("embedding and head gather", size, formula, FSDP2),)


def block_reduction_terms(setup: TrainSetup, groups: Groups, k: Coefficients) -> tuple[Term, ...]:
    """The full gradient of one block before and during its reduction, in the compute type and the reduce type."""
    numerics, trained = setup.numerics, trained_block_numbers(setup, groups)
    if not setup.layout.gathers or trained <= 0:
        return ()
    if setup.layout.pipeline > 1:  # full gradients are summed over the micro-batches and sharded at the end of the step
        layers = setup.shape.layers / setup.layout.pipeline
        formula = f"{layers:g} blocks x {trained / 1e6:.1f} M x {numerics.reduce:g} B"
        return (Term("whole gradients of a stage", layers * trained * numerics.reduce, formula, FSDP2),)
    if setup.reduces_last and setup.micro_batches > 1:
        formula = f"{setup.shape.layers} blocks x {trained / 1e6:.1f} M x {numerics.reduce:g} B"
        return (Term("whole gradients", setup.shape.layers * trained * numerics.reduce, formula, FSDP2),)
    name = "gradient of a block and its reduction"
    each = k.block_gradient * numerics.compute + k.reduce * numerics.reduce
    kinds = f"{k.block_gradient:.2f} x {numerics.compute:g} B + {k.reduce:.2f} x {numerics.reduce:g} B"
    formula = f"{trained / 1e6:.1f} M x ({kinds})"
    return (Term(name, trained * each, formula, FSDP2),)


def trained_block_numbers(setup: TrainSetup, groups: Groups) -> float:
    """Trained numbers of one gathered block; with expert parallelism only this GPU's experts."""
    layout = setup.layout
    if setup.adapter is not None:
        return setup.adapter.parameters * setup.adapter.slots / max(1, setup.shape.layers) / layout.tensor
    return ((groups.block - groups.experts) + groups.experts / layout.expert) / layout.tensor


def root_gradient_terms(setup: TrainSetup, groups: Groups, k: Coefficients) -> tuple[Term, ...]:
    """The full gradient of the head, if it is trained and sharded."""
    if setup.adapter is not None or not setup.layout.gathers:
        return ()
    size = k.root_gradient * groups.root / setup.layout.tensor
    return (Term("gradient of the head", size, f"{groups.root / 1e6:.1f} M x {k.root_gradient:.2f} B", FSDP2),)


def load_copy_terms(setup: TrainSetup, groups: Groups, k: Coefficients) -> tuple[Term, ...]:
    """The full model that a loader leaves on each GPU beside the shard."""
    if setup.layout.shards == 1 or not k.whole_copy:
        return ()
    each = setup.numerics.base if setup.adapter else setup.numerics.weight
    size = k.whole_copy * groups.total * each
    return (Term("whole model at load", size, f"{k.whole_copy:.2f} x {groups.total / 1e9:.2f} B x {each:g} B", ZERO),)


def bucket_terms(setup: TrainSetup, k: Coefficients) -> tuple[Term, ...]:
    """Flat communication buffers of ZeRO. DDP needs none, because its gradients are views of its buckets."""
    if not k.bucket_bytes or setup.layout.sharding not in ("zero1", "zero2", "zero3"):
        return ()
    return (Term("communication buckets", k.bucket_bytes, "reduce and gather buckets", ZERO),)


ALL_LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "experts")
_QKV, _MLP = ("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj", "down_proj")
_ALIASES = {
    "q": ("q_proj",), "k": ("k_proj",), "v": ("v_proj",), "o": ("o_proj",), "output_proj": ("o_proj",),
    "attn_qvo": ("q_proj", "v_proj", "o_proj"),
    "c_attn": _QKV, "qkv_proj": _QKV, "query_key_value": _QKV, "w_pack": _QKV,
    "mlp": _MLP, "w1": ("gate_proj",), "w2": ("up_proj",), "w3": ("up_proj",), "c_proj": ("o_proj", "down_proj"),
    "all": ALL_LINEAR, "all-linear": ALL_LINEAR,
}  # fmt: skip

# Bytes per number. nf4: 4 bits and an fp32 scale for 64 numbers, with double quantisation 0.127 bits for it (QLoRA,
# arXiv 2305.14314, s. 3). int4, int8: groups of 128 with a 16-bit scale and a 4-bit zero (GPTQ, arXiv 2210.17323).
QUANTIZED_BYTES = {"nf4": 4.5 / 8, "nf4-dq": 4.127 / 8, "int4": 4.16 / 8, "int8": 8.16 / 8}


def lora_parameters(shape: ModelShape, rank: int, targets: Iterable[str] = ALL_LINEAR) -> int:
    """Parameters of one adapter: rank x (inputs + outputs) per adapted matrix. Source: LoRA, arXiv 2106.09685, s. 4.

    `targets` may use module names of other projects (`c_attn`, `w1`, "all"); an unknown name adds nothing.
    """
    wanted = {name for target in targets for name in _ALIASES.get(target.lower(), (target.lower(),))}
    hidden = shape.hidden_size
    query, key = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    attention = {"q_proj": hidden + query, "k_proj": hidden + key, "v_proj": hidden + key, "o_proj": query + hidden}
    in_mlp = [name for name in ("gate_proj", "up_proj", "down_proj") if name in wanted]
    if not shape.gated_mlp:
        in_mlp = [name for name in in_mlp if name != "gate_proj"] or in_mlp[:1]
    dense_layers = shape.dense_layers if shape.is_moe else shape.layers
    expert_layers = shape.layers - dense_layers
    sums = shape.layers * sum(size for name, size in attention.items() if name in wanted)
    sums += (hidden + shape.vocab_size) * ("lm_head" in wanted)
    sums += dense_layers * len(in_mlp) * (hidden + shape.mlp_size)
    if expert_layers:
        if shape.shared_expert_mlp_size:
            sums += expert_layers * len(in_mlp) * (hidden + shape.shared_expert_mlp_size)
        if "experts" in wanted:
            sums += expert_layers * shape.experts * 3 * (hidden + shape.expert_mlp_size)
    return rank * sums


def adapted_outputs(shape: ModelShape, targets: Iterable[str]) -> int:
    """The outputs of the adapted matrices of one dense layer together."""
    wanted = {name for target in targets for name in _ALIASES.get(target.lower(), (target.lower(),))}
    key = shape.kv_heads * shape.head_dim
    outputs = {"q_proj": shape.heads * shape.head_dim, "k_proj": key, "v_proj": key, "o_proj": shape.hidden_size}
    outputs |= {"gate_proj": shape.mlp_size, "up_proj": shape.mlp_size, "down_proj": shape.hidden_size}
    return sum(size for name, size in outputs.items() if name in wanted)


def quantized_bytes(shape: ModelShape, quantization: str, end_bytes: float = 2.0, *, head: bool = False) -> float:
    """Bytes of a frozen base.

    Block matrices are quantised, and an own head if `head`; the other ends, which are embedding and head, take
    `end_bytes` per number.
    """
    ends = shape.vocab_size * shape.hidden_size * (1 if shape.tie_embeddings or head else 2)
    return (shape.parameters - ends) * QUANTIZED_BYTES[quantization] + ends * end_bytes
