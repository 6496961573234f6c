"""A chat tokenizer of single characters, an engine and an environment of functions, for tests of the collection."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from prime_train.environments.environment import Message, Reply, Split, Task, Tool, ToolCall
from prime_train.trainer.rl.engines.engine import Generation, GenerationRequest, PromptTooLongError

END = "\x03"  # ends a turn
TURN = "\x02"  # begins an answer of the model
CALL = "\x04"  # before the arguments of a call of `calculate`


class CharacterChat:
    """Each character is a token. An answer that begins with CALL is a call of `calculate`."""

    stop_tokens = frozenset({ord(END)})

    def prompt_tokens(self, messages: Sequence[Message], tools: Sequence[Tool]) -> tuple[int, ...]:
        listed = "".join(f"<{tool.name}>" for tool in tools)
        return self.encode(listed + "".join(message.content + END for message in messages) + TURN)

    def following_tokens(
        self,
        previous: Sequence[Message],
        new: Sequence[Message],
        tools: Sequence[Tool],  # noqa: ARG002
        *,
        stop: int | None,
    ) -> tuple[int, ...]:
        assert stop == ord(END)
        assert previous[-1].role == "assistant"
        return self.encode("".join(message.content + END for message in new) + TURN)

    def parse_answer(self, tokens: Sequence[int], tools: Sequence[Tool] = ()) -> Message:  # noqa: ARG002
        text = "".join(map(chr, tokens)).removesuffix(END)
        if text.startswith(CALL):
            return Message("assistant", "", tool_calls=(ToolCall("calculate", text[1:], "call"),))
        return Message("assistant", text)

    def encode(self, text: str) -> tuple[int, ...]:
        return tuple(map(ord, text))

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join(map(chr, tokens))


class FunctionEngine:
    """Answers with what `answer` makes of the text of a prompt. `finish` and limits are those of a real engine."""

    def __init__(self, answer: Callable[[str], str], ctx_tokens: int = 10_000) -> None:
        self.version = 1
        self.ctx_tokens = ctx_tokens
        self.requests: list[GenerationRequest] = []
        self._answer = answer
        self._lock = threading.Lock()

    def generate(self, request: GenerationRequest) -> Generation:
        with self._lock:
            self.requests.append(request)
        room = self.ctx_tokens - len(request.prompt)
        if room <= 0:
            raise PromptTooLongError
        text = self._answer("".join(map(chr, request.prompt))) + END
        tokens = tuple(map(ord, text))[: min(request.max_new_tokens, room)]
        stopped = tokens[-1] in request.stop_tokens
        finish = "stop" if stopped else "length" if len(tokens) == request.max_new_tokens else "context"
        logprobs = tuple(-token / 1000 for token in tokens)
        return Generation(tokens, logprobs, finish, self.version)  # type: ignore[arg-type]

    def update(self, weights: Mapping[str, Tensor], version: int) -> None:  # noqa: ARG002 - the protocol's
        self.version = version

    def close(self) -> None:
        pass


@dataclass
class Scripted:
    """An environment whose reward and answer are functions."""

    reward: Callable[[], Any] = lambda: 1.0
    reply: Callable[[], Any] = Reply
    name: str = "scripted"
    size: int | None = None

    def task(self, split: Split, number: int) -> Task:
        return Task(self.name, split, number, (Message("user", "hello"),))

    def demonstrate(self, task: Task) -> None: ...

    def respond(self, task: Task, messages: Sequence[Message]) -> Reply:  # noqa: ARG002
        reply: Reply = self.reply()
        return reply

    def score(self, task: Task, messages: Sequence[Message]) -> float:  # noqa: ARG002
        reward: float = self.reward()
        return reward

    def close(self) -> None: ...
