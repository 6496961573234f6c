"""Finds what a chat template leaves out: tools, calls and results that leave no trace in the text. No effects.

A template that does not know tools writes an empty answer in the place of a call, and nothing for a result. So the chat
is rendered once more with marks in these parts, and each mark must be in the text.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from prime_train.core.errors import UserError
from prime_train.environments.environment import Environment, EnvironmentFailed, Message, ToolCall
from prime_train.trainer.chats.chat import Chat
from prime_train.trainer.chats.chat_template import CALL_ID, ChatTemplate

Kind = Literal["call", "result", "tool"]
_HARM: dict[Kind, str] = {  # the worst first
    "call": "the model would learn an empty answer in the place of the call",
    "result": "the model would learn answers to results that it has not seen",
    "tool": "the model would learn answers without having seen its tools",
}


@dataclass(frozen=True, slots=True)
class LostPart:
    """A part of a chat that is not in its text. `name`: "the call of get_weather in message 2"."""

    kind: Kind
    name: str


def refuse_lost_parts(chat: Chat, template: ChatTemplate) -> None:
    """Raises UserError if the template leaves out a tool, a call or a result."""
    _refuse(list(find_lost_parts(chat, template)), template)


def refuse_lost_tools(environments: Sequence[Environment], template: ChatTemplate) -> None:
    """Raises UserError if the template leaves out the tools or results of an environment. It need not write calls."""
    for environment in environments:
        try:
            task = environment.task("train", 0)
        except EnvironmentFailed:
            continue  # the rollouts of its tasks report it
        if task.tools:
            call = ToolCall(task.tools[0].name, "{}", CALL_ID)
            result = Message("tool", "", tool_call_id=call.id, name=call.name)
            chat = Chat((*task.messages, Message("assistant", "", tool_calls=(call,)), result), task.tools)
            lost = [part for part in find_lost_parts(chat, template) if part.kind != "call"]
            _refuse(lost, template, f"{environment.name} with {template.where}")


def _refuse(lost: Sequence[LostPart], template: ChatTemplate, where: str = "") -> None:
    firsts = {part.kind: part for part in reversed(lost)}  # the first part of each kind
    if not firsts:
        return
    worst = next(kind for kind in _HARM if kind in firsts)
    as_text = ", write the calls as text into content" if worst == "call" else ""
    what = f"the chat template writes nothing of {', '.join(firsts[kind].name for kind in _HARM if kind in firsts)}"
    fix = f"use a template that writes tools, calls and results{as_text}, or leave out what has them"
    raise UserError(what, where or template.where, _HARM[worst], fix)


def find_lost_parts(chat: Chat, template: ChatTemplate) -> Iterator[LostPart]:
    """The parts without a trace. None are found if the template refuses the marks."""
    marked, parts = _mark(chat)
    if not parts:
        return
    try:
        text = template.render(marked.messages, marked.tools, generation_prompt=False)
    except UserError:
        return
    yield from (part for number, part in enumerate(parts) if _write_mark(number) not in text)


def _mark(chat: Chat) -> tuple[Chat, list[LostPart]]:
    """(the chat with a mark in each part, the parts): in names of tools, arguments of calls, and texts of results."""
    parts: list[LostPart] = []

    def mark(kind: Kind, name: str) -> str:
        parts.append(LostPart(kind, name))
        return _write_mark(len(parts) - 1)

    tools = tuple(replace(tool, name=mark("tool", f"the tool {tool.name}")) for tool in chat.tools)
    messages: list[Message] = []
    for number, message in enumerate(chat.messages, start=1):
        calls = tuple(
            replace(call, arguments=_mark_arguments(call, mark("call", f"the call of {call.name} in message {number}")))
            for call in message.tool_calls
        )
        content = mark("result", f"the result in message {number}") if message.role == "tool" else message.content
        messages.append(replace(message, content=content, tool_calls=calls))
    return replace(chat, messages=tuple(messages), tools=tools), parts


def _write_mark(number: int) -> str:
    return f"part{number}of"  # letters and digits: no template writes them in another way


def _mark_arguments(call: ToolCall, mark: str) -> str:
    """Arguments of the same keys, or text if the arguments are no object."""
    try:
        arguments = json.loads(call.arguments)
    except (ValueError, RecursionError):
        return mark
    keys = arguments if isinstance(arguments, dict) and arguments else ("argument",)
    return json.dumps(dict.fromkeys(keys, mark))
