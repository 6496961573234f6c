"""Causal attention of packed rows: plans where pieces begin, and attends within them. Reads no file.

A piece is what attends to itself alone: a document in a row, the padding of a row, or a rollout with its prompt. Only
the boundaries of the pieces are planned. A tensor of T x T exists only below DENSE_BELOW positions, and not with
FlashAttention.
Letters: B rows, T positions, N pieces, M positions of all pieces, L positions of a block, D width of a head.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn

from prime_train.spec.decoder_size import DENSE_BELOW
from prime_train.trainer.batch import IGNORED
from prime_train.trainer.device import Device, copy_to_device

# Pieces that together are no longer than this share a call with a mask of their own. Measured with 6 and 12 heads of
# 64 on two cores (torch 2.13): a token of a block costs the same from 32 to 192 positions, 1.3 times that at 256.
_BLOCK_TOKENS = 192
_TOKENS_PER_PIECE = 256  # of a micro-batch with unusually short pieces; see `_bound`
# torch 2.12 and later share heads of keys and values on request. 2.11 has no such flag and leaves it to the kernel.
_HAS_SHARING_FLAG = "enable_gqa" in inspect.signature(varlen_attn).parameters


@dataclass(frozen=True, slots=True)
class Pieces:
    """The pieces of a micro-batch in one sequence: with FlashAttention `ends`, else `blocks`."""

    blocks: tuple[int, ...] = ()  # positions of each block; they add up to M
    masks: tuple[Tensor | None, ...] = ()  # (L, L) bool of each block of several pieces; None = one piece
    ends: Tensor | None = None  # (N + 1,) int32: 0, and the end of each piece
    longest: int = 0  # no piece has more positions
    repeats_heads: bool = False  # keys and values get a head for each head of the queries, before FlashAttention
    # Where a position belongs to several pieces:
    source: Tensor | None = None  # (M,) int64: the place of each position in the micro-batch
    kept: Tensor | None = None  # (B x T,) int64: which of the M results is that of a place


Plan = Tensor | Pieces | None  # (B, 1, T, T) bool, True where a query may attend; None = every row is one piece


def plan_attention(documents: Tensor, labels: Tensor | None = None, device: Device | None = None) -> Plan:
    """How positions of a packed micro-batch attend only to their own document, planned on the CPU.

    `documents` (B, T) holds the document number of each position; padding has its own. Where in each row only the first
    document has labels nothing is planned: a causal mask already protects it, and the outputs of other positions are
    not used.
    """
    beyond_first = documents != documents[:, :1]  # (B, T)
    needs_plan = beyond_first if labels is None else beyond_first & (labels != IGNORED)  # (B, T)
    if not bool(needs_plan.any()):
        return None
    if _is_dense(documents, device):
        return block_causal_mask(documents)
    begins = torch.ones_like(documents, dtype=torch.bool)  # (B, T)
    begins[:, 1:] = documents[:, 1:] != documents[:, :-1]
    starts = begins.flatten().nonzero().squeeze(1)  # (N,)
    lengths = starts.diff(append=torch.tensor([documents.numel()]))  # (N,)
    return _plan_pieces(lengths, documents, device)


def plan_shared_prompts(parts: Tensor, device: Device) -> Plan:
    """How the rollouts of a row attend to the prompt that they share, and each to itself, planned on the CPU.

    `parts` (B, T): 0 = shared, n = the n-th rollout of the row, -1 = padding. The piece of a rollout begins with the
    positions of its prompt, which are repeated in the attention and nowhere else.
    """
    if _is_dense(parts, device):
        # A query attends at or before itself, in its own part or in the shared one.
        seen = (parts.unsqueeze(2) == parts.unsqueeze(1)) | (parts == 0).unsqueeze(1)  # (B, T, T)
        return seen.tril_().unsqueeze(1)
    pieces = list(_with_prompts(parts))
    source = torch.cat([places for places, _ in pieces])  # (M,)
    is_own = torch.cat([torch.arange(len(places)) >= repeated for places, repeated in pieces])  # (M,)
    kept = torch.empty(parts.numel(), dtype=torch.int64)  # (B x T,)
    kept[source[is_own]] = is_own.nonzero().squeeze(1)
    lengths = torch.tensor([len(places) for places, _ in pieces])  # (N,)
    return replace(_plan_pieces(lengths, parts, device), source=source, kept=kept)


def move_plan(plan: Plan, others: Sequence[Tensor], device: torch.device) -> tuple[Plan, list[Tensor]]:
    """The plan and the other tensors of its micro-batch on the device, by one copy for which the host does not wait."""
    if plan is None:
        return None, copy_to_device(others, device)
    if isinstance(plan, Tensor):
        moved_plan, *moved = copy_to_device((plan, *others), device)
        return moved_plan, moved
    planned = [*plan.masks, plan.ends, plan.source, plan.kept]
    copied = iter(copy_to_device([*(part for part in planned if part is not None), *others], device))
    *masks, ends, source, kept = [None if part is None else next(copied) for part in planned]
    return replace(plan, masks=tuple(masks), ends=ends, source=source, kept=kept), list(copied)


def attend(query: Tensor, key: Tensor, value: Tensor, plan: Plan) -> Tensor:
    """Softmax attention by a plan: query (B, T, heads, D), key and value (B, T, kv_heads, D) to (B, T, heads, D)."""
    if not isinstance(plan, Pieces):
        return _attend_rows(query, key, value, plan)
    shape = query.shape
    query, key, value = (tensor.flatten(0, 1) for tensor in (query, key, value))  # (B x T, heads or kv_heads, D)
    # A shared prompt is computed once, and repeated only here, where each rollout attends to it.
    if plan.source is not None:
        query, key, value = (tensor.index_select(0, plan.source) for tensor in (query, key, value))  # (M, ...)
    if plan.ends is None:
        mixed: Tensor = _attend_blocks(query, key, value, plan)  # (M, heads, D)
    else:
        if plan.repeats_heads and key.shape[1] < shape[2]:
            key, value = (tensor.repeat_interleave(shape[2] // key.shape[1], 1) for tensor in (key, value))
        mixed = _attend_by_ends(query, key, value, plan.ends, plan.longest)  # (M, heads, D)
    if plan.kept is not None:
        mixed = mixed.index_select(0, plan.kept)  # (B x T, heads, D)
    return mixed.view(shape)


def _attend_rows(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    """torch's attention with a mask, or a causal one without. Shapes as in `attend`."""
    out: Tensor = F.scaled_dot_product_attention(
        query.transpose(1, 2),
        key.transpose(1, 2),
        value.transpose(1, 2),
        attn_mask=mask,
        is_causal=mask is None,
        enable_gqa=query.shape[2] != key.shape[2],
    )
    return out.transpose(1, 2)


