"""The labels of a chat are those of transformers' own mask, and its tokens are those that a rollout would have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prime_train.core.errors import UserError
from prime_train.environments.environment import Message, ToolCall
from prime_train.trainer.chats.chat import Chat, Completion
from prime_train.trainer.chats.chat_template import message_json, tool_json
from prime_train.trainer.chats.chat_tokens import ChatTokenizer
from prime_train.trainer.chats.labels import LabelledTokens, label
from tests.fakes.model_folder import FORGETFUL, STEADY
from tests.unit.trainer.chats.chats import (
    GLM_MARKED,
    GLM_STOPS,
    MARKED,
    TEMPLATES,
    WEATHER,
    chats,
    load_folder,
    texts,
    weather_chat,
    write_folder,
    write_glm,
)

SPECIAL = ("<|im_end|>", "<|im_start|>", "<|user|>", "<think>")
ORDINARY = texts(blocked=SPECIAL)


def by_transformers(folder: Path, chat: Chat, name: str) -> LabelledTokens:
    """The tokens and the mask of apply_chat_template, which reads the {% generation %} blocks of the template."""
    from transformers import PreTrainedTokenizerFast  # takes a second: not in every worker

    made: Any = PreTrainedTokenizerFast
    eos = "<|endoftext|>" if name == "glm" else "<|im_end|>"
    tokenizer = made(tokenizer_file=str(folder / "tokenizer.json"), eos_token=eos, bos_token="<|endoftext|>")
    found = tokenizer.apply_chat_template(
        [message_json(message) for message in chat.messages],
        tools=[tool_json(tool) for tool in chat.tools] or None,
        chat_template=MARKED[name],
        tokenize=True,
        return_dict=True,
        return_assistant_tokens_mask=True,
    )
    return LabelledTokens(tuple(found["input_ids"]), tuple(map(bool, found["assistant_masks"])))


def by_prefixes(chat: Chat, tokenizer: ChatTokenizer) -> LabelledTokens:
    """A naive reference: each answer is what its prompt lacks, up to the end of the turn; all is tokenised again."""
    tokens = tokenizer.encode(tokenizer.template.render(chat.messages, chat.tools, generation_prompt=False))
    if tokens[-1] not in tokenizer.stop_tokens and tokens[-1] != ord("\n"):  # the template ends no last turn
        tokens.append(tokenizer.tokenizer.control_tokens["<|user|>"])
    learned = [False] * len(tokens)
    for turn, message in enumerate(chat.messages):
        if message.role == "assistant":
            begin = len(tokenizer.prompt_tokens(chat.messages[:turn], chat.tools))
            end = next(at for at in range(begin, len(tokens)) if tokens[at] in tokenizer.stop_tokens) + 1
            learned[begin:end] = [True] * (end - begin)
    return LabelledTokens(tuple(tokens), tuple(learned))


def rolled_out(chat: Chat, tokenizer: ChatTokenizer) -> LabelledTokens:
    """The tokens of a rollout in which the model answers as in the chat: only its answers are taken from labels."""
    turns = [at for at, message in enumerate(chat.messages) if message.role == "assistant"]
    tokens = list(tokenizer.prompt_tokens(chat.messages[: turns[0]], chat.tools))
    learned = [False] * len(tokens)
    for turn, next_turn in zip(turns, [*turns[1:], None], strict=True):
        part = label(Chat(chat.messages[: turn + 1], chat.tools, first_learned=turn), tokenizer)[0]
        answer = [token for token, is_learned in zip(part.tokens, part.learned, strict=True) if is_learned]
        tokens += answer
        learned += [True] * len(answer)
        if next_turn is not None:
            new = chat.messages[turn + 1 : next_turn]
            following = tokenizer.following_tokens(chat.messages[: turn + 1], new, chat.tools, stop=answer[-1])
            without_end = tokenizer.following_tokens(chat.messages[: turn + 1], new, chat.tools, stop=None)
            assert without_end == (answer[-1], *following)
            tokens += following
            learned += [False] * len(following)
    return LabelledTokens(tuple(tokens), tuple(learned))


def learned_texts(document: LabelledTokens, tokenizer: ChatTokenizer) -> list[str]:
    """The text of each stretch of learned tokens."""
    found: list[list[int]] = [[]]
    for token, learned in zip(document.tokens, document.learned, strict=True):
        if learned:
            found[-1].append(token)
        elif found[-1]:
            found.append([])
    return [tokenizer.decode(tokens) for tokens in found if tokens]


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_chat_with_tools_has_the_mask_of_transformers(
    name: str, folders: dict[str, Path], tokenizers: dict[str, ChatTokenizer]
) -> None:
    chat = weather_chat()
    (document,) = label(chat, tokenizers[name])
    assert document == by_transformers(folders[name], chat, name)
    assert sum(document.learned) > 30


@settings(deadline=None, max_examples=60)
@given(name=st.sampled_from(sorted(TEMPLATES)), chat=chats(ORDINARY))
def test_any_chat_has_the_mask_of_transformers(
    name: str, chat: Chat, folders: dict[str, Path], tokenizers: dict[str, ChatTokenizer]
) -> None:
    (document,) = label(chat, tokenizers[name])
    assert document == by_transformers(folders[name], chat, name)


@settings(deadline=None, max_examples=60)
@given(name=st.sampled_from(sorted(TEMPLATES)), chat=chats(texts()))
def test_any_chat_has_the_mask_of_its_prefixes(name: str, chat: Chat, tokenizers: dict[str, ChatTokenizer]) -> None:
    """Also with messages that contain control tokens."""
    (document,) = label(chat, tokenizers[name])
    assert document == by_prefixes(chat, tokenizers[name])


@settings(deadline=None, max_examples=60)
@given(name=st.sampled_from(["built-in", "llama", "glm"]), chat=chats(texts()))
def test_a_rollout_has_the_tokens_of_fine_tuning(name: str, chat: Chat, tokenizers: dict[str, ChatTokenizer]) -> None:
    (document,) = label(chat, tokenizers[name])
    rollout = rolled_out(chat, tokenizers[name])
    length = len(rollout.tokens)
    assert (document.tokens[:length], document.learned[:length]) == (rollout.tokens, rollout.learned)
    assert not any(document.learned[length:])


def test_messages_behind_the_last_answer_are_left_out(tokenizers: dict[str, ChatTokenizer]) -> None:
    chat = weather_chat()
    longer = Chat((*chat.messages, Message("user", "More")), chat.tools)
    assert label(longer, tokenizers["built-in"]) == label(chat, tokenizers["built-in"])


def test_dropped_thoughts_make_documents_of_their_own(tokenizers: dict[str, ChatTokenizer]) -> None:
    """Qwen3's template drops the thoughts before a later question, so the first turns need their own context."""
    first, last = label(weather_chat("Two cities."), tokenizers["qwen"])
    assert "".join(learned_texts(first, tokenizers["qwen"])).count("Two cities.") == 1
    assert "Two cities." not in tokenizers["qwen"].decode(last.tokens)
    (answer,) = learned_texts(last, tokenizers["qwen"])[-1:]
    assert answer.endswith("I do not know.")


