"""The labels of a chat are those of transformers' own mask, and its tokens are those that a rollout would have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prime_train.core.errors import UserError
from prime_train.environments.environment import Message
from prime_train.trainer.chats.chat import Chat, Completion
from prime_train.trainer.chats.chat_template import message_json, tool_json
from prime_train.trainer.chats.chat_tokens import ChatTokenizer
from prime_train.trainer.chats.labels import Labelled, label
from tests.fakes.model_folder import FORGETFUL, STEADY
from tests.trainer.chats.chats import TEMPLATES, chats, load_folder, texts, weather_chat, write_folder

SPECIAL = ("<|im_end|>", "<|im_start|>", "<think>")
ORDINARY = texts(blocked=SPECIAL)


def by_transformers(folder: Path, chat: Chat, template: str) -> Labelled:
    """The tokens and the mask of apply_chat_template, which reads the {% generation %} blocks of the template."""
    from transformers import PreTrainedTokenizerFast  # takes a second: not in every worker

    made: Any = PreTrainedTokenizerFast
    tokenizer = made(tokenizer_file=str(folder / "tokenizer.json"), eos_token="<|im_end|>", bos_token="<|endoftext|>")
    found = tokenizer.apply_chat_template(
        [message_json(message) for message in chat.messages],
        tools=[tool_json(tool) for tool in chat.tools] or None,
        chat_template=template,
        tokenize=True,
        return_dict=True,
        return_assistant_tokens_mask=True,
    )
    return Labelled(tuple(found["input_ids"]), tuple(map(bool, found["assistant_masks"])))


def by_prefixes(chat: Chat, tokenizer: ChatTokenizer) -> Labelled:
    """A naive reference: each answer is what its prompt lacks, up to the end of the turn; all is tokenised again."""
    tokens = tokenizer.encode(tokenizer.template.render(chat.messages, chat.tools, generation_prompt=False))
    learned = [False] * len(tokens)
    end_of_turn = tokenizer.tokenizer.control_tokens[tokenizer.end_of_turn]
    for turn, message in enumerate(chat.messages):
        if message.role == "assistant":
            begin = len(tokenizer.prompt_tokens(chat.messages[:turn], chat.tools))
            end = tokens.index(end_of_turn, begin) + 1
            learned[begin:end] = [True] * (end - begin)
    return Labelled(tuple(tokens), tuple(learned))


def rolled_out(chat: Chat, tokenizer: ChatTokenizer) -> Labelled:
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
            following = tokenizer.following_tokens(chat.messages[: turn + 1], new, chat.tools)
            assert tokenizer.following_tokens(chat.messages[: turn + 1], new, chat.tools, ended=False) == (
                tokenizer.tokenizer.control_tokens[tokenizer.end_of_turn],
                *following,
            )
            tokens += following
            learned += [False] * len(following)
    return Labelled(tuple(tokens), tuple(learned))


def learned_texts(document: Labelled, tokenizer: ChatTokenizer) -> list[str]:
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
    assert document == by_transformers(folders[name], chat, TEMPLATES[name])
    assert sum(document.learned) > 30


@settings(deadline=None, max_examples=60)
@given(name=st.sampled_from(sorted(TEMPLATES)), chat=chats(ORDINARY))
def test_any_chat_has_the_mask_of_transformers(
    name: str, chat: Chat, folders: dict[str, Path], tokenizers: dict[str, ChatTokenizer]
) -> None:
    (document,) = label(chat, tokenizers[name])
    assert document == by_transformers(folders[name], chat, TEMPLATES[name])


@settings(deadline=None, max_examples=60)
@given(name=st.sampled_from(sorted(TEMPLATES)), chat=chats(texts()))
def test_any_chat_has_the_mask_of_its_prefixes(name: str, chat: Chat, tokenizers: dict[str, ChatTokenizer]) -> None:
    """Also with messages that contain control tokens."""
    (document,) = label(chat, tokenizers[name])
    assert document == by_prefixes(chat, tokenizers[name])


@settings(deadline=None, max_examples=60)
@given(name=st.sampled_from(["built-in", "llama"]), chat=chats(texts()))
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
@given(chat=chats(ORDINARY, thoughts=True))
def test_each_answer_is_learned_behind_its_own_prompt(chat: Chat, tokenizers: dict[str, ChatTokenizer]) -> None:
    tokenizer = tokenizers["qwen"]
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
