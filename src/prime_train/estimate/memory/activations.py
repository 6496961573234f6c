"""Computes activation memory: tensors kept for the backward, a block during its recompute, logits and loss. Pure.

"Numbers" are elements of a tensor; bytes are numbers x bytes per number.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from prime_train.estimate.memory.bundled import PROGRAM, cast_numbers, selective_numbers
from prime_train.estimate.memory.coefficients import Coefficients
from prime_train.estimate.memory.sharding import QUANTIZED_BYTES
from prime_train.estimate.memory.train_setup import TrainSetup
from prime_train.estimate.values import Term

CHECKPOINTING = "arXiv 1604.06174; selective: arXiv 2205.05198, s. 5"
OPERATIONS = "saved tensors of the operations of a block, arXiv 2205.05198, s. 4.1"


# Numbers of the compute type per scaled output: the base's output, and the adapter's in fp32. PEFT, tuners/lora/dora.py
_DORA_NUMBERS = 3.0


_SCALED_BRANCHES = 2.0  # outputs of attention and MLP, which the gradients of LayerScale's gains need
_SCALED_FP32 = 3.0  # numbers of the residual stream, its gradient among them, that are fp32 beside those in bf16


class TokenWidths(NamedTuple):
    """Numbers per token of one block on one GPU. `visited`: experts per token; `expert_mlp`: their inner numbers."""

    hidden: float
    query: float
    kv: float
    mlp: float
    visited: float
    expert_mlp: float


def widths_of(setup: TrainSetup) -> TokenWidths:
    """The widths.

    Tensor parallelism splits heads, inner numbers and, as sequence parallelism, the residual stream. Source: arXiv
    2205.05198, s. 4.2.2.
    """
    shape, tensor = setup.shape, setup.layout.tensor
    visited = float(shape.experts_per_token) if shape.is_moe else 0.0
    return TokenWidths(
        hidden=shape.hidden_size / tensor,
        query=shape.heads * shape.head_dim / tensor,
        kv=2 * shape.kv_heads * shape.head_dim / tensor,
        mlp=(shape.shared_expert_mlp_size if shape.is_moe else shape.mlp_size) / tensor,
        visited=visited,
        expert_mlp=visited * shape.expert_mlp_size / tensor,
    )


def kept_per_layer(setup: TrainSetup, k: Coefficients) -> float:
    """Bytes per token that one layer keeps for the backward without checkpointing, residual stream included."""
    widths, compute = widths_of(setup), setup.numerics.compute
    mlp = k.kept_mlp if setup.shape.gated_mlp else k.kept_mlp / 2
    norms = widths.query + widths.kv / 2 if setup.shape.qk_norm else 0.0
    numbers = k.kept_hidden * widths.hidden + k.kept_query * widths.query + k.kept_kv * widths.kv + norms
    numbers += mlp * (widths.mlp + widths.expert_mlp) + 2 * widths.visited * widths.hidden
    if not setup.compiled:
        numbers += k.kept_eager * widths.hidden
    numbers += cast_numbers(setup, widths.hidden, norms)
    if setup.shape.encoder is not None:
        numbers += _SCALED_BRANCHES * widths.hidden
    if setup.adapter is not None and setup.adapter.kind == "lora":
        numbers += k.adapter_kept * widths.hidden
        numbers += _DORA_NUMBERS * setup.adapter.scaled_outputs / setup.layout.tensor
    elif setup.adapter is not None and setup.adapter.kind == "adapter_v2":  # scales the output of each matrix
        outputs = 2 * widths.hidden + widths.query + widths.kv + (2 if setup.shape.gated_mlp else 1) * widths.mlp
        numbers += k.scaled_kept * outputs
    if setup.quantization in QUANTIZED_BYTES:
        numbers += k.kept_quantized * (widths.mlp + widths.expert_mlp)
    return compute * numbers


def stream_terms(setup: TrainSetup, k: Coefficients) -> tuple[Term, ...]:
    """Full-width copies of the residual stream around a split matrix product. Source: arXiv 2205.05198, s. 4.2.2."""
    if setup.layout.tensor == 1:
        return ()
    each = k.tensor_gather * setup.numerics.compute * setup.shape.hidden_size
    formula = f"{setup.tokens} tokens x {each / 1024:.1f} KiB"
    return (Term("gathered residual stream", each * setup.tokens, formula, OPERATIONS),)


def layers_on_gpu(setup: TrainSetup) -> float:
    """Layers whose activations one GPU holds."""
    parts = setup.layout.pipeline * (setup.layout.shards if setup.layout.sharding == "device_map" else 1)
    return setup.shape.layers / parts


def saved_terms(
    setup: TrainSetup, k: Coefficients, layers: float, in_flight: int = 1, *, backward: bool = False
) -> tuple[Term, ...]:
    """Activations that `layers` layers keep at the end of the forward, for `in_flight` micro-batches of a pipeline.

    `backward`: in the backward of the blocks, where adapters of a gathered base keep gradients beside them.
    """
    tokens = setup.tokens * in_flight
    hidden = setup.shape.hidden_size / setup.layout.tensor
    stream = k.residual * setup.numerics.compute * hidden
    if setup.offload.activations:
        count = min(k.in_flight * setup.offload.in_flight / 5, layers)
        name, each = "offloaded residuals in flight", stream
    elif setup.checkpointing == "full":
        beside = backward and setup.adapter is not None and setup.layout.gathers
        name, count, each = "saved residuals", layers, stream * (k.residual_sharded if beside else 1.0)
        each *= 2.0 if setup.program == PROGRAM and setup.numerics.autocast else 1.0  # the stream is fp32
    else:
        name, count, each = "saved activations", layers, kept_per_layer(setup, k)
        if setup.checkpointing == "selective" and setup.program == PROGRAM:
            widths = widths_of(setup)
            each = selective_numbers(setup, widths.hidden, widths.query, widths.kv, widths.mlp)
        elif setup.checkpointing == "selective":
            each *= k.kept_selective
    other = 0.0
    if setup.checkpointing != "none" and setup.checkpoint_every > 1:
        other = count - math.ceil(count / setup.checkpoint_every)
        count -= other
    terms = [_layers_term(name, count, tokens, each)]
    if other:
        terms.append(_layers_term("saved activations of the other blocks", other, tokens, kept_per_layer(setup, k)))
    return tuple(terms)


def _layers_term(name: str, layers: float, tokens: int, each: float) -> Term:
    formula = f"{layers:.3g} layers x {tokens} tokens x {each / 1024:.1f} KiB"
    source = OPERATIONS if name.startswith("saved activations") else CHECKPOINTING
    return Term(name, layers * tokens * each, formula, source)


def block_terms(setup: TrainSetup, k: Coefficients) -> tuple[Term, ...]:
    """Memory of one block's backward: its recomputed activations, if they were dropped, and their gradients."""
    widths = widths_of(setup)
    if setup.checkpointing != "none" and setup.program == PROGRAM:
        each = kept_per_layer(setup, k)
        each += k.backward_block * setup.numerics.compute * (widths.hidden + widths.mlp + widths.expert_mlp)
        name = "recomputed block"
    elif setup.checkpointing == "full":
        each = k.block_hidden * widths.hidden + k.block_query * widths.query + k.block_kv * widths.kv
        each += k.block_mlp * widths.mlp + k.expert_hidden * widths.visited * widths.hidden
        each += k.expert_mlp * widths.expert_mlp
        if not setup.compiled:
            each += k.eager_hidden * widths.hidden + k.eager_mlp * widths.mlp
        name = "recomputed block"
    else:
        each = k.backward_block * setup.numerics.compute * (widths.hidden + widths.mlp + widths.expert_mlp)
        name = "gradients of a block's activations"
    if setup.shape.encoder is not None:  # the gradients of a gain: fp32 products with it and with what it scales
        each += 4.0 * (_SCALED_FP32 if setup.numerics.autocast else 1.0) * widths.hidden
    if setup.adapter is not None:
        each += k.adapter_hidden * widths.hidden + k.adapter_mlp * (widths.mlp + widths.expert_mlp)
        each += _DORA_NUMBERS * setup.numerics.compute * setup.adapter.scaled_outputs / setup.layout.tensor
    return (Term(name, each * setup.tokens, f"{setup.tokens} tokens x {each / 1024:.1f} KiB", OPERATIONS),)


