"""The requests that the local engine generates together. One thread calls it.

Rows 0 to `_cached` - 1 are in the decoder's slots of the same numbers; the rows after them wait for their prefill.

Shapes: B rows, V vocabulary.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from prime_train.trainer.rl.engines.cached_decoder import CachedDecoder
from prime_train.trainer.rl.engines.engine import Generation, Request

PREFILL_TOKENS = 16384  # of one prefill, with padding, which bounds its memory


@dataclass(slots=True)
class Row:
    """A request and what has been generated of its answer. Times are of the monotonic clock."""

    request: Request
    submitted_s: float
    room: int  # maximum tokens of the answer
    answer: Future[Generation] = field(default_factory=Future)
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    version: int = 0
    admitted_s: float = 0.0
    prefilled_s: float = 0.0
    draw: random.Random = field(init=False)  # its own, so that no other request changes its tokens

    def __post_init__(self) -> None:
        self.draw = random.Random(self.request.seed)

    @property
    def finish(self) -> Literal["stop", "length", "context"] | None:
        """Why the answer is complete; None if it is not."""
        if self.tokens and self.tokens[-1] in self.request.stop_tokens:
            return "stop"
        if len(self.tokens) == self.request.max_new_tokens:
            return "length"
        return "context" if len(self.tokens) == self.room else None

    @property
    def generation(self) -> Generation:
        """The complete answer."""
        return Generation(tuple(self.tokens), tuple(self.logprobs), self.finish or "length", self.version)


class Step(NamedTuple):
    """What one step did."""

    kind: Literal["prefill", "decode"]
    tokens: int  # of the prompts, or one for each row
    finished: list[Row]


class DecodeBatch:
    """Rows that join and leave between steps, and the weights that generate them."""

    def __init__(self, decoder: CachedDecoder, version: int = 0) -> None:
        self.decoder = decoder
        self.version = version
        self.rows: list[Row] = []
        self._cached = 0

    def add(self, row: Row) -> None:
        row.version = self.version
        self.rows.append(row)

    def step(self) -> Step:
        """Prefill the prompts of new rows, else generate one token for every row."""
        if fresh := list(_take_prompts(self.rows[self._cached :])):
            logits = self._prefill(fresh)
            self._cached += len(fresh)
            _append_tokens(fresh, logits)
            for row in fresh:
                row.prefilled_s = time.monotonic()
            return Step("prefill", sum(len(row.request.prompt) for row in fresh), self._remove_finished())
        lengths = [len(row.request.prompt) + len(row.tokens) - 1 for row in self.rows]
        logits = self.decoder.decode([row.tokens[-1] for row in self.rows], lengths)  # (B, V)
        _append_tokens(self.rows, logits)
        return Step("decode", len(self.rows), self._remove_finished())

    def _prefill(self, fresh: Sequence[Row]) -> Tensor:
        """Logits (B, V) after the prompts. The rollouts of a group have one prompt, which is computed once."""
        slots: dict[tuple[int, ...], list[int]] = {}
        for slot, row in enumerate(fresh, self._cached):
            slots.setdefault(row.request.prompt, []).append(slot)
        logits = self.decoder.prefill(list(slots), list(slots.values()))  # (prompts, V)
        numbers = {prompt: number for number, prompt in enumerate(slots)}
        return logits[[numbers[row.request.prompt] for row in fresh]]

    def _remove_finished(self) -> list[Row]:
        """Take out the complete rows; the last row takes the slot of each."""
        finished = []
        for slot in reversed(range(self._cached)):
            row = self.rows[slot]
            if row.finish is None:
                continue
            finished.append(row)
            self._cached -= 1
            last = self.rows[self._cached]
            if last is not row:
                self.decoder.move(self._cached, slot, len(last.request.prompt) + len(last.tokens) - 1)
                self.rows[slot] = last
            del self.rows[self._cached]
        return finished


def _take_prompts(waiting: Sequence[Row]) -> Iterator[Row]:
    """The first rows whose prompts, padded to the longest of them, have at most PREFILL_TOKENS; at least one."""
    longest = 0
    for count, row in enumerate(waiting):
        longest = max(longest, len(row.request.prompt))
        if count and longest * (count + 1) > PREFILL_TOKENS:
            return
        yield row


def _append_tokens(rows: Sequence[Row], logits: Tensor) -> None:
    """Draw the next token of each row. Raises ArithmeticError if a probability is not finite."""
    for row, token, logprob in zip(rows, *_draw_tokens(rows, logits), strict=True):
        if logprob != logprob:
            raise ArithmeticError(f"the weights of version {row.version} give no finite probabilities")
        row.tokens.append(token)
        row.logprobs.append(logprob)


def _draw_tokens(rows: Sequence[Row], logits: Tensor) -> tuple[list[int], list[float]]:
    """A token of each row of (B, V) logits, and its log-probability under the row's temperature.

    The token is the one where the cumulated probabilities pass a number that the row draws, so a row's tokens depend
    only on its seed and its logits. Temperature 0 takes the most probable token, and its probability at temperature 1.
    """
    temperatures = [row.request.temperature for row in rows]
    if any(temperature not in (0, 1) for temperature in temperatures):
        logits = logits / torch.tensor([each or 1.0 for each in temperatures], device=logits.device).unsqueeze(1)
    logprobs = logits.log_softmax(-1)  # (B, V)
    if any(temperatures):
        cumulated = logprobs.exp().cumsum(-1, dtype=torch.float64)  # (B, V)
        numbers = [row.draw.random() for row in rows]
        passed = torch.tensor(numbers, device=logits.device, dtype=torch.float64).unsqueeze(1) * cumulated[:, -1:]
        drawn = torch.searchsorted(cumulated, passed, right=True).clamp_(max=logits.shape[-1] - 1)  # (B, 1)
    else:
        drawn = logprobs.argmax(-1, keepdim=True)  # (B, 1)
    if any(temperatures) and not all(temperatures):
        greedy = torch.tensor([not each for each in temperatures], device=logits.device).unsqueeze(1)  # (B, 1)
        drawn = torch.where(greedy, logprobs.argmax(-1, keepdim=True), drawn)
    chosen = logprobs.gather(1, drawn)  # (B, 1)
    return drawn.squeeze(1).tolist(), chosen.squeeze(1).tolist()
