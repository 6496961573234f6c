"""Counts memory that only the bundled trainer needs. Pure; nothing is fitted.

Counted from prime_train/trainer and compared with its live tensors by bench/live_tensors.py. Three things differ from
other trainers: autocast casts the input of every matrix product, in fp32 the attention over packed documents is not
one operation, and the gradients of embedding and head are not sharded.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from prime_train.estimate.memory.sharding import Groups
from prime_train.estimate.memory.train_setup import TrainSetup
from prime_train.estimate.values import Term
from prime_train.spec.decoder_size import DENSE_BELOW

PROGRAM = "bundled"
_AUTOCAST = "torch.autocast: a cast per matrix product of an activation, one per weight and step"
_MASK = "torch.nn.functional.scaled_dot_product_attention: a bool mask becomes one of the compute type in each call"
_JOINED = "prime_train/trainer/model/attention.py: a call for each piece, whose result is kept beside the joined ones"
_LOSS = "prime_train/trainer/model/decoder.py: head and embedding, which a tied model has as one"
_CHUNKS = "prime_train/trainer/model/head_loss.py"
_CASTS = 5  # inputs of query, key, value, gate and up: the outputs of two norms, cast once per matrix
_NORM_OUTPUTS = 2  # of these five, those that a trainer without autocast keeps too


class BundledTerms(NamedTuple):
    """The terms of each phase of a step. `embedding` is the end of the backward, which only this trainer has."""

    head: tuple[Term, ...] = ()
    first: tuple[Term, ...] = ()
    last: tuple[Term, ...] = ()
    embedding: tuple[Term, ...] = ()


def bundled_terms(setup: TrainSetup, groups: Groups, early: tuple[Term, ...]) -> BundledTerms:
    """The terms; none for another trainer. `early`: gradients that exist before the backward starts."""
    if setup.program != PROGRAM:
        return BundledTerms()
    layers = float(setup.shape.layers)
    casts = _cast_weights(setup, groups, layers)
    sharded = setup.layout.gathers
    kept = layers
    if setup.checkpointing != "none":  # a block that is recomputed holds its casts and its mask only then
        kept = layers - math.ceil(layers / setup.checkpoint_every)
        casts = _cast_weights(setup, groups, min(layers, kept + 1))
    chunked = (_chunked_gradient(setup, groups),) if setup.head.kind in ("in_chunks", "logprobs") else ()
    return BundledTerms(
        head=(*_cast_weights(setup, groups, layers, head=True), *_stream(setup), *_packed(setup, kept), *chunked),
        first=(*casts, *_packed(setup, min(layers, kept + 1)), *(() if sharded else (_head_gradient(groups),))),
        last=(*_cast_weights(setup, groups, 1.0), *_packed(setup, 1.0)),
        embedding=() if sharded else _embedding_gradients(groups, has_early=bool(early)),
    )


def cast_numbers(setup: TrainSetup, hidden: float, normed: float) -> float:
    """Extra numbers per token and layer, in units of the compute type, that are kept because of autocast.

    The residual stream and the input of a norm stay in fp32, which is two units each. A norm of queries and keys
    (`normed` numbers) has a gain of another type, so it is not fused and keeps its input and its output in fp32.
    """
    if not setup.numerics.autocast:
        return 0.0
    casts = 0.0 if setup.compiled or setup.program != PROGRAM else _CASTS - _NORM_OUTPUTS
    return (2 + casts) * hidden + (0.0 if setup.compiled else 3 * normed)


def _cast_weights(setup: TrainSetup, groups: Groups, layers: float, *, head: bool = False) -> tuple[Term, ...]:
    """Casts of the weights of `layers` layers, kept until their backward has used them."""
    if not setup.numerics.autocast:
        return ()
    numbers = layers * groups.block + (groups.root if head else 0.0)
    each = setup.numerics.compute
    return (Term("cast weights", numbers * each, f"{numbers / 1e6:.1f} M x {each:g} B", _AUTOCAST),)


def _stream(setup: TrainSetup) -> tuple[Term, ...]:
    """The output of the last block, which the last norm keeps in fp32."""
    size = 4.0 * setup.tokens * setup.shape.hidden_size
    return (Term("input of the last norm", size, f"{setup.tokens} x {setup.shape.hidden_size} x 4 B", _LOSS),)


def _packed(setup: TrainSetup, layers: float) -> tuple[Term, ...]:
    """What attention over several documents in a sequence keeps in fp32, which FlashAttention does not have."""
    if not setup.packed or setup.numerics.compute < 4.0:
        return ()
    if setup.ctx_tokens < DENSE_BELOW:
        formula = f"{layers:g} layers x {setup.tokens} x {setup.ctx_tokens} x 4 B"
        return (Term("attention masks", 4.0 * layers * setup.tokens * setup.ctx_tokens, formula, _MASK),)
    width = setup.shape.heads * setup.shape.head_dim
    formula = f"{layers:g} layers x {setup.tokens} x {width} x 4 B"
    return (Term("joined attention outputs", 4.0 * layers * setup.tokens * width, formula, _JOINED),)


def selective_numbers(setup: TrainSetup, hidden: float, query: float, kv: float, mlp: float) -> float:
    """Bytes per token and layer that selective recomputation keeps: the results of products and of attention.

    Source: prime_train/trainer/model/block_changes.py. The residual stream, the input of a block, is fp32 in autocast.
    """
    products = query + kv + hidden + 2 * mlp + hidden
    stream = 2.0 * hidden if setup.numerics.autocast else hidden
    return setup.numerics.compute * (products + query + stream)


def _chunked_gradient(setup: TrainSetup, groups: Groups) -> Term:
    """The gradient of the head, which a loss in chunks adds up in fp32, and one chunk's part of it.

    That part exists when the log-probabilities of the chunk, 4 B each, are gone: only what it has beyond them counts.
    """
    part = setup.numerics.compute * groups.root if setup.numerics.compute < 4 else 0.0
    log_probs = 4.0 * min(setup.head.chunk_tokens, setup.tokens) * setup.shape.vocab_size
    size = 4.0 * groups.root + max(0.0, part - log_probs)
    return Term("gradient of the head", size, f"{groups.root / 1e6:.1f} M x {size / groups.root:.3g} B", _CHUNKS)


def _head_gradient(groups: Groups) -> Term:
    """The gradient of the head: the first of a backward, kept until the gradient of the embedding is there."""
    return Term("gradient of the head", 4.0 * groups.root, f"{groups.root / 1e6:.1f} M x 4 B", _LOSS)


def _embedding_gradients(groups: Groups, *, has_early: bool) -> tuple[Term, ...]:
    """Gradients of the embedding beside all others: of head, of lookup and, if the weights are tied, of their sum."""
    tied = not groups.head
    copies = (3.0 if tied else 1.0) - (0.0 if has_early else 1.0)
    if not copies:
        return ()
    formula = f"{copies:g} x {groups.embedding / 1e6:.1f} M x 4 B"
    return (Term("gradients of the embedding", copies * 4.0 * groups.embedding, formula, _LOSS),)
