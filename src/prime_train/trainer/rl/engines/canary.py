"""Finds an engine that answers with other weights than it should, by the probabilities of a fixed text.

A version number only proves that an engine was asked to load weights. vLLM 0.32 on a CPU multiplied by an old packed
copy of a tied head after a reload that succeeded.
"""

from __future__ import annotations

import random
from collections.abc import Mapping

import torch
from torch import Tensor
from torch.func import functional_call

from prime_train.trainer.device import Device
from prime_train.trainer.model.decoder import Decoder, ModelConfig

TOKENS = 48
# Mean difference of a log-probability in nats: what rounding causes, and what other weights must exceed.
_ROUNDING = {"fp32": 1e-4, "bf16": 0.02}
_LIMIT = {"fp32": 0.02, "bf16": 0.3}


class Canary:
    """The fixed tokens, and the trainer's log-probabilities of them by the former and by the current weights."""

    def __init__(self, config: ModelConfig, device: Device, ctx_tokens: int, *, exact: bool) -> None:
        """`exact`: trainer and engine compute in fp32. One position of the context is left for an answer."""
        draw = random.Random(0)
        self.tokens = tuple(draw.randrange(config.vocab_size) for _ in range(min(TOKENS, ctx_tokens - 1)))
        self._device = device
        self._precision = "fp32" if exact else "bf16"
        self._former: Tensor | None = None
        self._current: Tensor | None = None
        with torch.device("meta"):
            self._model = Decoder(config)

    @torch.no_grad()
    def learn(self, weights: Mapping[str, Tensor]) -> None:
        """Compute what an engine with these weights must answer."""
        device = next(iter(weights.values())).device
        tokens = torch.tensor([self.tokens], device=device)  # (1, T)
        positions = torch.arange(len(self.tokens), device=device).unsqueeze(0)  # (1, T)
        with self._device.autocast():
            logits = functional_call(self._model, dict(weights), (tokens, positions, None))  # (1, T, V)
        logprobs = logits[0, :-1].float().log_softmax(-1)  # (T - 1, V)
        self._former = self._current
        self._current = logprobs.gather(1, tokens[0, 1:, None]).squeeze(1).cpu()  # (T - 1,)

    def judge(self, logprobs: tuple[float, ...]) -> str:
        """What is wrong with an engine's log-probabilities of the tokens after the first; "" if they are right."""
        if self._current is None:
            raise ValueError("the canary has learned no weights")
        answered = torch.tensor(logprobs)  # (T - 1,)
        off = float((answered - self._current).abs().mean())
        if not off <= _LIMIT[self._precision]:
            return f"its log-probabilities differ from the trainer's by {off:.3g} nats on average"
        if self._former is not None:
            change = float((self._current - self._former).abs().mean())
            off_former = float((answered - self._former).abs().mean())
            if change > 4 * _ROUNDING[self._precision] and off_former < off:
                return f"its log-probabilities are those of the former weights, {off:.3g} nats from the trainer's"
        return ""
