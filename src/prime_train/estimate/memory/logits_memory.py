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
    states = _product("hidden states of the head", tokens, width, k.head_hidden, FULL)
    match setup.head.kind:
        case "in_place":  # fp32 log-probabilities, overwritten by the gradient, and the logits in their own type
            logits = _product("logits and loss", tokens, vocab, 4 + setup.numerics.compute, IN_PLACE)
        case "full":
            logits = _product("logits and loss", tokens, vocab, k.logit, FULL)
        case "vocab_chunked":
            columns = min(float(setup.head.chunk_vocab), vocab)
            logits = _product("logits of a chunk", tokens, columns, k.chunk_logit, CHUNKED)
        case "token_chunked":
            chunk = _product("logits of a chunk", min(setup.head.chunk_tokens, tokens), vocab, k.logit, CHUNKED)
            kept = _product("", tokens, vocab, k.chunks_kept, CHUNKED)
            logits = chunk._replace(bytes=chunk.bytes + kept.bytes, formula=f"{chunk.formula} + {kept.formula}")
        case "tiled":
            rows = min(setup.head.chunk_tokens, tokens)
            logits = _product("logits of a chunk", rows, vocab, k.tile_logit, CHUNKED)
    return states, logits


def _product(name: str, rows: float, columns: float, each: float, source: str) -> Term:
    return Term(name, each * rows * columns, f"{rows:g} x {columns:g} x {each:.1f} B", source)
