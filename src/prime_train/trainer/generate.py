"""Continues prompts with a model. Never touches the global random generators or the model's mode.

Shapes: B prompts, T positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

_LENGTH_STEP = 32  # lengths are rounded up to this, so that a compiled model sees few shapes


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How to continue prompts. `temperature` 0 picks the most likely token; `stop_token` ends a continuation."""

    new_tokens: int
    ctx_tokens: int
    temperature: float
    seed: int
    stop_token: int | None = None


@torch.no_grad()
def generate(
    model: nn.Module, prompts: Sequence[Sequence[int]], sampling: Sampling, device: torch.device | str = "cpu"
) -> list[list[int]]:
    """The tokens that follow each prompt, without the stop token.

    At each step the model runs on a window of the last `ctx_tokens` tokens of all prompts. Without a KV cache this
    costs O(new_tokens x window) tokens: less than one training step for samples of 48 tokens, and the model needs no
    decoding code. All ranks call a sharded model with the same inputs; they draw the same tokens, because each uses
    a CPU generator with the same seed.
    """
    if any(not prompt for prompt in prompts):
        raise ValueError("a prompt has no tokens; give each at least the token that starts a document")
    generator = torch.Generator().manual_seed(sampling.seed)
    sequences = [list(prompt) for prompt in prompts]
    live = [True] * len(sequences)
    was_training = model.training
    model.eval()
    try:
        for _ in range(sampling.new_tokens if sequences else 0):
            logits = _next_logits(model, sequences, sampling.ctx_tokens, device)  # (B, V)
            for row, token in enumerate(_draw(logits, sampling.temperature, generator)):
                live[row] = live[row] and token != sampling.stop_token
                if live[row]:
                    sequences[row].append(token)
            if not any(live):
                break
    finally:
        model.train(was_training)
    return [sequence[len(prompt) :] for sequence, prompt in zip(sequences, prompts, strict=True)]


def _next_logits(model: nn.Module, sequences: list[list[int]], ctx_tokens: int, device: torch.device | str) -> Tensor:
    """Logits after the last token of each sequence, (B, V) fp32 on the CPU.

    Shorter rows are padded at their end, which changes nothing before it because the mask is causal.
    """
    windows = [sequence[-ctx_tokens:] for sequence in sequences]
    longest = max(map(len, windows))
    length = min(ctx_tokens, -(-longest // _LENGTH_STEP) * _LENGTH_STEP)
    tokens = torch.zeros(len(windows), length, dtype=torch.int64)  # (B, T)
    for row, window in enumerate(windows):
        tokens[row, : len(window)] = torch.tensor(window)
    positions = torch.arange(length).expand_as(tokens)  # (B, T)
    last = torch.tensor([len(window) - 1 for window in windows])  # (B,)
    logits: Tensor = model(tokens.to(device), positions.to(device), None, last.to(device))
    return logits.float().cpu()


def _draw(logits: Tensor, temperature: float, generator: torch.Generator) -> list[int]:
    """One token per row of (B, V) logits."""
    if temperature == 0:
        drawn = logits.argmax(-1)
    else:
        drawn = torch.multinomial((logits / temperature).softmax(-1), 1, generator=generator).squeeze(-1)
    return [int(token) for token in drawn]
