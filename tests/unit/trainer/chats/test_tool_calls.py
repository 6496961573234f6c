"""Calls of both forms, and text that is no call."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prime_train.environments.environment import Message, Tool, ToolCall
from prime_train.trainer.chats.chat_tokens import ChatTokenizer, read_calls
from tests.unit.trainer.chats.chats import WEATHER

PAIRS = "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>{}</arg_value>\n</tool_call>"


def only_call(text: str, tools: tuple[Tool, ...] = ()) -> tuple[str, Any]:
    content, (call,) = read_calls(text, tools)
    assert content == ""
    return call.name, json.loads(call.arguments)


@pytest.mark.parametrize(
    ("written", "city"), [("Paris", "Paris"), ("12", 12), ('{"a": [1]}', {"a": [1]}), ("a\nb", "a\nb"), ("", "")]
)
def test_a_call_of_pairs(written: str, city: object) -> None:
    assert only_call(PAIRS.format(written)) == ("get_weather", {"city": city})


def test_a_parameter_that_is_text_is_not_read_as_json() -> None:
    assert only_call(PAIRS.format("12"), (WEATHER,)) == ("get_weather", {"city": "12"})


@pytest.mark.parametrize("text", ["<tool_call>now\n</tool_call>", "\n<tool_call>\nnow\n\n</tool_call>"])
def test_a_call_without_arguments(text: str) -> None:
    assert only_call(text) == ("now", {})


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>now</tool_call>",
        "<tool_call>two words\n</tool_call>",
        "<tool_call>f\n<arg_key>a</arg_key></tool_call>",
        "<tool_call>f\n<arg_value>a</arg_value>\n</tool_call>",
        "<tool_call>f\nand more</tool_call>",
        "<tool_call></tool_call>",
    ],
)
def test_what_is_no_pair_is_text(text: str) -> None:
    assert read_calls(text) == (text, ())


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.sampled_from(["", "a", "1", "<b>", "日 \n"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
    max_leaves=4,
)


@settings(deadline=None, max_examples=60)
@given(arguments=st.dictionaries(st.sampled_from(["city", "when", "how"]), _VALUES, max_size=3))
def test_the_calls_of_a_template_are_read_as_they_were(
    arguments: dict[str, Any], tokenizers: dict[str, ChatTokenizer]
) -> None:
    """With the types of the parameters, every template's own form but Llama's gives the call back."""
    properties = {key: {"type": "string"} for key, value in arguments.items() if isinstance(value, str)}
    tool = Tool("f", "", {"type": "object", "properties": properties})
    answer = Message("assistant", "", tool_calls=(ToolCall("f", json.dumps(arguments), "call00001"),))
    for name in ("built-in", "qwen", "glm"):
        template = tokenizers[name].template
        written = template.render((Message("user", "a"), answer), generation_prompt=False)
        (call,) = read_calls(written.replace("\ufdd0", ""), (tool,))[1]
        assert (call.name, json.loads(call.arguments)) == ("f", arguments)
