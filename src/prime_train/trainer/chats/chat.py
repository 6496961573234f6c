"""A chat of a data source: its values, and how a row of a table becomes one. No effects.

A row has a list of messages, or `prompt` and `completion`, as TRL's SFTTrainer reads them:
https://huggingface.co/docs/trl/dataset_formats
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

from prime_train.environments.environment import Message, Tool, ToolCall, ToolRole

ROLES: tuple[ToolRole, ...] = get_args(ToolRole)


@dataclass(frozen=True, slots=True)
class Chat:
    """The messages of a chat. The model learns the assistant's messages from `first_learned` on."""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    first_learned: int = 0


@dataclass(frozen=True, slots=True)
class Completion:
    """Plain text without turns. The model learns `completion`."""

    prompt: str
    completion: str


class RowFault(Exception):
    """A row is no chat. `fix` repairs it."""

    def __init__(self, what: str, fix: str) -> None:
        super().__init__(what)
        self.fix = fix


def read_row(row: object, messages_field: str) -> Chat | Completion:
    """The chat in a row. Raises RowFault."""
    if not isinstance(row, Mapping):
        raise RowFault(f"it is {_kind(row)}, not an object", "write one JSON object for each chat")
    if row.get(messages_field) is not None:
        messages = _messages(row[messages_field], messages_field)
        return Chat(messages, _tools(row.get("tools")))
    prompt, completion = row.get("prompt"), row.get("completion")
    if isinstance(prompt, str) and isinstance(completion, str):
        return Completion(prompt, completion)
    if prompt is not None and completion is not None:
        before = _messages(prompt, "prompt")
        return Chat((*before, *_messages(completion, "completion")), _tools(row.get("tools")), len(before))
    fields = [str(field) for field in row]
    near = difflib.get_close_matches(messages_field, fields, n=1) or ["conversations"][: "conversations" in fields]
    raise RowFault(
        f'it has no field "{messages_field}", and not both "prompt" and "completion"; '
        f"there are {', '.join(fields[:10]) or 'no fields'}",
        f'messages_field = "{near[0]}"' if near else "messages_field = the field with the list of messages",
    )


def _messages(value: object, field: str) -> tuple[Message, ...]:
    value = parse_text(value)
    if not isinstance(value, list | tuple) or not value:
        found = "an empty list" if isinstance(value, list | tuple) else _kind(value)
        raise RowFault(f"{field} is {found}", f"{field} must be a list of messages, each with role and content")
    return tuple(_message(message, f"{field}[{at}]") for at, message in enumerate(value))


def _message(value: object, where: str) -> Message:
    if not isinstance(value, Mapping):
        raise RowFault(f"{where} is {_kind(value)}", "write each message as an object with role and content")
    role = value.get("role")
    if role not in ROLES:
        hint = "; convert from and value to role and content" if {"from", "value"} <= value.keys() else ""
        raise RowFault(
            f"{where}.role is {_shown(role)}", f"a role is one of {', '.join(ROLES)}{_did_you_mean(role)}{hint}"
        )
    calls = _calls(value.get("tool_calls"), f"{where}.tool_calls")
    if calls and role != "assistant":
        raise RowFault(f"{where} has tool calls and the role {role}", "only the assistant calls tools")
    return Message(
        role,
        _content(value.get("content"), f"{where}.content", optional=bool(calls)),
        tool_calls=calls,
        tool_call_id=_text(value, "tool_call_id", where),
        name=_text(value, "name", where),
        reasoning=_text(value, "reasoning_content", where) or _text(value, "thinking", where),
    )


def _content(value: object, where: str, *, optional: bool) -> str:
    """Text, or a list of parts of text. An assistant's message with tool calls may have none."""
    if isinstance(value, str):
        return value
    if value is None and optional:
        return ""
    if isinstance(value, list | tuple):
        texts = [part.get("text") if isinstance(part, Mapping) else None for part in value]
        if all(isinstance(text, str) for text in texts):
            return "".join(map(str, texts))
        raise RowFault(f"{where} has a part that is not text", "leave out chats with images, audio and files")
    raise RowFault(f"{where} is {_kind(value)}", "content must be a text")


def _calls(value: object, where: str) -> tuple[ToolCall, ...]:
    value = parse_text(value)
    if value is None:
        return ()
    if not isinstance(value, list | tuple):
        raise RowFault(f"{where} is {_kind(value)}", "tool_calls must be a list")
    calls: list[ToolCall] = []
    for at, each in enumerate(value):
        call = each.get("function") or each if isinstance(each, Mapping) else None
        if not isinstance(call, Mapping) or not isinstance(call.get("name"), str):
            raise RowFault(f"{where}[{at}] has no name of a function", 'write {"function": {"name": ..., "arguments"}}')
        arguments = call.get("arguments")
        as_text = arguments if isinstance(arguments, str) else json.dumps(_without_none(arguments) or {}, default=str)
        calls.append(ToolCall(call["name"], as_text, str(each.get("id") or "")))
    return tuple(calls)


def _tools(value: object) -> tuple[Tool, ...]:
    value = parse_text(value)
    if value is None:
        return ()
    if not isinstance(value, list | tuple):
        raise RowFault(f"tools is {_kind(value)}", "tools must be a list of functions, each with name and parameters")
    tools: list[Tool] = []
    for at, each in enumerate(value):
        each = parse_text(each)
        tool = each.get("function") or each if isinstance(each, Mapping) else None
        if not isinstance(tool, Mapping) or not isinstance(tool.get("name"), str):
            raise RowFault(f"tools[{at}] has no name", 'write {"type": "function", "function": {"name": ...}}')
        parameters = _without_none(tool.get("parameters") or {})
        if not isinstance(parameters, dict):
            raise RowFault(f"tools[{at}].parameters is {_kind(parameters)}", "parameters must be a JSON schema")
        tools.append(Tool(tool["name"], str(tool.get("description") or ""), parameters))
    return tuple(tools)


def _text(message: Mapping[str, Any], field: str, where: str) -> str:
    value = message.get(field)
    if value is None or isinstance(value, str):
        return value or ""
    raise RowFault(f"{where}.{field} is {_kind(value)}", f"{field} must be a text, or absent")


def parse_text(value: object) -> object:
    """The value of JSON text, in which tables often keep nested values; anything else as it is."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def _without_none(value: object) -> object:
    """`value` without the keys that a table adds to every row because other rows have them."""
    if isinstance(value, Mapping):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [_without_none(item) for item in value]
    return value


def _kind(value: object) -> str:
    if value is None:
        return "absent or null"
    kinds: dict[str, Any] = {"true or false": bool, "a number": (int, float), "a text": str}
    kinds |= {"a list": (list, tuple), "an object": Mapping}
    found = (name for name, kind in kinds.items() if isinstance(value, kind))
    return next(found, f"of type {type(value).__name__}")


def _shown(value: object) -> str:
    return json.dumps(value[:40]) if isinstance(value, str) else _kind(value)


def _did_you_mean(role: object) -> str:
    known = {"human": "user", "gpt": "assistant", "model": "assistant", "bot": "assistant", "developer": "system"}
    known |= {"function": "tool", "ai": "assistant"}
    if not isinstance(role, str):
        return ""
    near = known.get(role.lower()) or next(iter(difflib.get_close_matches(role.lower(), ROLES, n=1)), None)
    return f"; did you mean {near}?" if near else ""
