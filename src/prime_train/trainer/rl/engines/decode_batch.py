"""The requests that the local engine generates together. One thread calls it.

Rows 0 to `_cached` - 1 are in the decoder's slots of the same numbers; the rows after them wait for their prefill.

The tokens of one step are the input of the next on the device, so the host can start several steps before it waits for
their tokens. What a row generates beyond its end is dropped.

Shapes: B rows, N steps, V vocabulary.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from prime_train.trainer.rl.engines.cached_decoder import CachedDecoder
from prime_train.trainer.rl.engines.engine import Generation, GenerationRequest
from prime_train.trainer.rl.engines.exact_rows import PADDED_PROMPT, round_up

PREFILL_TOKENS = 16384  # of one prefill, with padding, which bounds its memory


@dataclass(slots=True)
class DecodeRow:
    """A request and what has been generated of its answer. Times are of the monotonic clock."""

    request: GenerationRequest
    submitted_s: float
    room: int  # maximum tokens of the answer
    answer: Future[Generation] = field(default_factory=Future)
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish: Literal["stop", "length", "context"] | None = None  # why the answer is complete; None if it is not
    version: int = 0
    admitted_s: float = 0.0
    prefilled_s: float = 0.0
    draw: random.Random = field(init=False)  # its own, so that no other request changes its tokens

    def __post_init__(self) -> None:
        self.draw = random.Random(self.request.seed)

    def add(self, tokens: Sequence[int], logprobs: Sequence[float]) -> int:
        """Add tokens up to the end of the answer; returns how many. ArithmeticError if a probability is not finite."""
        before = len(self.tokens)
        for token, logprob in zip(tokens, logprobs, strict=True):
            if logprob != logprob:
                raise ArithmeticError(f"the weights of version {self.version} give no finite probabilities")
            self.tokens.append(token)
            self.logprobs.append(logprob)
            if token in self.request.stop_tokens:
                self.finish = "stop"
            elif len(self.tokens) == self.room:
                self.finish = "length" if self.room == self.request.max_new_tokens else "context"
            if self.finish is not None:
                break
        return len(self.tokens) - before

    @property
    def generation(self) -> Generation:
        """The complete answer."""
        return Generation(tuple(self.tokens), tuple(self.logprobs), self.finish or "length", self.version)


class Step(NamedTuple):
    """What one step did."""

    kind: Literal["prefill", "decode"]
    tokens: int  # of the prompts, or of the answers
    finished: list[DecodeRow]


class DecodeBatch:
    """Rows that join and leave between steps, and the weights that generate them."""

    def __init__(self, decoder: CachedDecoder, read_steps: int = 1, version: int = 0) -> None:
        """`read_steps`: steps after which the host reads their tokens, at most.

        A row may write into the cache for one less beyond its room.
        """
        self.decoder = decoder
        self.version = version
        self._read_steps = read_steps
        self.rows: list[DecodeRow] = []
        self._cached = 0

    def add(self, row: DecodeRow) -> None:
        row.version = self.version
        self.rows.append(row)

    def step(self) -> Step:
        """Prefill the prompts of new rows, else generate tokens for every row."""
        if fresh := self._take_prompts():
            logits = self._prefill(fresh)
            self._cached += len(fresh)
            _read(fresh, [TokenSampler.of(fresh, 1, logits.device).draw(logits, 0)])
            for row in fresh:
                row.prefilled_s = time.monotonic()
            return Step("prefill", sum(len(row.request.prompt) for row in fresh), self._remove_finished())
        generated = _read(self.rows, self._decode())
        return Step("decode", generated, self._remove_finished())

    def _decode(self) -> list[tuple[Tensor, Tensor]]:
        """The tokens (B,) of several steps and their log-probabilities (B,). The host waits only at the begin."""
        steps = min(self._read_steps, max(row.room - len(row.tokens) for row in self.rows))
        lengths = [len(row.request.prompt) + len(row.tokens) - 1 for row in self.rows]
        device = self.decoder.device
        positions = torch.tensor(lengths, device=device)  # (B,)
        tokens = torch.tensor([row.tokens[-1] for row in self.rows], device=device)  # (B,)
        sampler = TokenSampler.of(self.rows, steps, device)
        drawn = []
        for step in range(steps):
            logits = self.decoder.decode(tokens, positions + step, max(lengths) + steps)  # (B, V)
            tokens, logprobs = sampler.draw(logits, step)
            drawn.append((tokens, logprobs))
        return drawn

    def _take_prompts(self) -> list[DecodeRow]:
        """The rows that are prefilled together, moved before the others that wait.

        Their prompts are padded to the same length, because an attention of another length may round them differently.
        """
        waiting = self.rows[self._cached :]
        if not waiting:
            return []
        padded = _padded_length(waiting[0])
        self.rows[self._cached :] = sorted(waiting, key=lambda row: _padded_length(row) != padded)  # sorted() is stable
        alike = sum(_padded_length(row) == padded for row in waiting)
        count = min(alike, max(1, PREFILL_TOKENS // padded))
        return self.rows[self._cached : self._cached + count]

    def _prefill(self, fresh: Sequence[DecodeRow]) -> Tensor:
        """Logits (B, V) after the prompts. The rollouts of a group have one prompt, which is computed once."""
        slots: dict[tuple[int, ...], list[int]] = {}
        for slot, row in enumerate(fresh, self._cached):
            slots.setdefault(row.request.prompt, []).append(slot)
        logits = self.decoder.prefill(list(slots), list(slots.values()))  # (prompts, V)
        numbers = {prompt: number for number, prompt in enumerate(slots)}
        return logits[[numbers[row.request.prompt] for row in fresh]]

    def _remove_finished(self) -> list[DecodeRow]:
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


@dataclass(frozen=True, slots=True)
class TokenSampler:
    """Draws the tokens of B rows for N steps, on the device.

    A token is the one where the cumulated probabilities pass a number that the row draws, so a row's tokens depend
    only on its seed and its logits. Temperature 0 takes the most probable token, and its probability at temperature 1.
    """

    numbers: Tensor | None  # (N, B, 1) fp64, from 0 to 1; None = no row has a temperature
    temperatures: Tensor | None  # (B, 1); None = all are 0 or 1
    greedy: Tensor | None  # (B, 1) bool: temperature 0; None = all rows, or none

    @classmethod
    def of(cls, rows: Sequence[DecodeRow], steps: int, device: torch.device) -> TokenSampler:
        temperatures = [row.request.temperature for row in rows]
        numbers = scales = greedy = None
        if any(temperatures):
            drawn = [[[row.draw.random()] for row in rows] for _ in range(steps)]
            numbers = torch.tensor(drawn, device=device, dtype=torch.float64)
            if not all(temperatures):
                greedy = torch.tensor([[not each] for each in temperatures], device=device)
        if any(each not in (0, 1) for each in temperatures):
            scales = torch.tensor([[each or 1.0] for each in temperatures], device=device)
        return cls(numbers, scales, greedy)

    def draw(self, logits: Tensor, step: int) -> tuple[Tensor, Tensor]:
        """A token (B,) of each row of (B, V) logits, and its log-probability (B,) under the row's temperature."""
        if self.temperatures is not None:
            logits = logits / self.temperatures
        logprobs = logits.log_softmax(-1)  # (B, V)
        if self.numbers is None:
            drawn = logprobs.argmax(-1, keepdim=True)  # (B, 1)
        else:
            cumulated = logprobs.exp().cumsum(-1, dtype=torch.float64)  # (B, V)
            passed = self.numbers[step] * cumulated[:, -1:]  # (B, 1)
            drawn = torch.searchsorted(cumulated, passed, right=True).clamp_(max=logits.shape[-1] - 1)  # (B, 1)
            if self.greedy is not None:
                drawn = torch.where(self.greedy, logprobs.argmax(-1, keepdim=True), drawn)
        return drawn.squeeze(1), logprobs.gather(1, drawn).squeeze(1)


def _padded_length(row: DecodeRow) -> int:
    return round_up(len(row.request.prompt), PADDED_PROMPT)


def _read(rows: Sequence[DecodeRow], drawn: Sequence[tuple[Tensor, Tensor]]) -> int:
    """Wait for the tokens of some steps and add them to the rows; returns how many belong to answers."""
    tokens, logprobs = (torch.stack(parts, 1).tolist() for parts in zip(*drawn, strict=True))  # (B, N)
    return sum(row.add(*added) for row, *added in zip(rows, tokens, logprobs, strict=True))