@settings(deadline=None, max_examples=60)
@given(name=st.sampled_from(["qwen", "glm"]), chat=chats(ORDINARY, thoughts=True))
def test_each_answer_is_learned_behind_its_own_prompt(
    name: str, chat: Chat, tokenizers: dict[str, ChatTokenizer]
) -> None:
    tokenizer = tokenizers[name]
    documents = label(chat, tokenizer)
    for turn, message in enumerate(chat.messages):
        if message.role == "assistant":
            prompt = tokenizer.prompt_tokens(chat.messages[:turn], chat.tools)
            begins = [
                document.tokens[: len(prompt)] == prompt and document.learned[len(prompt)] for document in documents
            ]
            assert any(begins)
    assert sum(len(learned_texts(document, tokenizer)) for document in documents) >= sum(
        message.role == "assistant" for message in chat.messages
    )


@pytest.mark.parametrize("template", [STEADY, FORGETFUL])
def test_thoughts_in_the_content_are_learned(template: str, tmp_path: Path) -> None:
    tokenizer = load_folder(write_folder(tmp_path / "folder", template))
    chat = Chat((Message("user", "1?"), Message("assistant", "<think>\nx\n</think>\n\n2")))
    (document,) = label(chat, tokenizer)
    assert learned_texts(document, tokenizer) == ["\nx\n\n\n2"]
    thinks = tokenizer.tokenizer.control_tokens["<think>"]
    assert thinks in document.tokens


def test_a_forged_end_of_turn_ends_nothing(tokenizers: dict[str, ChatTokenizer]) -> None:
    answer = "a<|im_end|>b"
    (document,) = label(Chat((Message("user", answer), Message("assistant", answer))), tokenizers["built-in"])
    ends = tokenizers["built-in"].tokenizer.control_tokens["<|im_end|>"]
    assert document.tokens.count(ends) == 2
    assert learned_texts(document, tokenizers["built-in"]) == [answer]


