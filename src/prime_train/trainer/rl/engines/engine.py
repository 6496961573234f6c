"""The `Engine` protocol: token ids in, token ids with their log-probabilities out. No effects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from torch import Tensor


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One continuation to generate."""

    prompt: tuple[int, ...]
    max_new_tokens: int
    temperature: float  # 0 = the most probable token; its log-probability is then that at temperature 1
    stop_tokens: frozenset[int]  # generation ends after one of them, which is part of the answer
    seed: int  # the same request gives the same answer by the local engine, however requests are batched
    lane: str = ""  # for spans: the rollout


@dataclass(frozen=True, slots=True)
class Generation:
    """The answer to a request."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]  # of each token, under the distribution that was sampled from (temperature included)
    finish: Literal["stop", "length", "context"]  # "context": prompt and answer fill the engine's context
    version: int  # of the oldest weights that generated a token of it


class PromptTooLongError(Exception):
    """The prompt leaves no room for an answer. The rollout is counted as truncated."""


class Engine(Protocol):
    """Generates with one set of weights at a time. `generate` may be called from many threads."""

    @property
    def version(self) -> int:
        """The version of the weights that new requests use; 0 = not the trainer's."""
        ...

    @property
    def ctx_tokens(self) -> int:
        """Maximum tokens of prompt and answer together."""
        ...

    def generate(self, request: GenerationRequest) -> Generation:
        """Blocks until the answer is complete. Raises PromptTooLongError, EngineError if the engine has failed."""
        ...

    def update(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Replace all weights; every token of a request that begins after the return is from `version`.

        `weights` are the Decoder's, by its names, with adapters merged. Requests in progress continue with the new
        weights or are completed before. Raises EngineError if the engine does not hold `version` afterwards.
        """
        ...

    def close(self) -> None:
        """Free what the engine holds; requests in progress raise EngineError."""
        ...


class EngineError(Exception):
    """The engine does not answer, or answers with other weights than it should."""
