"""Reckons what the bundled trainer keeps beyond the operations that every trainer has: counted, not fitted. Pure.

Counted from prime_train/trainer and held to its live tensors by bench/live_tensors.py. Three things are its own:
autocast casts the input of each matrix product anew, packed documents need a mask, and the gradients of embedding
and head are whole. Letters: T tokens of a micro-batch, C width of the residual stream, V vocabulary.
"""

from __future__ import annotations

from typing import NamedTuple

from prime_train.estimate.sharding import Groups
from prime_train.estimate.train_setup import TrainSetup
from prime_train.estimate.values import Term

PROGRAM = "bundled"
_AUTOCAST = "torch.autocast: a cast per matrix product of an activation, one per weight and step"
_MASK = "torch.nn.functional.scaled_dot_product_attention: a bool mask becomes one of the compute type in each call"
_LOSS = "prime_train/trainer/model.py: head and embedding, which a tied model has as one"
_CASTS = 5  # inputs of query, key, value, gate, up: two norms' outputs, cast for each of them
_NORM_OUTPUTS = 2  # of these five, what is counted of a trainer without autocast


class Own(NamedTuple):
    """The terms by moment of a step. `embedding` is the end of the backward, a moment that other trainers pass over."""

    head: tuple[Term, ...] = ()
    first: tuple[Term, ...] = ()
    last: tuple[Term, ...] = ()
    embedding: tuple[Term, ...] = ()


def own_terms(setup: TrainSetup, groups: Groups, early: tuple[Term, ...]) -> Own:
    """The terms; none for another trainer. `early` are the gradients that lie there before the backward."""
    if setup.program != PROGRAM:
        return Own()
    layers = float(setup.shape.layers)
    casts = _cast_weights(setup, groups, layers)
    ends = _head_gradient(setup, groups)
    return Own(
        head=(*_cast_weights(setup, groups, layers, head=True), *_stream(setup), *_mask(setup, layers)),
        first=(*casts, *_mask(setup, layers), *ends),
        last=(*_cast_weights(setup, groups, 1.0), *_mask(setup, 1.0)),
        embedding=_embedding_gradients(setup, groups, has_early=bool(early)),
    )


def cast_numbers(setup: TrainSetup, hidden: float, normed: float) -> float:
    """Numbers of the compute type per token and layer that autocast makes it keep beside the counted ones.

    The stream and a norm's input stay in fp32, twice the bytes of the type; a norm of queries and keys (`normed`
    numbers) meets a gain of another type, is not fused, and keeps its input and what it normalised, both in fp32.
    """
    if not setup.numerics.autocast:
        return 0.0
    casts = 0.0 if setup.compiled or setup.program != PROGRAM else _CASTS - _NORM_OUTPUTS
    return (2 + casts) * hidden + (0.0 if setup.compiled else 3 * normed)


def _cast_weights(setup: TrainSetup, groups: Groups, layers: float, *, head: bool = False) -> tuple[Term, ...]:
    """Casts of the weights of so many layers, kept until their backward has used them."""
    if not setup.numerics.autocast:
        return ()
    numbers = layers * groups.block + (groups.root if head else 0.0)
    each = setup.numerics.compute
    return (Term("cast weights", numbers * each, f"{numbers / 1e6:.1f} M x {each:g} B", _AUTOCAST),)


def _stream(setup: TrainSetup) -> tuple[Term, ...]:
    """The residual stream that leaves the last block, which belongs to no layer: the last norm keeps it in fp32."""
    size = 4.0 * setup.tokens * setup.shape.hidden_size
    return (Term("input of the last norm", size, f"{setup.tokens} x {setup.shape.hidden_size} x 4 B", _LOSS),)


def _mask(setup: TrainSetup, layers: float) -> tuple[Term, ...]:
    """The masks of so many layers, where rows hold several documents. A row of one document needs none."""
    if not setup.packed:
        return ()
    each = setup.tokens * setup.ctx_tokens * setup.numerics.compute
    formula = f"{layers:g} layers x {setup.tokens} x {setup.ctx_tokens} x {setup.numerics.compute:g} B"
    return (Term("attention masks", layers * each, formula, _MASK),)


def _whole(setup: TrainSetup) -> bool:
    return setup.layout.sharding in ("none", "ddp")


def _head_gradient(setup: TrainSetup, groups: Groups) -> tuple[Term, ...]:
    """The head's gradient, the first that a backward makes: it waits for the embedding's, or to be added."""
    if not _whole(setup):
        return ()
    return (Term("gradient of the head", 4.0 * groups.root, f"{groups.root / 1e6:.1f} M x 4 B", _LOSS),)


def _embedding_gradients(setup: TrainSetup, groups: Groups, *, has_early: bool) -> tuple[Term, ...]:
    """Gradients of the embedding beside the sum of all: head's, lookup's and the sum of both where they are one."""
    if not _whole(setup):
        return ()
    tied = not groups.head
    copies = (3.0 if tied else 1.0) - (0.0 if has_early else 1.0)
    if not copies:
        return ()
    formula = f"{copies:g} x {groups.embedding / 1e6:.1f} M x 4 B"
    return (Term("gradients of the embedding", copies * 4.0 * groups.embedding, formula, _LOSS),)