def test_only_the_completion_is_learned(tokenizers: dict[str, ChatTokenizer]) -> None:
    tokenizer = tokenizers["built-in"]
    (plain,) = label(Completion("2 + 2 =", " 4"), tokenizer)
    assert learned_texts(plain, tokenizer) == [" 4"]
    assert plain.tokens[-1] == tokenizer.tokenizer.eos_id
    assert plain.learned[-1]
    messages = (Message("user", "a"), Message("assistant", "b"), Message("user", "c"), Message("assistant", "d"))
    (document,) = label(Chat(messages, first_learned=2), tokenizer)
    assert learned_texts(document, tokenizer) == ["d"]


def test_a_chat_without_an_answer_has_no_document(tokenizers: dict[str, ChatTokenizer]) -> None:
    assert label(Chat((Message("user", "a"),)), tokenizers["built-in"]) == ()


def test_a_prompt_that_no_answer_begins_with_is_reported(tmp_path: Path) -> None:
    template = STEADY.replace("<|im_start|>assistant\\n' }}{% endif", "<|im_start|>assistant\\n<think>\\n' }}{% endif")
    with pytest.raises(UserError, match="does not begin with the prompt"):
        label(Chat((Message("user", "a"), Message("assistant", "b"))), load_folder(write_folder(tmp_path, template)))


# --- a template whose turns end with the token of the next message ---------------------------------


def ends_of_answers(document: LabelledTokens, tokenizer: ChatTokenizer) -> list[str]:
    """The last token of each stretch of learned tokens, as text."""
    texts = {token: text for text, token in tokenizer.tokenizer.control_tokens.items()}
    learned = [*document.learned, False]
    return [texts.get(token, "") for at, token in enumerate(document.tokens) if learned[at] and not learned[at + 1]]


def test_each_answer_ends_with_the_token_of_the_next_message(tokenizers: dict[str, ChatTokenizer]) -> None:
    tokenizer, chat = tokenizers["glm"], weather_chat()
    (document,) = label(chat, tokenizer)
    assert ends_of_answers(document, tokenizer) == ["<|observation|>", "<|user|>", "<|user|>"]
    begins = tokenizer.tokenizer.control_tokens["<|user|>"]
    assert document.tokens.count(begins) == 3, "two questions, and the end of the chat"


@pytest.mark.parametrize("following", [None, Message("tool", "18", tool_call_id="c", name="get_weather")])
def test_a_chat_that_ends_with_a_call_waits_for_its_result(
    following: Message | None, tokenizers: dict[str, ChatTokenizer]
) -> None:
    call = ToolCall("get_weather", '{"city": "Rome"}', "call00001")
    messages = [Message("user", "a"), Message("assistant", "", tool_calls=(call,))]
    chat = Chat((*messages, *([following] if following else [])), (WEATHER,))
    (document,) = label(chat, tokenizers["glm"])
    assert ends_of_answers(document, tokenizers["glm"]) == ["<|observation|>"]


def test_a_system_message_ends_an_answer_and_another_answer_does_not(tokenizers: dict[str, ChatTokenizer]) -> None:
    tokenizer, question = tokenizers["glm"], Message("user", "a")
    for role, end in (("system", "<|system|>"), ("assistant", "")):
        between: Any = Message(role, "b")  # type: ignore[arg-type]
        (document,) = label(Chat((question, Message("assistant", "c"), between, question)), tokenizer)
        assert ends_of_answers(document, tokenizer)[0] == end
        assert learned_texts(document, tokenizer)[0].endswith("c")


def test_a_template_with_generation_blocks_has_the_same_labels(
    tmp_path: Path, tokenizers: dict[str, ChatTokenizer]
) -> None:
    """It writes the end of a turn itself, also of the last one."""
    marked = load_folder(write_glm(tmp_path, GLM_MARKED))
    assert marked.ends.own == "<|user|>"
    assert tokenizers["glm"].ends.own is None
    assert label(weather_chat(), marked) == label(weather_chat(), tokenizers["glm"])


def test_thoughts_of_earlier_turns_are_learned_where_the_template_writes_them(
    tokenizers: dict[str, ChatTokenizer],
) -> None:
    question, tokenizer = Message("user", "q"), tokenizers["glm"]
    chat = Chat(
        (question, Message("assistant", "a", reasoning="x"), question, Message("assistant", "<think>y</think>b"))
    )
    first, last = label(chat, tokenizer)
    assert learned_texts(first, tokenizer) == ["\n<think>x</think>\na"]
    assert learned_texts(last, tokenizer) == ["\n<think>y</think>\nb"]
    assert ends_of_answers(first, tokenizer) == ends_of_answers(last, tokenizer) == ["<|user|>"]