# Each micro-batch has other blocks, for which it would be compiled again.
@torch.compiler.disable  # type: ignore[untyped-decorator]
def _attend_blocks(query: Tensor, key: Tensor, value: Tensor, pieces: Pieces) -> Tensor:
    """A call for each block. Shapes: (M, heads or kv_heads, D)."""
    sizes = list(pieces.blocks)
    queries, keys, values = (torch.split_with_sizes(tensor, sizes) for tensor in (query, key, value))
    parts = zip(queries, keys, values, pieces.masks, strict=True)
    return torch.cat([_attend_rows(q[None], k[None], v[None], mask)[0] for q, k, v, mask in parts])


def _attend_by_ends(query: Tensor, key: Tensor, value: Tensor, ends: Tensor, longest: int) -> Tensor:
    """FlashAttention over pieces, (M, heads or kv_heads, D), in one call: of one type, with a width divisible by 8."""
    width = query.shape[-1]
    # Autocast does not know it, and leaves them in fp32 after a norm. Below, zeros in the width change no product.
    query, key = query.to(value.dtype), key.to(value.dtype)
    if width % 8:  # a padding of 0 would be a copy
        query, key, value = (F.pad(tensor, (0, -width % 8)) for tensor in (query, key, value))
    sharing: dict[str, Any] = {"enable_gqa": query.shape[1] != key.shape[1]} if _HAS_SHARING_FLAG else {}
    options: dict[str, Any] = {"scale": width**-0.5, "window_size": (-1, 0)}  # causal
    out = varlen_attn(query, key, value, ends, ends, longest, longest, **options, **sharing)
    assert isinstance(out, Tensor)
    return out[..., :width]


