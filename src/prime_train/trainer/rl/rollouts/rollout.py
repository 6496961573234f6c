"""A finished rollout: the tokens of a chat, which of them the model wrote, and the reward. Values only."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Rollout:
    """T tokens of one chat, from the prompt to the last answer, exactly as the engine saw and wrote them."""

    environment: str
    task: int  # the number of the task in its environment's training split
    tokens: tuple[int, ...]  # (T,)
    sampled: tuple[bool, ...]  # (T,) True for tokens that the model wrote; only these count in the loss
    logprobs: tuple[float, ...]  # (T,) of the engine, for sampled tokens; 0.0 for the others
    reward: float
    version: int  # of the oldest weights that generated a token of it
    truncated: bool  # a token limit, or the limit of turns, ended it
    turns: int

    @property
    def answer_tokens(self) -> int:
        return self.sampled.count(True)


@dataclass(frozen=True, slots=True)
class Failed:
    """A rollout whose environment failed."""

    environment: str
    task: int
    reason: str  # one line
    trace: str = ""  # the traceback


def to_json(rollout: Rollout) -> dict[str, Any]:
    return asdict(rollout)


def from_json(values: dict[str, Any]) -> Rollout:
    tuples = {name: tuple(values[name]) for name in ("tokens", "sampled", "logprobs")}
    return Rollout(**(values | tuples))
