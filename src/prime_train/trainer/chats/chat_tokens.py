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
from prime_train.trainer.cache import digest
from prime_train.trainer.chats.chat import parse_text
from prime_train.trainer.chats.chat_template import CALL_END, CALL_START, PLACE, ChatTemplate, TurnEnds, find_turn_ends
from prime_train.trainer.tokenizer import LoadedTokenizer

_CALL = re.compile(f"{CALL_START}(.*?){CALL_END}", re.DOTALL)
_NAME = re.compile(r"\s*([\w.-]+)(?=<|\s*\n)\s*")  # a word on a line of its own, or right before an argument
_ARGUMENT = re.compile(r"<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>\s*", re.DOTALL)


def read_calls(text: str, tools: Sequence[Tool] = ()) -> tuple[str, tuple[ToolCall, ...]]:
    """(the text without its calls, the calls). `tools` have the types of parameters: what is no text is JSON."""
    calls: list[ToolCall] = []

    def take(found: re.Match[str]) -> str:
        read = _read_json(found[1]) or _read_pairs(found[1], tools)
        if read is None:
            return found[0]
        name, arguments = read
        # Mistral's templates accept no other id.
        calls.append(ToolCall(name, arguments, id=f"call{len(calls) + 1:05d}"))
        return ""

    content = _CALL.sub(take, text)
    return (content.strip() if calls else content), tuple(calls)


def _read_json(written: str) -> tuple[str, str] | None:
    """(name, arguments) of an object with name and arguments; None if it is no such object."""
    try:
        call: Any = json.loads(written)
    except (ValueError, RecursionError):
        return None
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return None
    arguments = call.get("arguments", {})
    return call["name"], arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def _read_pairs(written: str, tools: Sequence[Tool]) -> tuple[str, str] | None:
    """(name, arguments) of a name with <arg_key> and <arg_value> behind it; None if there is anything else."""
    name = _NAME.match(written)
    if name is None or _ARGUMENT.sub("", written[name.end() :]):
        return None
    texts = _list_texts(name[1], tools)
    arguments = {
        key.strip(): value if key.strip() in texts else parse_text(value)
        for key, value in _ARGUMENT.findall(written[name.end() :])
    }
    return name[1], json.dumps(arguments, ensure_ascii=False)


def _list_texts(name: str, tools: Sequence[Tool]) -> set[str]:
    """The parameters of a tool that are text."""
    parameters = next((tool.parameters for tool in tools if tool.name == name), {})
    properties = parameters.get("properties")
    if not isinstance(properties, dict):
        return set()
    return {key for key, schema in properties.items() if isinstance(schema, dict) and schema.get("type") == "string"}


@dataclass(frozen=True, slots=True)
class PlainChat:
    """Each message is a line, and the model answers with the next line. It calls no tools."""

    tokenizer: LoadedTokenizer

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


@dataclass(frozen=True)
class ChatTokenizer:
    """A tokenizer with its chat template. `more_stop_tokens`: stop tokens of the model, beside its end of text."""

    tokenizer: LoadedTokenizer
    template: ChatTemplate
    more_stop_tokens: frozenset[int] = frozenset()

    @cached_property
    def ends(self) -> TurnEnds:
        """The control tokens that end an answer. Raises UserError if there are none."""
        return find_turn_ends(self.template, self._stop_texts)

    @cached_property
    def stop_tokens(self) -> frozenset[int]:
        """The tokens that end an answer. Each is part of the answer."""
        return self._known_stops | {self.tokenizer.control_tokens[end] for end in self.ends.stops}

    @cached_property
    def _known_stops(self) -> frozenset[int]:
        """The stop tokens that the tokenizer and generation_config.json name."""
        return self.more_stop_tokens | {self.tokenizer.eos_id}

    @cached_property
    def _stop_texts(self) -> frozenset[str]:
        named = self.tokenizer.control_tokens.items()
        return frozenset(text for text, token in named if token in self._known_stops)

    @cached_property
    def fingerprint(self) -> str:
        """Differs where the tokens of a chat may differ."""
        ends = [self.ends.own, dict(self.ends.before)]
        return digest([self.tokenizer.fingerprint, self.template.text, sorted(self.stop_tokens), ends])

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
        self, previous: Sequence[Message], new: Sequence[Message], tools: Sequence[Tool] = (), *, stop: int | None
    ) -> tuple[int, ...]:
        """The tokens between the model's last answer, the last of `previous`, and its next one, after `new`.

        `stop`: the token that ended the answer; None if it has no end, which is then the first of the returned tokens.
        """
        unmarked = [replace(message, content=message.content.replace(PLACE, "\ufffd")) for message in new]
        chat = [*previous[:-1], _mark_place(previous[-1]), *unmarked]
        _, found, after = self.template.render(chat, tools, generation_prompt=True).rpartition(PLACE)
        end = self.find_end(after, 0, self.ends.get(new[0].role)) if found else None
        if end is None or end.end() == len(after):
            what = "the chat template does not end an answer that has messages after it"
            why = "these messages are appended to the tokens that the model generated"
            fix = "use a template that writes every message of a chat, each with its end"
            raise UserError(what, self.template.where, why, fix)
        # An end that begins the next message is missing if the model stopped with another one.
        begins_next = self.ends.own is None
        is_written = stop is not None and not (begins_next and stop != self.tokenizer.control_tokens[end[0]])
        return tuple(self.encode(after[end.end() if is_written else end.start() :]))

    def find_end(self, text: str, start: int, end: str | None) -> re.Match[str] | None:
        """The first `end`, or stop token of the model, after `start` in rendered text; None if there is none."""
        for found in self.template.control_tokens_in(text, start):
            if found[0] == end or found[0] in self._stop_texts:
                return found
        return None

    def parse_answer(self, tokens: Sequence[int], tools: Sequence[Tool] = ()) -> Message:
        """The message of the model's answer. Tool calls that cannot be parsed remain in its text."""
        content, calls = read_calls(self._answer_text(tokens), tools)
        return Message("assistant", content, tool_calls=calls)

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
    arguments = json.dumps({"x": PLACE}, ensure_ascii=False)
    calls = tuple(ToolCall(each.name, arguments, each.id) for each in answer.tool_calls)
    return Message("assistant", PLACE, tool_calls=calls)