@functools.cache
def _shares_heads(device: torch.device) -> bool:
    """Whether FlashAttention takes fewer heads of keys and values than of queries on this device.

    Without torch's flag for it, the output and the gradients of a small call are compared with those of one on repeated
    heads; False also where the kernel refuses. The plans ask this, because a compiled block cannot.
    """
    if _HAS_SHARING_FLAG:
        return True
    generator = torch.Generator().manual_seed(0)
    with torch.inference_mode(False), torch.enable_grad():
        query, key, value, weights = (
            torch.randn(32, heads, 16, generator=generator).to(device, torch.bfloat16) for heads in (6, 2, 2, 6)
        )  # (M, heads or kv_heads, D)
        inputs = [tensor.requires_grad_() for tensor in (query, key, value)]
        ends = torch.tensor([0, 20, 32], dtype=torch.int32, device=device)  # (N + 1,)
        repeated = _attend_by_ends(query, key.repeat_interleave(3, 1), value.repeat_interleave(3, 1), ends, 32)
        expected = [repeated, *torch.autograd.grad((repeated * weights).sum(), inputs)]
        try:
            shared = _attend_by_ends(query, key, value, ends, 32)
            found = [shared, *torch.autograd.grad((shared * weights).sum(), inputs)]
        except (RuntimeError, ValueError):
            return False
    # A gradient adds up the heads, each rounded to bf16. Those of a wrong head differ by more than 1.
    return all(torch.allclose(one, other, rtol=0.02, atol=0.05) for one, other in zip(found, expected, strict=True))


def block_causal_mask(documents: Tensor) -> Tensor:
    """Causal attention within a document. Every query attends at least to itself. (B, 1, T, T) bool."""
    ctx_tokens = documents.shape[1]
    same = documents.unsqueeze(2) == documents.unsqueeze(1)  # (B, T, T)
    causal = torch.ones(ctx_tokens, ctx_tokens, dtype=torch.bool, device=documents.device).tril()  # (T, T)
    return (same & causal).unsqueeze(1)


def _is_dense(rows: Tensor, device: Device | None) -> bool:
    return rows.shape[1] < DENSE_BELOW and not (device and device.flash_attention)


def _plan_pieces(lengths: Tensor, rows: Tensor, device: Device | None) -> Pieces:
    """The pieces of a micro-batch `rows` (B, T), of `lengths` (N,)."""
    if device is not None and device.flash_attention:
        ends = torch.zeros(_bound(len(lengths), rows.numel()) + 1, dtype=torch.int32)  # (N + 1,)
        ends[1:] = lengths.sum()  # of the pieces without positions, which only fill up
        ends[1 : len(lengths) + 1] = lengths.cumsum(0)
        return Pieces(ends=ends, longest=rows.shape[1], repeats_heads=not _shares_heads(device.torch))
    blocks = list(_join_short(lengths.tolist()))
    masks = [None if len(block) == 1 else _mask_of(block) for block in blocks]
    return Pieces(tuple(map(sum, blocks)), tuple(masks))


def _bound(pieces: int, tokens: int) -> int:
    """A number of pieces that is the same for almost all micro-batches of a run, so that a compiled model sees few."""
    bound = max(1, tokens // _TOKENS_PER_PIECE)
    while bound < pieces:
        bound *= 2
    return bound


def _join_short(lengths: Iterable[int]) -> Iterator[list[int]]:
    """The pieces of each block: one, or several in a row that have at most _BLOCK_TOKENS positions together."""
    block: list[int] = []
    for length in lengths:
        if block and sum(block) + length > _BLOCK_TOKENS:
            yield block
            block = []
        block.append(length)
    if block:
        yield block


def _mask_of(lengths: list[int]) -> Tensor:
    """The mask of a block, (L, L) bool."""
    pieces = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths)).unsqueeze(0)  # (1, L)
    return block_causal_mask(pieces)[0, 0]


def _with_prompts(parts: Tensor) -> Iterator[tuple[Tensor, int]]:
    """For each piece: its places in the flattened micro-batch, and how many of them the row's first piece has too."""
    for row, numbers in enumerate(parts):
        runs, lengths = torch.unique_consecutive(numbers, return_counts=True)
        places = torch.split_with_sizes(torch.arange(row * len(numbers), (row + 1) * len(numbers)), lengths.tolist())
        prompt, repeated = places[0][:0], 0
        for number, own in zip(runs.tolist(), places, strict=True):
            if number == 0:
                prompt = own
            elif number < 0:
                yield own, 0
            else:
                yield torch.cat((prompt, own)), repeated
                repeated = len(prompt)
