"""Gives torch.nn.attention.varlen, which has kernels for GPUs alone, slow ones for the CPU: a loop over its definition.

With them a Device with `flash_attention` can be used on a CPU, and what the trainer plans for a GPU is computed.
Importing this module registers them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import varlen

from prime_train.trainer.device import Device

GPU = Device(torch.device("cpu"), "a GPU of the tests", "bf16", None, flash_attention=True)


def varlen_of_2_11(share: Callable[[Tensor, int], Tensor]) -> Callable[..., Tensor]:
    """`varlen_attn` as in torch 2.11, without a flag for shared heads, on a kernel that reads them as `share` does.

    `share` takes keys or values, (M, kv_heads, D), and the number of heads of the queries for each of theirs.
    """

    def varlen_attn(
        query: Tensor, key: Tensor, value: Tensor, *sizes: Any, scale: float, window_size: tuple[int, int]
    ) -> Tensor:
        times = query.shape[1] // key.shape[1]
        if times > 1:
            key, value = share(key, times), share(value, times)
        out = varlen.varlen_attn(query, key, value, *sizes, scale=scale, window_size=window_size)
        assert isinstance(out, Tensor)
        return out

    return varlen_attn


def _forward(query: Tensor, key: Tensor, value: Tensor, ends: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    """The output, the log-sum-exp of each row of scores, and the state of a generator that nothing uses."""
    others, longest, _, is_causal, scale, *_ = rest
    assert torch.equal(ends, others)
    assert is_causal
    assert query.shape[-1] % 8 == 0  # the GPU's kernel has no other
    assert query.dtype == key.dtype == value.dtype
    out, sums = torch.empty_like(query), torch.empty(query.shape[1::-1], dtype=torch.float32)
    for piece in _pieces(ends, longest, len(query)):
        scores = _scores(query[piece], key[piece], scale or query.shape[-1] ** -0.5)
        sums[:, piece] = scores.logsumexp(-1)
        mixed = torch.einsum("hqk,khd->qhd", scores.softmax(-1), _repeat(value[piece], query))
        out[piece] = mixed.to(out.dtype)
    return out, sums, torch.zeros(2, dtype=torch.uint64)


def _backward(
    gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, sums: Tensor, ends: Tensor, *rest: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """Source: FlashAttention-2, arXiv 2307.08691, algorithm 2, without its tiles."""
    _, longest, _, _, _, scale, *_ = rest
    scale = scale or query.shape[-1] ** -0.5
    of_query, of_key, of_value = (torch.empty_like(tensor) for tensor in (query, key, value))
    for piece in _pieces(ends, longest, len(query)):
        probabilities = (_scores(query[piece], key[piece], scale) - sums[:, piece, None]).exp()  # (heads, L, L)
        of_out, keys = gradient[piece].float(), _repeat(key[piece], query)  # (L, heads, D)
        of_probabilities = torch.einsum("qhd,khd->hqk", of_out, _repeat(value[piece], query))
        inner = (of_out * out[piece].float()).sum(-1).T[..., None]  # (heads, L, 1)
        of_scores = probabilities * (of_probabilities - inner) * scale
        of_query[piece] = torch.einsum("hqk,khd->qhd", of_scores, keys).to(query.dtype)
        of_keys = torch.einsum("hqk,qhd->khd", of_scores, query[piece].float())
        of_values = torch.einsum("hqk,qhd->khd", probabilities, of_out)
        of_key[piece] = _add_up(of_keys, key)
        of_value[piece] = _add_up(of_values, value)
    return of_query, of_key, of_value


def _pieces(ends: Tensor, longest: int, positions: int) -> Iterator[slice]:
    """What the GPU's kernel relies on: the pieces follow each other, cover everything, and none is too long."""
    assert ends.dtype == torch.int32
    bounds = ends.tolist()
    assert (bounds[0], bounds[-1]) == (0, positions)
    for start, end in pairwise(bounds):
        assert 0 <= end - start <= longest
        if end > start:  # those without positions only fill up
            yield slice(start, end)


def _scores(query: Tensor, key: Tensor, scale: float) -> Tensor:
    """(heads, L, L) fp32, -inf where a key is behind the query."""
    scores = torch.einsum("qhd,khd->hqk", query.float(), _repeat(key, query)) * scale
    return scores.masked_fill(torch.ones(scores.shape[1:]).triu(1).bool(), -math.inf)


def _repeat(shared: Tensor, query: Tensor) -> Tensor:
    """A key or value for each head of the query, (L, heads, D) fp32."""
    return shared.repeat_interleave(query.shape[1] // shared.shape[1], 1).float()


def _add_up(of_heads: Tensor, shared: Tensor) -> Tensor:
    """The gradient of a key or value: the sum over the heads that share it. (L, kv_heads, D)."""
    positions, _, width = of_heads.shape
    return of_heads.reshape(positions, shared.shape[1], -1, width).sum(2).to(shared.dtype)


varlen._varlen_attn.register_kernel("cpu")(_forward)
varlen._varlen_attn_backward.register_kernel("cpu")(_backward)
