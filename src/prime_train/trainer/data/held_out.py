"""The held-out text as micro-batches: the same ones at each evaluation and after each restart."""

from __future__ import annotations

import numpy as np

from prime_train.spec import RunSpec
from prime_train.trainer.data import order
from prime_train.trainer.data.batch import Batch, to_batch
from prime_train.trainer.data.corpus import open_corpora
from prime_train.trainer.data.packing import fill, pack
from prime_train.trainer.tokenizer import Tokenizer


def held_out_batches(run: RunSpec, tokenizer: Tokenizer) -> list[Batch]:
    """Up to eval.batches micro-batches, drawn from all sources; fewer, and the last one smaller, if text is short."""
    corpora = open_corpora(run, tokenizer)
    documents_in_all = sum(len(corpus.held_out) for corpus in corpora)
    parts = []
    for number, corpus in enumerate(corpora):
        share = -(-run.data.pack_buffer_docs * len(corpus.held_out) // documents_in_all)
        shuffled = order.generator(run.run.seed, order.HELD_OUT, number).permutation(corpus.held_out)
        if share:
            parts.append(corpus.gather(shuffled[:share]))
    tokens = np.concatenate([tokens for tokens, _ in parts])
    lengths = np.concatenate([lengths for _, lengths in parts])
    rows = fill(pack(lengths, run.data.ctx_tokens), tokens, lengths, run.data.ctx_tokens, tokenizer.eos_id)
    wanted = min(run.eval.batches * run.batch.micro_batch, len(rows))
    chosen = rows.take(order.generator(run.run.seed, order.HELD_OUT, order.ROWS).permutation(len(rows))[:wanted])
    size = run.batch.micro_batch
    return [to_batch(chosen.slice(start, min(start + size, wanted))) for start in range(0, wanted, size)]
