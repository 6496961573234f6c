"""Rollouts of random tokens, for tests."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace

from prime_train.trainer.rl.batch import JudgedRollout, PolicyRow
from prime_train.trainer.rl.rollouts.rollout import Rollout
from tests.unit.trainer import tiny


def rollout(seed: int, *, reward: float = 0.0, version: int = 1, truncated: bool = False, turns: int = 1) -> Rollout:
    """A prompt and an answer for each turn, of random lengths, with log-probabilities near those of random weights."""
    draw = random.Random(seed)
    sampled: list[bool] = []
    for _ in range(turns):
        sampled += [False] * draw.randint(2, 5) + [True] * draw.randint(1, 6)
    tokens = [draw.randrange(tiny.CONFIG.vocab_size) for _ in sampled]
    logprobs = [draw.uniform(-4.8, -3.6) if wrote else 0.0 for wrote in sampled]
    return Rollout(
        "reverse-text", seed, tuple(tokens), tuple(sampled), tuple(logprobs), reward, version, truncated, turns
    )


def group(seed: int, count: int, *, prompt_tokens: int = 12, turns: int = 1) -> list[Rollout]:
    """Rollouts that answer one prompt."""
    prompt = random.Random(seed).choices(range(tiny.CONFIG.vocab_size), k=prompt_tokens)
    return [_answer(prompt, rollout(100 * seed + number, turns=turns)) for number in range(count)]


def _answer(prompt: list[int], made: Rollout) -> Rollout:
    """`made` with another prompt."""
    start = made.sampled.index(True)
    return replace(
        made,
        tokens=(*prompt, *made.tokens[start:]),
        sampled=(*[False] * len(prompt), *made.sampled[start:]),
        logprobs=(*[0.0] * len(prompt), *made.logprobs[start:]),
    )


def alone(samples: Iterable[JudgedRollout]) -> list[PolicyRow]:
    """A row for each sample."""
    return [PolicyRow((sample,), 0) for sample in samples]
