"""Converts chats to tokens, and the model's answers to messages. Each message is tokenised once.

A prompt and the answer to it are tokenised apart, because the model also generates an answer token by token behind its
prompt. So the tokens of a chat in supervised fine-tuning are those that the chat has in a rollout.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from prime_train.core.errors import UserError
from prime_train.environments.environment import Message, Tool, ToolCall
from prime_train.trainer.chats.chat_template import CALL_END, CALL_START, ChatTemplate
from prime_train.trainer.data.sources import digest
from prime_train.trainer.tokenizer import Tokenizer

_CALL = re.compile(f"{CALL_START}(.*?){CALL_END}", re.DOTALL)
_PLACE = "\ufdd1"  # marks a place in a rendered chat; Unicode reserves this character for internal use


@dataclass(frozen=True)
class ChatTokenizer:
    """A tokenizer with its chat template. `more_stop_tokens`: stop tokens of the model, beside its end of turn."""

    tokenizer: Tokenizer
    template: ChatTemplate
    more_stop_tokens: frozenset[int] = frozenset()

    @cached_property
    def end_of_turn(self) -> str:
        """The control token with which the template ends an answer. Raises UserError if there is none."""
        chat = (Message("user", "a"), Message("assistant", _PLACE))
        _, _, after = self.template.render(chat, generation_prompt=False).rpartition(_PLACE)
        pieces = self.template.split(after)
        if len(pieces) < 2:
            raise UserError(
                what="the chat template ends an answer without a control token",
                where=self.template.where,
                why="the model stops with the token that ends its answer",
                fix="let the template write the end-of-text token behind the messages of the assistant",
            )
        return pieces[1]

    @cached_property
    def stop_tokens(self) -> frozenset[int]:
        """The tokens that end an answer. Each is part of the answer."""
        ends = {self.tokenizer.control_tokens[self.end_of_turn], self.tokenizer.eos_id}
        return self.more_stop_tokens | ends

    @cached_property
    def fingerprint(self) -> str:
        """Differs where the tokens of a chat may differ."""
        return digest([self.tokenizer.fingerprint, self.template.text, sorted(self.stop_tokens)])

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of the tokens, without control tokens."""
        return self.tokenizer.decode(tokens)

    def encode(self, text: str) -> list[int]:
        """The tokens of rendered text, with its control tokens."""
        pieces = self.template.split(text)
        plain = iter(self.tokenizer.encode_batch([piece for piece in pieces[::2] if piece]))
        tokens: list[int] = []
        for at, piece in enumerate(pieces):
            if at % 2:
                tokens.append(self.tokenizer.control_tokens[piece])
            elif piece:
                tokens += next(plain)
        return tokens

    def prompt_tokens(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> tuple[int, ...]:
        """The chat up to where the model's answer begins."""
        return tuple(self.encode(self.template.render(messages, tools, generation_prompt=True)))

    def following_tokens(
        self,
        previous: Sequence[Message],
        new: Sequence[Message],
        tools: Sequence[Tool] = (),
        *,
        ended: bool = True,
    ) -> tuple[int, ...]:
        """The tokens between the model's last answer and its next one.

        `previous` ends with the message of that answer, `new` has the messages after it. `ended`: the answer has its
        stop token; else its end of turn is the first of the returned tokens.
        """
        unmarked = [replace(message, content=message.content.replace(_PLACE, "\ufffd")) for message in new]
        chat = [*previous[:-1], _mark_place(previous[-1]), *unmarked]
        _, _, after = self.template.render(chat, tools, generation_prompt=True).rpartition(_PLACE)
        end = self.find_stop(after, 0)
        if end is None or end == len(after):
            raise UserError(
                what="the chat template does not end an answer that has messages after it",
                where=self.template.where,
                why="these messages are appended to the tokens that the model generated",
                fix="use a template that writes every message of a chat, each with its end",
            )
        return tuple(self.encode(after[end:] if ended else self.end_of_turn + after[end:]))

    def find_stop(self, text: str, start: int) -> int | None:
        """Where the first stop token after `start` ends in rendered text; None if there is none."""
        for found in self.template.control_tokens_in(text, start):
            if self.tokenizer.control_tokens[found[0]] in self.stop_tokens:
                return found.end()
        return None

    def parse_answer(self, tokens: Sequence[int]) -> Message:
        """The message of the model's answer. Tool calls that cannot be parsed remain in its text."""
        calls: list[ToolCall] = []

        def take(found: re.Match[str]) -> str:
            call = _parse_call(found[1], len(calls) + 1)
            if call is None:
                return found[0]
            calls.append(call)
            return ""

        content = _CALL.sub(take, self._answer_text(tokens))
        return Message("assistant", content.strip() if calls else content, tool_calls=tuple(calls))

    def _answer_text(self, tokens: Sequence[int]) -> str:
        """The text of an answer, also of the tokens around its calls where these are control tokens."""
        kept = {self.tokenizer.control_tokens.get(text, -1): text for text in (CALL_START, CALL_END)}
        parts: list[str] = []
        start = 0
        for at, token in enumerate(tokens):
            if token in kept:
                parts += [self.decode(tokens[start:at]), kept[token]]
                start = at + 1
        return "".join([*parts, self.decode(tokens[start:])])


def _mark_place(answer: Message) -> Message:
    """An answer whose rendered text has marks, the last of them in its last tool call."""
    call = ToolCall("f", json.dumps({"x": _PLACE}, ensure_ascii=False), id="call00001")
    calls = tuple(ToolCall(each.name, call.arguments, each.id) for each in answer.tool_calls)
    return Message("assistant", _PLACE, tool_calls=calls)


def _parse_call(text: str, number: int) -> ToolCall | None:
    """The call that is written as an object with name and arguments; None if it is no such object."""
    try:
        written: Any = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(written, dict) or not isinstance(written.get("name"), str):
        return None
    arguments = written.get("arguments", {})
    as_text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return ToolCall(written["name"], as_text, id=f"call{number:05d}")  # Mistral's templates accept no other form
