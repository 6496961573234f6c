"""Prompts, the tokens between answers, and answers as messages."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prime_train.core.errors import UserError
from prime_train.environments.environment import Message, Tool, ToolCall
from prime_train.spec import Run, Source, Tokenizer
from prime_train.spec.rl import TaskSource
from prime_train.trainer.chats import chat_template
from prime_train.trainer.chats.chat_tokenizer import load_chat_tokenizer
from prime_train.trainer.chats.chat_tokens import ChatTokenizer
from tests.fakes.model_folder import STEADY
from tests.unit.trainer.chats.chats import TEMPLATES, chat_run, load_folder, texts, weather_chat, write_folder

USER = Message("user", "a")


def answer_tokens(tokenizer: ChatTokenizer, text: str) -> list[int]:
    return tokenizer.encode(text + tokenizer.ends.before["user"])


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> ChatTokenizer:
    tasks = (TaskSource(kind="reverse-text"), TaskSource(kind="calculator"))
    run = chat_run(tasks=tasks, run=Run(name="rewards", kind="rl", max_steps=1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PRIME_TRAIN_CACHE", str(tmp_path_factory.mktemp("cache")))
        return load_chat_tokenizer(run)


def test_a_trained_tokenizer_has_four_control_tokens_of_chats(trained: ChatTokenizer) -> None:
    assert trained.tokenizer.vocab_size == 300
    assert set(trained.tokenizer.control_tokens) == {"<|im_start|>", "<|im_end|>"}
    assert trained.stop_tokens == {trained.tokenizer.eos_id} == {trained.tokenizer.control_tokens["<|im_end|>"]}
    assert len(trained.tokenizer.encode("<tool_call></tool_call>")) == 2
    assert {file.name for file in trained.tokenizer.files} >= {"tokenizer.json", "chat_template.jinja"}


def test_the_exported_folder_is_the_same_chat_tokenizer(trained: ChatTokenizer) -> None:
    folder = trained.tokenizer.files[0].parent
    loaded = load_folder(folder)
    chat = weather_chat()
    assert loaded.prompt_tokens(chat.messages, chat.tools) == trained.prompt_tokens(chat.messages, chat.tools)
    assert loaded.stop_tokens == trained.stop_tokens


def test_the_smallest_vocabulary_has_every_byte() -> None:
    source, task = Source(kind="demonstrations", count=20), TaskSource(kind="sort-digits")
    smallest = load_chat_tokenizer(chat_run(source, tasks=(task,), tokenizer=Tokenizer(vocab_size=260)))
    assert smallest.tokenizer.vocab_size == 260
    assert smallest.decode(smallest.encode("日本 {x}")) == "日本 {x}"


@settings(deadline=None)
@given(text=texts(blocked=("<think>",)))
def test_messages_make_no_control_token(text: str, tokenizers: dict[str, ChatTokenizer]) -> None:
    tokenizer = tokenizers["built-in"]
    start, end = (tokenizer.tokenizer.control_tokens[token] for token in ("<|im_start|>", "<|im_end|>"))
    tokens = tokenizer.prompt_tokens([Message("user", text), Message("assistant", text), Message("user", text)])
    assert (tokens.count(start), tokens.count(end)) == (4, 3)
    assert tokenizer.decode(tokens).count(text) >= 3


def test_tools_make_no_control_token(tokenizers: dict[str, ChatTokenizer]) -> None:
    tool = Tool("f", "<|im_end|>", {"type": "object", "description": "<|im_start|>"})
    for tokenizer in (tokenizers["built-in"], tokenizers["qwen"]):
        end = tokenizer.tokenizer.control_tokens["<|im_end|>"]
        assert tokenizer.prompt_tokens([USER], [tool]).count(end) == 2


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_prompt_and_what_follows_are_the_longer_prompt(name: str, tokenizers: dict[str, ChatTokenizer]) -> None:
    tokenizer, chat = tokenizers[name], weather_chat()
    before, after = chat.messages[:6], chat.messages[6:7]
    stop = tokenizer.tokenizer.control_tokens[tokenizer.ends.before["user"]]
    following = tokenizer.following_tokens(before, after, chat.tools, stop=stop)
    longer = tokenizer.prompt_tokens((*before, *after), chat.tools)
    assert longer[-len(following) :] == following
    assert tokenizer.decode(following).count("Danke") == 1


@pytest.mark.parametrize("name", TEMPLATES)
def test_what_follows_a_call_begins_with_its_results(name: str, tokenizers: dict[str, ChatTokenizer]) -> None:
    tokenizer, chat = tokenizers[name], weather_chat()
    stop = tokenizer.tokenizer.control_tokens[tokenizer.ends.before["tool"]]
    text = tokenizer.decode(tokenizer.following_tokens(chat.messages[:3], chat.messages[3:5], chat.tools, stop=stop))
    assert "18" in text
    assert "21" in text
    assert "get_weather" not in text
    assert "Paris" not in text


def test_an_answer_without_its_end_gets_one(tokenizers: dict[str, ChatTokenizer]) -> None:
    tokenizer = tokenizers["built-in"]
    chat = [USER, Message("assistant", "b")]
    end = tokenizer.tokenizer.eos_id
    ended = tokenizer.following_tokens(chat, [USER], stop=end)
    assert tokenizer.following_tokens(chat, [USER], stop=None) == (end, *ended)


def test_a_new_message_cannot_end_the_answer(tokenizers: dict[str, ChatTokenizer]) -> None:
    tokenizer = tokenizers["built-in"]
    new = Message("user", "\ufdd1<|im_end|>")
    tokens = tokenizer.following_tokens([USER, Message("assistant", "b")], [new], stop=tokenizer.tokenizer.eos_id)
    assert tokenizer.decode(tokens).count("user\n") == 1


def test_an_answer_with_calls(tokenizers: dict[str, ChatTokenizer]) -> None:
    call = '<tool_call>\n{"name": "f", "arguments": {"x": "é"}}\n</tool_call>'
    for tokenizer in tokenizers.values():
        assert tokenizer.parse_answer(answer_tokens(tokenizer, f"I call.\n{call}\n{call}")) == Message(
            "assistant",
            "I call.",
            tool_calls=(ToolCall("f", '{"x": "é"}', "call00001"), ToolCall("f", '{"x": "é"}', "call00002")),
        )


def test_a_parsed_call_is_rendered_as_it_was_written(trained: ChatTokenizer) -> None:
    written = '<tool_call>\n{"name": "f", "arguments": {"x": "1 + 2"}}\n</tool_call>'
    message = trained.parse_answer(answer_tokens(trained, written))
    assert written in trained.template.render([USER, message], generation_prompt=False)


@pytest.mark.parametrize(
    "text",
    [
        " a \n",
        "<tool_call>f(1)</tool_call>",
        "<tool_call>[1]</tool_call>",
        '<tool_call>{"name": 3}</tool_call>',
        '<tool_call>{"name": "f"}',
        "</tool_call><tool_call>",
        "<tool_call>" + "[" * 3000 + "</tool_call>",
    ],
)
def test_what_is_no_call_is_text(text: str, trained: ChatTokenizer) -> None:
    assert trained.parse_answer(answer_tokens(trained, text)) == Message("assistant", text)


@pytest.mark.parametrize(("written", "arguments"), [('"{}"', "{}"), ("[1]", "[1]"), ("null", "null")])
def test_arguments_that_are_no_object_are_kept(written: str, arguments: str, trained: ChatTokenizer) -> None:
    answer = trained.parse_answer(
        answer_tokens(trained, f'<tool_call>{{"name": "f", "arguments": {written}}}</tool_call>')
    )
    assert answer.tool_calls[0].arguments == arguments
    trained.following_tokens([USER, answer], [Message("tool", "x", tool_call_id="call00001")], stop=None)


@settings(deadline=None)
@given(tokens=st.lists(st.integers(0, 299), max_size=40))
def test_any_tokens_are_an_answer(tokens: list[int], trained: ChatTokenizer) -> None:
    answer = trained.parse_answer(tokens)
    assert trained.following_tokens([USER, answer], [USER], stop=None)


def test_the_stop_tokens_of_a_folder(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, STEADY, eos_token="<|endoftext|>")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [259, 257, True, "x"]}))
    assert load_folder(folder).stop_tokens == {256, 257, 258, 259}


def test_a_folder_without_a_template(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no chat template") as caught:
        load_folder(write_folder(tmp_path))
    assert caught.value.where == f'tokenizer.path = "{tmp_path}"'


def test_a_template_with_a_syntax_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no valid Jinja: line 1"):
        load_folder(write_folder(tmp_path, "{% if %}")).prompt_tokens([USER])


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('no system message') }}",
        "{{ messages[7].content }}",
        "{{ 1 / 0 }}",
        "{{ messages + 1 }}",
        "{{ ''.__class__.__mro__ }}",
        "{% for a in range(1000000) %}{% endfor %}",
        "{{ messages.append(1) }}",
    ],
)
def test_a_template_that_refuses_a_chat(template: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="refuses a chat"):
        load_folder(write_folder(tmp_path, template)).prompt_tokens([USER])


def test_the_text_of_a_template_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "MAX_CHARACTERS", 1000)
    endless = "{% for a in range(9999) %}{% for b in range(9999) %}abc{% endfor %}{% endfor %}"
    with pytest.raises(UserError, match="more than 1,000 characters"):
        load_folder(write_folder(tmp_path, endless)).prompt_tokens([USER])


def test_a_template_that_ends_no_answer(tmp_path: Path) -> None:
    tokenizer = load_folder(write_folder(tmp_path, "{% for m in messages %}{{ m.content }}{% endfor %}"))
    with pytest.raises(UserError, match="without a control token"):
        _ = tokenizer.ends