def test_a_switch_of_thoughts_in_a_question_is_its_token(tokenizers: dict[str, ChatTokenizer]) -> None:
    tokenizer = tokenizers["glm"]
    tokens = tokenizer.prompt_tokens([Message("user", "hi /nothink<|user|>")])
    assert tokens.count(tokenizer.tokenizer.control_tokens["/nothink"]) == 1
    assert tokens.count(tokenizer.tokenizer.control_tokens["<|user|>"]) == 1, "the message forges none"


def test_without_the_stop_tokens_of_the_model_the_template_shows_the_ends(tmp_path: Path) -> None:
    folder = write_glm(tmp_path)
    (folder / "generation_config.json").unlink()
    tokenizer = load_folder(folder)
    control = tokenizer.tokenizer.control_tokens
    assert tokenizer.stop_tokens == {control[text] for text in (*GLM_STOPS, "<|system|>")}
    (document,) = label(weather_chat(), tokenizer)
    assert ends_of_answers(document, tokenizer) == ["<|observation|>", "<|user|>", "<|user|>"]


# --- other ends ------------------------------------------------------------------------------------

TWO = Chat((Message("user", "a"), Message("assistant", "b"), Message("user", "c"), Message("assistant", "d")))
_TURNS = "{%- for m in messages %}{{- '<|im_start|>' + m.role + '\\n' + m.content }}"
_ASKS = "{%- endfor %}{% if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}"


def test_a_chat_that_ends_with_another_token_than_its_turns(tmp_path: Path) -> None:
    """As gpt-oss has it: no question is learned."""
    template = _TURNS + "{{- '<|endoftext|>' if loop.last and m.role == 'assistant' else '<|im_end|>' }}" + _ASKS
    tokenizer = load_folder(write_folder(tmp_path, template, eos_token="<|endoftext|>"))
    (document,) = label(TWO, tokenizer)
    assert learned_texts(document, tokenizer) == ["b", "d"]
    assert ends_of_answers(document, tokenizer) == ["<|im_end|>", "<|endoftext|>"]
    control = tokenizer.tokenizer.control_tokens
    assert tokenizer.stop_tokens == {control["<|endoftext|>"]}


def test_the_end_of_an_answer_is_the_token_that_stops_the_model(tmp_path: Path) -> None:
    """As Cohere's Command R7B has it: two tokens are behind an answer, and the second is the end of the turn."""
    template = _TURNS + "{{- '</think>' if m.role == 'assistant' }}{{- '<|im_end|>' }}" + _ASKS
    tokenizer = load_folder(write_folder(tmp_path, template))
    (document,) = label(TWO, tokenizer)
    assert ends_of_answers(document, tokenizer) == ["<|im_end|>", "<|im_end|>"]


def test_a_result_in_the_turn_of_the_model_is_refused(tmp_path: Path) -> None:
    """As Gemma 4's template has it: with no end before the result, the model would learn to write results."""
    template = (
        "{%- for m in messages %}{% set after_tool = not loop.first and loop.previtem.role == 'tool' %}"
        "{%- if m.role == 'tool' %}{{- '=' + m.content if loop.previtem.tool_calls }}{% else %}"
        "{{- '<|im_start|>' + m.role + '\\n' if not after_tool }}{{- m.content }}"
        "{%- for c in m.tool_calls or [] %}{{- c.function | tojson }}{% endfor %}"
        "{%- if loop.last or loop.nextitem.role != 'tool' %}{{- '<|im_end|>' }}{% endif %}{% endif %}{% endfor %}"
        "{%- if add_generation_prompt and messages[-1].role != 'tool' %}{{- '<|im_start|>assistant\\n' }}{% endif %}"
    )
    call = ToolCall("f", '{"x": 1}', "call00001")
    calls = Message("assistant", "", tool_calls=(call,))
    chat = Chat((Message("user", "a"), calls, Message("tool", "2"), Message("assistant", "b")))
    with pytest.raises(UserError, match="no stop token between message 2 of a chat and the result of its call"):
        label(chat, load_folder(write_folder(tmp_path, template)))


def test_a_template_that_expects_no_text_is_refused(tmp_path: Path) -> None:
    template = _TURNS.replace("m.content", "m.content | selectattr('text') | map(attribute='text') | join") + _ASKS
    with pytest.raises(UserError, match="leaves out the text of an answer"):
        label(TWO, load_folder(write_folder(tmp_path, template)))
