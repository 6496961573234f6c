"""Chats as plain text, for the evaluation of a model that was trained on text and knows no chat template."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from prime_train.environments.environment import Message, Tool
from prime_train.trainer.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class PlainChat:
    """Each message is a line, and the model answers with the next line. It calls no tools."""

    tokenizer: Tokenizer

    @property
    def stop_tokens(self) -> frozenset[int]:
        """The end of the text, and the end of a line if it is one token."""
        newline = self.tokenizer.encode("\n")
        return frozenset({self.tokenizer.eos_id, *(newline if len(newline) == 1 else ())})

    def prompt_tokens(self, messages: Sequence[Message], tools: Sequence[Tool]) -> tuple[int, ...]:  # noqa: ARG002
        return self._encode(messages)

    def following_tokens(
        self,
        previous: Sequence[Message],  # noqa: ARG002
        new: Sequence[Message],
        tools: Sequence[Tool],  # noqa: ARG002
        *,
        stop: int | None,  # noqa: ARG002
    ) -> tuple[int, ...]:
        return self._encode(new)

    def parse_answer(self, tokens: Sequence[int], tools: Sequence[Tool]) -> Message:  # noqa: ARG002
        line, _, _ = self.tokenizer.decode(tokens).lstrip("\n").partition("\n")
        return Message("assistant", line)

    def _encode(self, messages: Sequence[Message]) -> tuple[int, ...]:
        return tuple(self.tokenizer.encode("".join(message.content + "\n" for message in messages)))