FULL = "fp32 logits, log-softmax, its gradient and the logits' in the compute type"
IN_PLACE = "prime_train/trainer/model/decoder.py"
_LOGPROBS = 8.0  # bytes: a log-probability and a probability, or the logit that they are made from; all in fp32
CHUNKED = "Cut Your Losses, arXiv 2411.09009, s. 4: logits are made and dropped chunk by chunk"


def logits_terms(setup: TrainSetup, k: Coefficients) -> tuple[Term, ...]:
    """The terms of the head at its peak, which is the start of its backward."""
    tokens, vocab = setup.tokens, setup.shape.vocab_size / setup.layout.tensor
    width = setup.shape.hidden_size / setup.layout.tensor
    states = _product("hidden states of the head", tokens, width, k.head_hidden, FULL)
    match setup.head.kind:
        case "objective":  # clips.py
            return ()
        case "in_place":  # fp32 log-probabilities, overwritten by the gradient, and the logits in their own type
            logits = _product("logits and loss", tokens, vocab, k.in_place + setup.numerics.compute, IN_PLACE)
        case "in_chunks" | "logprobs":  # of a chunk; the gradients of all hidden states are kept
            rows = min(setup.head.chunk_tokens, tokens)
            each = _LOGPROBS if setup.head.kind == "logprobs" else k.in_place + setup.numerics.compute
            states = _product("hidden states of the head", tokens, width, 2 * setup.numerics.compute, CHUNKED)
            logits = _product("logits of a chunk", rows, vocab, each, CHUNKED)
        case "fused_loss":
            logits = _product("logits and loss", tokens, vocab, k.logit_fused, CHUNKED)
        case "full":
            each = k.logit_fp32 if setup.has_fp32_head else k.logit
            each = k.logit_compiled if setup.head.compiled else each
            logits = _product("logits and loss", tokens, vocab, each, FULL)
        case "vocab_chunked":
            columns = min(float(setup.head.chunk_vocab), vocab)
            logits = _product("logits of a chunk", tokens, columns, k.chunk_logit, CHUNKED)
        case "token_chunked":
            # those of the chunk itself are kept with those of all chunks
            each = k.logit_compiled - setup.numerics.compute if setup.head.compiled else k.logit
            chunk = _product("logits of a chunk", min(setup.head.chunk_tokens, tokens), vocab, each, CHUNKED)
            kept = _product("", tokens, vocab, k.chunks_kept, CHUNKED)
            logits = chunk._replace(bytes=chunk.bytes + kept.bytes, formula=f"{chunk.formula} + {kept.formula}")
        case "fused":
            logits = _product(
                "logits of a chunk", min(setup.head.chunk_tokens, tokens), vocab, setup.numerics.compute, CHUNKED
            )
        case "tiled":
            rows = min(setup.head.chunk_tokens, tokens)
            logits = _product("logits of a chunk", rows, vocab, k.tile_logit, CHUNKED)
    return states, logits


def _product(name: str, rows: float, columns: float, each: float, source: str) -> Term:
    return Term(name, each * rows * columns, f"{rows:g} x {columns:g} x {each:.1f} B", source)
