"""Builds micro-batches of held-out text: the same at each evaluation and after each restart."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from prime_train.errors import UserError
from prime_train.spec import RunSpec
from prime_train.trainer.data import order
from prime_train.trainer.data.batch import Batch, to_batch
from prime_train.trainer.data.corpus import Corpus, open_corpora
from prime_train.trainer.data.packing import fill, pack
from prime_train.trainer.tokenizer import Tokenizer

DOCUMENTS_AT_ONCE = 1024


def held_out_batches(run: RunSpec, tokenizer: Tokenizer) -> list[Batch]:
    """Up to eval.batches micro-batches, from all sources in proportion to their held-out documents.

    With less held-out text, fewer micro-batches, and fewer sequences in the last one. UserError where there is none.
    """
    wanted = run.eval.batches * run.batch.micro_batch
    tokens, lengths = _held_out_tokens(run, open_corpora(run, tokenizer), wanted * run.data.ctx_tokens)
    if not len(tokens):
        raise UserError(
            what="the held-out documents have no text",
            where="eval.held_out_ratio",
            why="they are all blank, so the loss cannot be measured",
            fix="raise eval.held_out_ratio, choose another run.seed, or remove the blank documents",
        )
    rows = fill(pack(lengths, run.data.ctx_tokens), tokens, lengths, run.data.ctx_tokens, tokenizer.eos_id)
    chosen = rows.take(order.generator(run.run.seed, order.HELD_OUT, order.ROWS).permutation(len(rows))[:wanted])
    size = run.batch.micro_batch
    return [to_batch(chosen.slice(start, min(start + size, len(chosen)))) for start in range(0, len(chosen), size)]


def _held_out_tokens(
    run: RunSpec, corpora: tuple[Corpus, ...], wanted_tokens: int
) -> tuple[NDArray[np.integer], NDArray[np.int64]]:
    """At least `wanted_tokens`, or all tokens, from many documents, so that no single one dominates the loss."""
    documents = np.concatenate([corpus.held_out for corpus in corpora])
    source = np.repeat(np.arange(len(corpora)), [len(corpus.held_out) for corpus in corpora])
    shuffled = order.generator(run.run.seed, order.HELD_OUT).permutation(len(documents))
    parts: list[tuple[NDArray[np.integer], NDArray[np.int64]]] = []
    gathered_tokens = 0
    for start in range(0, len(shuffled), DOCUMENTS_AT_ONCE):
        chosen = shuffled[start : start + DOCUMENTS_AT_ONCE]
        for number, corpus in enumerate(corpora):
            mine = documents[chosen[source[chosen] == number]]
            if len(mine):
                parts.append(corpus.gather(mine))
                gathered_tokens += len(parts[-1][0])
        if gathered_tokens >= wanted_tokens:
            break
    return np.concatenate([tokens for tokens, _ in parts]), np.concatenate([lengths for _, lengths in parts])
