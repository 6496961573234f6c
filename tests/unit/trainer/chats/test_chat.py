"""A row becomes a chat, or its fault and the fix are named."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_train.environments.environment import Message, Tool, ToolCall
from prime_train.trainer.chats.chat import Chat, Completion, RowFault, read_row

USER = {"role": "user", "content": "a"}
ANSWER = {"role": "assistant", "content": "b"}
FUNCTION = {"name": "f", "description": "d", "parameters": {"type": "object"}}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["role", "content", "messages", "prompt", "completion", "tools", "tool_calls", "name"])
            | st.text(max_size=3),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


def chat(*messages: Any, **fields: Any) -> Chat:
    found = read_row({"messages": list(messages), **fields}, "messages")
    assert isinstance(found, Chat)
    return found


def test_messages_with_roles() -> None:
    assert chat(USER, ANSWER) == Chat((Message("user", "a"), Message("assistant", "b")))


@pytest.mark.parametrize("as_text", [False, True])
@pytest.mark.parametrize("nested", [False, True])
def test_calls_and_tools_in_every_form(as_text: bool, nested: bool) -> None:
    """As objects, as JSON text, and with or without `function` around them."""
    call: dict[str, Any] = {"name": "f", "arguments": '{"x": 1}' if as_text else {"x": 1, "y": None}}
    calls: Any = [{"id": "c", "type": "function", "function": call} if nested else {"id": "c", **call}]
    tools: Any = [{"type": "function", "function": FUNCTION} if nested else FUNCTION]
    found = chat(
        USER,
        {"role": "assistant", "content": None, "tool_calls": json.dumps(calls) if as_text else calls},
        {"role": "tool", "content": "1", "tool_call_id": "c", "name": "f"},
        tools=json.dumps(tools) if as_text else tools,
    )
    assert found.tools == (Tool("f", "d", {"type": "object"}),)
    assert found.messages[1] == Message("assistant", "", tool_calls=(ToolCall("f", '{"x": 1}', "c"),))
    assert found.messages[2] == Message("tool", "1", tool_call_id="c", name="f")


def test_fields_that_a_table_adds_are_absent() -> None:
    filled = {"role": "user", "content": "a", "tool_calls": None, "name": None, "reasoning_content": None}
    assert chat(filled, ANSWER, tools=None) == chat(USER, ANSWER)


def test_parts_of_text_are_one_text() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert chat({"role": "user", "content": parts}).messages[0].content == "ab"


def test_thoughts_have_a_field_of_their_own() -> None:
    assert chat({**ANSWER, "reasoning_content": "x"}).messages[0].reasoning == "x"
    assert chat({**ANSWER, "thinking": "x"}).messages[0].reasoning == "x"


def test_prompt_and_completion() -> None:
    assert read_row({"prompt": "a", "completion": "b"}, "messages") == Completion("a", "b")
    found = read_row({"prompt": [USER], "completion": [ANSWER]}, "messages")
    assert found == Chat((Message("user", "a"), Message("assistant", "b")), first_learned=1)


@pytest.mark.parametrize(
    ("row", "what", "fix"),
    [
        ([USER], "it is a list", "one JSON object"),
        ({"text": "a"}, 'no field "messages"', "messages_field = "),
        ({"message": [USER]}, 'no field "messages"', 'messages_field = "message"'),
        ({"conversations": [USER]}, 'no field "messages"', 'messages_field = "conversations"'),
        ({}, "there are no fields", "messages_field = "),
        ({"messages": []}, "messages is an empty list", "a list of messages"),
        ({"messages": "hello"}, "messages is a text", "a list of messages"),
        ({"messages": ["hello"]}, r"messages\[0\] is a text", "role and content"),
        ({"messages": [{"role": "gpt", "content": "a"}]}, 'role is "gpt"', "did you mean assistant"),
        ({"messages": [{"role": "asistant", "content": "a"}]}, 'role is "asistant"', "did you mean assistant"),
        ({"messages": [{"from": "human", "value": "a"}]}, "role is absent", "convert from and value"),
        ({"messages": [{"role": ["user"], "content": "a"}]}, "role is a list", "one of system, user"),
        ({"messages": [{"role": "user"}]}, r"messages\[0\].content is absent", "must be a text"),
        ({"messages": [USER, {"role": "assistant", "content": 4}]}, r"messages\[1\].content is a number", "be a text"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "not text", "leave out"),
        ({"messages": [{**USER, "tool_calls": [{"name": "f"}]}]}, "tool calls and the role user", "only the assistant"),
        ({"messages": [{**ANSWER, "tool_calls": [{"arguments": {}}]}]}, "no name", "function"),
        ({"messages": [{**ANSWER, "tool_calls": 3}]}, "tool_calls is a number", "a list"),
        ({"messages": [{**ANSWER, "reasoning_content": 3}]}, "reasoning_content is a number", "must be a text"),
        ({"messages": [USER], "tools": [{"description": "d"}]}, r"tools\[0\] has no name", "name"),
        ({"messages": [USER], "tools": "calculator"}, "tools is a text", "a list of functions"),
        ({"messages": [USER], "tools": [{"name": "f", "parameters": 3}]}, "parameters is a number", "JSON schema"),
    ],
)
def test_a_row_that_is_no_chat(row: object, what: str, fix: str) -> None:
    with pytest.raises(RowFault, match=what) as caught:
        read_row(row, "messages")
    assert fix in caught.value.fix


@given(JSON)
def test_any_value_is_a_chat_or_a_fault(value: object) -> None:
    try:
        found = read_row(value, "messages")
    except RowFault:
        return
    assert isinstance(found, Completion) or found.messages
