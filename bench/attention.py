"""Measures attention over packed documents, forward and backward, beside the same with a mask of T x T.

    python bench/attention.py [--rounds 5]

The document lengths are lognormal (mean 903 tokens, as web text), packed by the trainer's own packing. Both sides take
turns, so a busy moment of the machine affects both, and CPU-seconds of one thread are counted. The time to plan, once
in a micro-batch and not once in a layer, is a row of its own.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from record import emit, write
from torch import Tensor

from prime_train.trainer.batch import MicroBatch
from prime_train.trainer.data.packing import fill, pack, to_batch
from prime_train.trainer.model.attention import Plan, attend, block_causal_mask, plan_attention

HEADS, KV_HEADS, HEAD_DIM = 6, 6, 64  # the model of bench/trainer.py
ROWS = {512: 8, 1024: 4, 2048: 2, 8192: 1}  # row length -> rows of a micro-batch
DOCUMENTS = 1024  # of a buffer that is packed together, as by default


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # idle threads would count as CPU time
    write("attention", [row for ctx_tokens in ROWS for row in measure(ctx_tokens, arguments.rounds)])


def packed_batch(ctx_tokens: int) -> MicroBatch:
    """A micro-batch of packed documents: rows drawn from a buffer, as a run has them."""
    generator = np.random.default_rng(0)
    lengths = np.clip(generator.lognormal(6.2, 1.1, DOCUMENTS), 8, 60_000).astype(np.int64)
    rows = fill(pack(lengths, ctx_tokens), np.zeros(lengths.sum(), np.int64), lengths, ctx_tokens, padding=0)
    chosen = generator.permutation(len(rows))
    several = np.diff(rows.first)[chosen] > 2  # a row of one document needs no plan: the mask would gain nothing
    return to_batch(rows.take(chosen[several][: ROWS[ctx_tokens]]))


def measure(ctx_tokens: int, rounds: int) -> list[dict[str, Any]]:
    batch = packed_batch(ctx_tokens)
    plans: dict[str, Callable[[], Plan]] = {
        "mask": lambda: block_causal_mask(batch.documents),
        "pieces": lambda: plan_attention(batch.documents, batch.labels),
    }
    shape = (*batch.tokens.shape, HEADS, HEAD_DIM)
    generator = torch.Generator().manual_seed(0)
    query, gradient = (torch.randn(shape, generator=generator) for _ in range(2))
    key, value = (torch.randn(*shape[:2], KV_HEADS, HEAD_DIM, generator=generator) for _ in range(2))
    inputs = [tensor.requires_grad_() for tensor in (query, key, value)]
    planning: dict[str, list[float]] = {name: [] for name in plans}
    attending: dict[str, list[float]] = {name: [] for name in plans}
    results: dict[str, tuple[Tensor, ...]] = {}
    for turn in range(rounds + 1):
        for name, make_plan in plans.items():
            began = time.process_time()
            plan = make_plan()
            planned = time.process_time()
            out = attend(query, key, value, plan)
            gradients = torch.autograd.grad(out, inputs, gradient)
            ended = time.process_time()
            results[name] = (out.detach(), *gradients)
            if turn > 0:  # the first is a warm-up
                planning[name].append(planned - began)
                attending[name].append(ended - planned)
    torch.testing.assert_close(results["pieces"], results["mask"], rtol=0, atol=1e-4)
    pieces = int((batch.positions == 0).sum())
    shared = {
        "rows": len(batch.documents),
        "pieces": pieces,
        "mean_piece_tokens": round(batch.tokens.numel() / pieces),
        "heads": HEADS,
        "head_dim": HEAD_DIM,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }
    rows = []
    for name in plans:
        extra: dict[str, Any] = {"unit": "CPU s"}
        if name == "pieces":
            by_round = [mask / own for mask, own in zip(attending["mask"], attending["pieces"], strict=True)]
            extra |= {"times_as_fast": round(statistics.median(by_round), 2), "least": round(min(by_round), 2)}
        rows.append(emit(f"attention, {ctx_tokens} positions: {name}", attending[name], **extra, **shared))
        rows.append(emit(f"attention, {ctx_tokens} positions: plan of {name}", planning[name], unit="CPU s"))
    return rows


if __name__ == "__main__":
    main()
