"""Computes the memory of logits and loss: full, in place, or chunked by tokens, vocabulary or both. Pure."""

from __future__ import annotations

from prime_train.estimate.memory.coefficients import Coefficients
from prime_train.estimate.memory.train_setup import TrainSetup
from prime_train.estimate.values import Term

FULL = "fp32 logits, log-softmax, its gradient and the logits' in the compute type"
IN_PLACE = "prime_train/trainer/model.py"
CHUNKED = "Cut Your Losses, arXiv 2411.09009, s. 4: logits are made and dropped chunk by chunk"


def logits_terms(setup: TrainSetup, k: Coefficients) -> tuple[Term, ...]:
    """The terms of the head at its peak, which is the start of its backward."""
    tokens, vocab = setup.tokens, setup.shape.vocab_size / setup.layout.tensor
    width = setup.shape.hidden_size / setup.layout.tensor
    states = Term(
        "hidden states of the head", k.head_hidden * tokens * width, _each(tokens, width, k.head_hidden), FULL
    )
    match setup.head.kind:
        case "in_place":  # fp32 log-probabilities, overwritten by the gradient, and the logits in their own type
            each = 4 + setup.numerics.compute
            return (states, Term("logits and loss", each * tokens * vocab, _each(tokens, vocab, each), IN_PLACE))
        case "full":
            size = k.logit * tokens * vocab
            return (states, Term("logits and loss", size, _each(tokens, vocab, k.logit), FULL))
        case "vocab_chunked":
            columns = min(float(setup.head.chunk_vocab), vocab)
            size = k.chunk_logit * tokens * columns
            return (states, Term("logits of a chunk", size, _each(tokens, columns, k.chunk_logit), CHUNKED))
        case "token_chunked":
            rows = min(setup.head.chunk_tokens, tokens)
            size = k.logit * rows * vocab + k.chunks_kept * tokens * vocab
            formula = f"{_each(rows, vocab, k.logit)} + {_each(tokens, vocab, k.chunks_kept)}"
            return (states, Term("logits of a chunk", size, formula, CHUNKED))
        case "tiled":
            rows = min(setup.head.chunk_tokens, tokens)
            size = k.tile_logit * rows * vocab
            return (states, Term("logits of a chunk", size, _each(rows, vocab, k.tile_logit), CHUNKED))


def _each(rows: float, columns: float, each: float) -> str:
    return f"{rows:g} x {columns:g} x {each:.1f} B"
