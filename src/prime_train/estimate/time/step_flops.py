"""Counts the work of one GPU in an optimizer step: FLOPs, bytes moved, visits to layers. Computes no time."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

from prime_train.estimate.memory.train_setup import Checkpointing, HeadKind
from prime_train.estimate.model.shape import ModelShape
from prime_train.estimate.time.token_flops import (
    active_expert_parameters,
    adapter_features,
    attention_flops,
    linear_parameters,
    mean_span,
    moe_layers,
)

Kernel = Literal["fa2", "fa3", "fa4", "triton", "sdpa", "eager"]
Objective = Literal["pretrain", "sft", "rl"]
ExpertLoop = Literal["", "perhaps", "yes"]  # whether a block's experts run one after the other
Precision = Literal["bf16", "fp8", "fp8_rowwise", "mxfp8"]  # of the inputs of linear layers; "fp8" scales whole tensors

_BF16, _FP32 = 2, 4  # bytes
# Bytes read and written per logit, over forward and backward. "full": the fp32 copy of the logits, its log-softmax and
# their gradients; "in_place" keeps one buffer. Chunked over the vocabulary (prime-rl's FusedOutputLinear, eager): each
# operation of the online log-sum-exp, of the entropy and of the recomputed softmax reads and writes an fp32 chunk.
# Chunked over tokens only (torchtune, Liger): a log-softmax and its gradient; "in_chunks" casts that gradient, too.
# "logprobs" (trainer/model/head_loss.py, counted likewise): a log-softmax, the entropy, and in the backward both again.
# Source: prime-rl src/prime_rl/trainer/models/layers/lm_head.py@049a80afe, counted operation by operation.
_HEAD_BYTES_PER_LOGIT: dict[HeadKind, int] = {"full": 60, "in_place": 30, "in_chunks": 34, "logprobs": 110,
                                              "vocab_chunked": 120, "token_chunked": 30, "tiled": 120,
                                              "fused_loss": 30, "fused": 30, "objective": 0}  # fmt: skip
# Matrix products of the head. One that is chunked over the vocabulary, or that gives log-probabilities, recomputes its
# logits in the backward.
_HEAD_PRODUCTS: dict[HeadKind, int] = {"full": 3, "in_place": 3, "in_chunks": 3, "logprobs": 4,
                                       "vocab_chunked": 4, "token_chunked": 3, "tiled": 4, "fused_loss": 3,
                                       "fused": 3, "objective": 0}  # fmt: skip
# Bytes that a low-rank adapter moves per input and output feature of its linear layer, over forward, recompute and
# backward: the input is read three times, two gradients are added to it, the output is written and added.
_ADAPTER_BYTES_PER_FEATURE = 17
# Bytes per hidden number of a token sent to an expert: a bf16 row is read and written on the way there and on the way
# back, in forward, recompute and backward; the backward reads the gradient once more on each way.
_DISPATCH_BYTES = 20
_ADAM_BYTES_PER_PARAMETER = 30  # reads weight, gradient, m, v in fp32, writes three of them; plus the gradient norm
# Bytes per hidden, query and key, and gate number of one layer's forward, outside the matrix products. Fused: each
# norm, rotation and gate reads and writes bf16 once. Eager: two norms of 36 bytes and two sums, a rotation on an fp32
# copy, an activation and a product; torchtitan's rows with and without compile differ by exactly that.
_FUSED_BYTES, _EAGER_BYTES = (12, 4, 6), (84, 30, 10)
# Bytes per query and key number of a norm over each head, run operation by operation on an fp32 copy: cast, square,
# mean, scale, cast back, multiply. Source: transformers Qwen3RMSNorm; no compiler fuses it over a head of 128.
_QK_NORM_BYTES = 36
_SELECTIVE_SHARE = 0.5  # torchtitan's selective op checkpointing saves every second matrix product


class StepSetup(NamedTuple):
    """What the time of one optimizer step depends on. Tokens are those of one data-parallel rank.

    `micro_batch_tokens` may hold several sequences of `ctx_tokens`. The product of `dp_shard`, `dp_replicate`, `tp`,
    `cp` and `pp` is the number of GPUs. `generation` is the month of the trainer's code ("2026-05"), "" if not known.
    """

    shape: ModelShape
    ctx_tokens: int
    micro_batch_tokens: int
    micro_batches: int = 1
    dp_shard: int = 1
    dp_replicate: int = 1
    tp: int = 1
    cp: int = 1
    pp: int = 1
    ep: int = 1
    trainer: str = "bundled"
    generation: str = ""
    objective: Objective = "pretrain"
    recompute: Checkpointing = "full"
    reshard: bool = True  # the weights of a block are dropped after its forward and gathered again for its backward
    activation_offload: bool = False
    optimizer_offload: bool = False  # optimizer states are kept in the host's memory between steps
    parameter_offload: bool = False  # weights too: copied in for each gather, gradients are copied out
    lora_rank: int = 0
    head: HeadKind = "full"
    kernel: Kernel = "sdpa"
    fused: bool = True  # norms, rotary embedding and gates run as fused kernels, compiled or hand-written
    precision: Precision = "bf16"
    stages_per_gpu: int = 1  # of an interleaved pipeline
    expert_loop: ExpertLoop = ""
    async_tp: bool = False  # the exchange of tensor parallelism runs beside the matrix products, piece by piece

    @property
    def gpus(self) -> int:
        return self.dp_shard * self.dp_replicate * self.tp * self.cp * self.pp

    @property
    def tokens_per_step(self) -> int:
        """Tokens of all ranks in one optimizer step."""
        return self.micro_batch_tokens * self.micro_batches * self.dp_shard * self.dp_replicate


class Flops(NamedTuple):
    """Floating-point operations of forward and backward (`once`), and those recomputed by checkpointing (`again`)."""

    once: float
    again: float = 0.0

    def times(self, factor: float) -> Flops:
        return Flops(self.once * factor, self.again * factor)


class StepWork(NamedTuple):
    """Work of one GPU in one optimizer step: FLOPs, bytes, or visits (one layer, one micro-batch)."""

    linear: Flops
    head_flops: float
    experts: Flops
    attention: Flops
    elementwise_bytes: float
    head_bytes: float
    adapter_bytes: float
    dispatch_bytes: float
    weight_bytes: float
    optimizer_bytes: float
    offload_bytes: float
    node_bytes: float  # sent by this GPU to GPUs of its own machine, without tensor and context parallelism
    network_bytes: float  # sent by this GPU to other machines, likewise
    tensor_bytes: float  # activations sent by tensor parallelism; the next matrix product waits for them
    context_bytes: float  # keys and values sent by context parallelism
    network_visits: float  # layer visits with traffic between machines, times log2(machines)
    layer_visits: float
    moe_visits: float
    adapter_visits: float
    expert_visits: float
    loop_visits: float  # to experts that run one after the other
    model_flops: float  # forward and backward without recompute, as MFU counts them


def work_of(setup: StepSetup, gpus_per_node: int = 8) -> StepWork:
    """The work of one optimizer step on one GPU."""
    shape, lora = setup.shape, setup.lora_rank > 0
    tokens = setup.micro_batch_tokens * setup.micro_batches / setup.cp
    layers = 1 / (setup.tp * setup.pp)  # share of all layers' work on one GPU
    outside = 0.0 if shape.encoder is None else shape.encoder.flops_per_token
    linear = _passes(setup, tokens * (2 * linear_parameters(shape) + outside), lora).times(layers)
    experts = _passes(setup, 2 * tokens * active_expert_parameters(shape), lora).times(layers)
    forward = attention_flops(shape, setup.ctx_tokens) * tokens * layers
    # The backward recomputes the scores: 5 matrix products against 2. Source: FlashAttention-2, arXiv 2307.08691, s. 4.
    attention = Flops(3.5 * forward, forward if setup.recompute == "full" else 0.0)
    # A pipeline gives the stage with the head fewer layers.
    head = 2 * tokens * shape.hidden_size * shape.vocab_size / (setup.tp * setup.pp)
    visits = setup.micro_batches * shape.layers / setup.pp
    moe_visits = setup.micro_batches * moe_layers(shape) / setup.pp
    dispatched = tokens * moe_layers(shape) * shape.experts_per_token
    node_bytes, network_bytes = _exchanged_bytes(setup, gpus_per_node)
    return StepWork(
        linear=linear,
        head_flops=_HEAD_PRODUCTS[setup.head] * head,
        experts=experts,
        attention=attention,
        elementwise_bytes=tokens * _elementwise_bytes(setup) * layers,
        head_bytes=tokens * shape.vocab_size * _HEAD_BYTES_PER_LOGIT[setup.head] / (setup.tp * setup.pp),
        adapter_bytes=tokens * adapter_features(shape) * _ADAPTER_BYTES_PER_FEATURE * layers if lora else 0.0,
        dispatch_bytes=dispatched * shape.hidden_size * _DISPATCH_BYTES / setup.pp,
        weight_bytes=setup.micro_batches * _weight_bytes(setup),
        optimizer_bytes=0.0 if lora else shape.parameters / _shards(setup) * _ADAM_BYTES_PER_PARAMETER,
        offload_bytes=_offload_bytes(setup, tokens),
        node_bytes=node_bytes,
        network_bytes=network_bytes,
        tensor_bytes=_tensor_bytes(setup, tokens),
        context_bytes=_context_bytes(setup, tokens),
        network_visits=visits * math.log2(max(1.0, setup.gpus / gpus_per_node)) if network_bytes else 0.0,
        layer_visits=visits,
        moe_visits=moe_visits,
        adapter_visits=visits if lora else 0.0,
        expert_visits=moe_visits * shape.experts / setup.ep if lora else 0.0,
        loop_visits=moe_visits * shape.experts / setup.ep if setup.expert_loop == "yes" else 0.0,
        model_flops=_model_flops(setup, tokens, layers),
    )


def _passes(setup: StepSetup, forward: float, lora: bool) -> Flops:
    """Forward, gradient of the input, gradient of the weights (not for a frozen base), and the recompute."""
    again = {"none": 0.0, "selective": _SELECTIVE_SHARE, "full": 1.0}[setup.recompute]
    return Flops((2 if lora else 3) * forward, again * forward)


def _elementwise_bytes(setup: StepSetup) -> float:
    """Bytes per token that norms, rotary embedding, gates and residual sums read and write, over all layers."""
    shape = setup.shape
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    sparse = moe_layers(shape)
    mlp = (shape.layers - sparse) * shape.mlp_size
    mlp += sparse * (shape.shared_expert_mlp_size + shape.experts_per_token * shape.expert_mlp_size)
    hidden, heads, gates = _FUSED_BYTES if setup.fused else _EAGER_BYTES
    forward = shape.layers * (hidden * shape.hidden_size + heads * (queries + keys)) + float(gates * mlp)
    if shape.qk_norm:
        forward += shape.layers * _QK_NORM_BYTES * (queries + keys)
    return forward * {"none": 3, "selective": 3.5, "full": 4}[setup.recompute]


def _shards(setup: StepSetup) -> int:
    return setup.dp_shard * setup.tp * setup.cp * setup.pp


def _weight_bytes(setup: StepSetup) -> float:
    """Bytes per micro-batch to cast the fp32 shard to bf16, to read the gathered weights, and for gradients."""
    parameters = setup.shape.parameters / (setup.tp * setup.pp)
    gathered = parameters / setup.ep if setup.shape.experts else parameters
    casting = (_FP32 + _BF16) * setup.shape.parameters / _shards(setup)
    reading = (3 if setup.recompute == "full" else 2) * _BF16 * gathered
    # The gradient of a weight is written in bf16, cast, and added up in fp32.
    gradients = 0.0 if setup.lora_rank else (2 * _BF16 + 4 * _FP32) * gathered
    return casting + reading + gradients


def _offload_bytes(setup: StepSetup, tokens: float) -> float:
    """Bytes between GPU and host in a step, in the direction that carries more."""
    share = setup.shape.parameters / _shards(setup)
    activations = tokens * setup.shape.layers * setup.shape.hidden_size * _BF16 / setup.pp
    states = 0.0 if setup.lora_rank else 2 * _FP32 * share
    weights = share * (setup.micro_batches * 2 * _FP32 + (0 if setup.lora_rank else _FP32))
    parts = (
        (setup.activation_offload, activations),
        (setup.optimizer_offload, states),
        (setup.parameter_offload, weights),
    )
    return sum(size for is_offloaded, size in parts if is_offloaded)


def _exchanged_bytes(setup: StepSetup, gpus_per_node: int) -> tuple[float, float]:
    """Bytes that one GPU sends in a step, within its machine and to other machines.

    Sharded weights are gathered for the forward and, if dropped, for the backward; gradients are reduced in fp32:
    (n-1)/n of the total each. Source: ZeRO, arXiv 1910.02054, s. 7. A ring all-reduce sends 2(n-1)/n. A stage of a
    pipeline does both once per step. Expert parallelism sends each token to its experts and back.
    """
    shape, lora = setup.shape, setup.lora_rank > 0
    shards = setup.dp_shard * setup.cp
    parameters = shape.parameters / (setup.tp * setup.pp)
    gathered = _BF16 * (2 if setup.reshard else 1) + (0 if lora else _FP32)
    sharding = (1 if setup.pp > 1 else setup.micro_batches) * parameters * gathered * (shards - 1) / shards
    replicas = setup.dp_replicate
    replication = 0.0 if lora else 2 * _FP32 * parameters / shards * (replicas - 1) / replicas
    tokens = setup.micro_batch_tokens * setup.micro_batches / setup.cp
    hidden = _BF16 * tokens * shape.hidden_size / setup.pp
    inner = hidden * moe_layers(shape) * shape.experts_per_token * 4 * (setup.ep - 1) / setup.ep
    spans_nodes = shards * setup.tp > gpus_per_node
    to_network = (sharding if spans_nodes else 0.0) + (replication if setup.gpus > gpus_per_node else 0.0)
    to_network += inner if setup.tp * setup.cp * setup.ep > gpus_per_node else 0.0
    return sharding + replication + inner - to_network, to_network


def _tensor_bytes(setup: StepSetup, tokens: float) -> float:
    """Activations that one GPU sends: those of attention and MLP are reduced in every pass, by a ring.

    Source: Megatron-LM, arXiv 1909.08053, s. 3.
    """
    passes = 3 if setup.recompute == "full" else 2
    hidden = _BF16 * tokens * setup.shape.layers / setup.pp * setup.shape.hidden_size
    return hidden * passes * 2 * 2 * (setup.tp - 1) / setup.tp


def _context_bytes(setup: StepSetup, tokens: float) -> float:
    """Keys and values that one GPU passes on, of the heads that tensor parallelism leaves it.

    Source: Ring Attention, arXiv 2310.01889, s. 3.
    """
    shape, passes = setup.shape, 3 if setup.recompute == "full" else 2
    size = _BF16 * tokens * shape.layers / setup.pp * 2 * shape.kv_heads * shape.head_dim / setup.tp
    return size * passes * (setup.cp - 1)


def _model_flops(setup: StepSetup, tokens: float, layers: float) -> float:
    """FLOPs of forward and backward. Source: PaLM, arXiv 2204.02311, appendix B."""
    shape = setup.shape
    if shape.encoder is not None:
        products = 2 * linear_parameters(shape) + shape.encoder.flops_per_token
        return 3 * tokens * layers * (products + attention_flops(shape, setup.ctx_tokens))
    parameters = linear_parameters(shape) + active_expert_parameters(shape)
    head = shape.hidden_size * shape.vocab_size
    span = max(0, shape.layers - shape.sliding_layers - shape.linear_layers) * setup.ctx_tokens / 2
    span += shape.sliding_layers * mean_span(setup.ctx_tokens, shape.sliding_window)
    scores = 4 * shape.heads * shape.head_dim * span
    return tokens * layers * ((4 if setup.lora_rank else 6) * (parameters + head) + 3 * scores)
