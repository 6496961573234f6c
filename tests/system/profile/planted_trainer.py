"""The trainer with a bottleneck: `PLANT` = "KIND:SECONDS". Run in place of `python -m prime_train.trainer`."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from prime_train.environments.environment import Message, Tool, ToolCall
from prime_train.trainer import __main__ as trainer
from prime_train.trainer.chats.chat_tokens import ChatTokenizer
from prime_train.trainer.data.stream import TrainStream
from prime_train.trainer.loops import step
from prime_train.trainer.rl.engines.engine import Generation, GenerationRequest
from prime_train.trainer.rl.engines.local_engine import LocalEngine
from prime_train.trainer.saves import checkpoint


def plant(kind: str, seconds: float) -> None:
    match kind:
        case "loader":
            slow(TrainStream, "next_micro_batch", seconds)
            write_times(TrainStream, "next_micro_batch")
        case "checkpoint":
            slow(checkpoint, "_write", seconds)
            write_times(checkpoint.Checkpointer, "save")
        case "all-reduce":
            plant_all_reduce(seconds)
        case "tool-calls":
            plant_tool_calls()
        case "large-model":  # slow by its size: only the time of forward and backward is written
            write_times(step, "_accumulate")
        case "starved-engine":  # slow by the settings: the engine answers one request at a time
            write_times(LocalEngine, "generate")
        case _:
            raise ValueError(kind)


def slow(owner: Any, name: str, seconds: float) -> None:
    """Let a function sleep before it runs."""
    own = getattr(owner, name)

    def run(*arguments: Any, **named: Any) -> Any:
        time.sleep(seconds)
        return own(*arguments, **named)

    setattr(owner, name, run)


def write_times(owner: Any, name: str) -> None:
    """Append the seconds of each call of a function to the file `PLANT_TIMES`."""
    own = getattr(owner, name)

    def run(*arguments: Any, **named: Any) -> Any:
        began_s = time.monotonic()
        result = own(*arguments, **named)
        with open(os.environ["PLANT_TIMES"], "a", encoding="utf-8") as file:
            file.write(f"{time.monotonic() - began_s}\n")
        return result

    setattr(owner, name, run)


def plant_all_reduce(seconds: float) -> None:
    """Let the last all-reduce of gradients of a step be complete later, as over a slow network."""
    own = torch.distributed.all_reduce

    class Slow:
        def __init__(self, work: Any) -> None:
            self._work = work

        def get_future(self) -> Any:
            return self._work.get_future().then(self._wait)

        @staticmethod
        def _wait(done: Any) -> Any:
            time.sleep(seconds)
            return done.value()

    def all_reduce(tensor: Any, *arguments: Any, **named: Any) -> Any:
        work = own(tensor, *arguments, **named)
        return Slow(work) if named.get("async_op") else work

    torch.distributed.all_reduce = all_reduce


def plant_tool_calls() -> None:
    """Let each answer of the model be complete, and call the calculator."""
    own = LocalEngine.generate

    def generate(self: LocalEngine, request: GenerationRequest) -> Generation:
        return replace(own(self, request), finish="stop")

    def parse_answer(_self: ChatTokenizer, _tokens: Sequence[int], _tools: Sequence[Tool] = ()) -> Message:
        return Message("assistant", "", tool_calls=(ToolCall("calculate", '{"expression": "1 + 1"}', id="call-1"),))

    setattr(LocalEngine, "generate", generate)  # noqa: B010 - mypy knows the method as fixed
    setattr(ChatTokenizer, "parse_answer", parse_answer)  # noqa: B010 - as above


if __name__ == "__main__":
    kind, _, seconds = os.environ["PLANT"].partition(":")
    plant(kind, float(seconds or 0))
    trainer._end(trainer.main(sys.argv[1:]))
