"""Converts rollouts and demonstrations to the tensors of micro-batches. Pure: values in, tensors out.

Rows are sorted by length and padded at their end to the longest of their micro-batch; the outputs of padding are not
used. The rollouts of a prompt can share a row: the prompt is computed once, and each rollout behind it attends to the
prompt and to itself. A row of one rollout needs no mask, because attention is causal.
Letters: B rows, T positions, N counted tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from prime_train.trainer.batch import IGNORED, MicroBatch
from prime_train.trainer.rl.rollouts.rollout import Rollout

_PADDING = -1  # a part
_LENGTH_STEP = 8  # lengths are rounded up to this, so that a compiled model sees few shapes


@dataclass(frozen=True, slots=True)
class JudgedRollout:
    """A rollout and what its tokens are worth."""

    rollout: Rollout
    advantage: float
    counts: bool = True  # False: it is only computed, because it was truncated

    @property
    def prompt_tokens(self) -> int:
        """Tokens before the first one that the model wrote."""
        sampled = self.rollout.sampled
        return sampled.index(True) if True in sampled else 0

    @property
    def positions(self) -> int:
        """Positions that are computed. The last token is only a label."""
        return max(0, len(self.rollout.tokens) - 1)


@dataclass(frozen=True, slots=True)
class PolicyRow:
    """Rollouts of one prompt. Its last token is not shared, because it has another label in each rollout."""

    samples: tuple[JudgedRollout, ...]
    shared: int  # first positions that are computed once for all; 0 for a single rollout

    @property
    def sequences(self) -> int:
        return len(self.samples)

    @property
    def length(self) -> int:
        return self.shared + sum(sample.positions - self.shared for sample in self.samples)


@dataclass(frozen=True, slots=True)
class Demonstration:
    """The tokens of a solved task."""

    tokens: tuple[int, ...]  # (T,)
    imitated: tuple[bool, ...]  # (T,) True for tokens of the assistant

    @property
    def sequences(self) -> int:
        return 1

    @property
    def length(self) -> int:
        return len(self.tokens)


AnyRow = TypeVar("AnyRow", PolicyRow, Demonstration)


@dataclass(frozen=True, slots=True)
class PolicyBatch:
    """Some rollouts. Counted tokens are listed on the host: a device that looks for them would make the host wait."""

    tokens: Tensor  # (B, T) int64
    positions: Tensor  # (B, T) int64: the place in the rollout
    parts: Tensor | None  # (B, T) int64: 0 = shared, n = the n-th rollout of the row; None = no row shares anything
    places: Tensor  # (N,) int64, ascending: the place in the flattened (B, T) whose logits predict a counted token
    labels: Tensor  # (N,) int64: the counted tokens
    engine_logprobs: Tensor  # (N,) fp32
    advantages: Tensor  # (N,) fp32
    fresh: Tensor  # (N,) bool: generated with the weights that this step begins with
    temperature: float = 1.0  # in all rollouts

    @property
    def labelled_tokens(self) -> int:
        return len(self.labels)


def share_prompts(samples: Iterable[JudgedRollout], most: int) -> list[PolicyRow]:
    """Rows of at most `most` rollouts with the same prompt, if attention computes no more pairs of positions then."""
    rows: dict[tuple[int, ...], list[PolicyRow]] = {}
    for sample in samples:
        prompt = sample.rollout.tokens[: sample.prompt_tokens]
        same = rows.setdefault(prompt, [])
        if same and same[-1].sequences < most and len(prompt) > 1:
            joined = PolicyRow((*same[-1].samples, sample), len(prompt) - 1)
            if joined.length**2 <= sum(each.positions**2 for each in joined.samples):
                same[-1] = joined
                continue
        same.append(PolicyRow((sample,), 0))
    return [row for same in rows.values() for row in same]


def share_rows(rows: Iterable[AnyRow], *, micro_batch: int, rank: int, ranks: int) -> list[tuple[AnyRow, ...]]:
    """The micro-batches of this process, the longest rows first. All processes have as many: the last may be empty."""
    parts: list[list[AnyRow]] = []
    room = 0
    for row in sorted(rows, key=lambda row: -row.length):  # stable
        if row.sequences > room:
            parts.append([])
            room = micro_batch
        parts[-1].append(row)
        room -= row.sequences
    parts += [[] for _ in range(-len(parts) % ranks)]
    return [tuple(part) for part in parts[rank::ranks]]


def to_policy_batch(rows: Sequence[PolicyRow], version: int) -> PolicyBatch:
    """The tensors of a micro-batch for a step that begins with the weights `version`. One step has one temperature."""
    shape = (max(1, len(rows)), _round_up(max((row.length for row in rows), default=0)))
    tokens, positions = np.zeros((2, *shape), np.int64)  # (B, T)
    parts, labels = np.full(shape, _PADDING, np.int64), np.full(shape, IGNORED, np.int64)  # (B, T)
    logprobs, advantages = np.zeros((2, *shape), np.float32)  # (B, T)
    fresh = np.zeros(shape, np.bool_)  # (B, T)
    for number, row in enumerate(rows):
        begin = row.shared
        tokens[number, :begin] = row.samples[0].rollout.tokens[:begin]
        positions[number, :begin] = np.arange(begin)
        parts[number, :begin] = 0
        for part, sample in enumerate(row.samples, 1):
            rollout, first = sample.rollout, row.shared
            own = number, slice(begin, begin + sample.positions - first)
            written = np.array(rollout.tokens[first:], np.int64)
            tokens[own] = written[:-1]
            positions[own] = np.arange(first, sample.positions)
            parts[own] = part
            # A position has the values of the token after it, which its logits predict.
            if sample.counts:
                labels[own] = np.where(rollout.sampled[first + 1 :], written[1:], IGNORED)
            logprobs[own] = rollout.logprobs[first + 1 :]
            advantages[own] = sample.advantage
            fresh[own] = rollout.version == version
            begin += sample.positions - first
    places = np.flatnonzero(labels != IGNORED)  # (N,)
    return PolicyBatch(
        torch.from_numpy(tokens),
        torch.from_numpy(positions),
        torch.from_numpy(parts) if any(row.shared for row in rows) else None,
        torch.from_numpy(places),
        torch.from_numpy(labels.ravel()[places]),
        torch.from_numpy(logprobs.ravel()[places]),
        torch.from_numpy(advantages.ravel()[places]),
        torch.from_numpy(fresh.ravel()[places]),
        temperature=rows[0].samples[0].rollout.temperature if rows else 1.0,
    )


def to_imitation_batch(demonstrations: Sequence[Demonstration]) -> MicroBatch:
    """The tensors of a micro-batch whose loss is the cross-entropy of the imitated tokens."""
    tokens = _pad([row.tokens for row in demonstrations], 0)  # (B, T + 1)
    imitated = _pad([row.imitated for row in demonstrations], False)  # (B, T + 1)
    inputs = tokens[:, :-1].contiguous()
    return MicroBatch(
        tokens=inputs,
        labels=torch.where(imitated, tokens, IGNORED)[:, 1:].contiguous(),
        positions=torch.arange(inputs.shape[1]).expand_as(inputs),
        documents=torch.zeros_like(inputs),
    )


def _pad(rows: Sequence[Sequence[int]], padding: int) -> Tensor:
    """(B, T + 1), where T is a multiple of _LENGTH_STEP; without rows, one row of padding."""
    longest = max((len(row) for row in rows), default=2)
    length = 1 + _round_up(longest - 1)
    return torch.tensor([[*row, *[padding] * (length - len(row))] for row in rows or ((),)])


def _round_up(positions: int) -> int:
    return -(-max(1, positions) // _LENGTH_STEP) * _LENGTH_STEP
