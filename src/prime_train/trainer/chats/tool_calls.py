"""Reads the tool calls that a model wrote: JSON as in Hermes, or pairs of key and value as in GLM-4-MoE. Pure.

Sources: the chat templates of Qwen2.5 and of GLM-4.5; vLLM's parsers `hermes` and `glm45`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from prime_train.environments.environment import Tool, ToolCall
from prime_train.trainer.chats.chat_template import CALL_END, CALL_START

_CALL = re.compile(f"{CALL_START}(.*?){CALL_END}", re.DOTALL)
_NAME = re.compile(r"\s*([\w.-]+)(?=<|\s*\n)\s*")  # a word on a line of its own, or right before an argument
_ARGUMENT = re.compile(r"<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>\s*", re.DOTALL)


def read_calls(text: str, tools: Sequence[Tool] = ()) -> tuple[str, tuple[ToolCall, ...]]:
    """(the text without its calls, the calls). What cannot be read as a call remains in the text.

    `tools` have the types of their parameters: only text is written as it is, other values as JSON.
    """
    calls: list[ToolCall] = []

    def take(found: re.Match[str]) -> str:
        read = _read_json(found[1]) or _read_pairs(found[1], tools)
        if read is None:
            return found[0]
        name, arguments = read
        calls.append(
            ToolCall(name, arguments, id=f"call{len(calls) + 1:05d}")
        )  # Mistral's templates accept no other id
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
        key.strip(): value if key.strip() in texts else _read_value(value)
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


def _read_value(written: str) -> Any:
    try:
        return json.loads(written)
    except (ValueError, RecursionError):
        return written
