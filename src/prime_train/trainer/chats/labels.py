"""Converts a chat to tokens with a mask of those that the model learns. No effects.

The model learns the assistant's tokens, with the token that ends the turn. The messages of system, user and tool are
context, and so is the template's text around the turns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from prime_train.core.errors import UserError
from prime_train.trainer.chats.chat import Chat, Completion
from prime_train.trainer.chats.chat_tokens import ChatTokenizer


@dataclass(frozen=True, slots=True)
class Labelled:
    """T tokens of one document, and which of them the model learns."""

    tokens: tuple[int, ...]  # (T,)
    learned: tuple[bool, ...]  # (T,)

    def cut(self, ctx_tokens: int) -> Labelled:
        """The first `ctx_tokens` tokens."""
        return Labelled(self.tokens[:ctx_tokens], self.learned[:ctx_tokens])


def label(chat: Chat | Completion, tokenizer: ChatTokenizer) -> tuple[Labelled, ...]:
    """The documents of a chat: usually one; none if the assistant has no message in it.

    A template that drops the thoughts of earlier turns gives each such turn a document of its own, in which the turn
    has the context that the model saw. Raises UserError if the template does not fit the chat.
    """
    if isinstance(chat, Completion):
        prompt, completion = tokenizer.tokenizer.encode_batch([chat.prompt, chat.completion])
        return (_join([(prompt, False), ([*completion, tokenizer.tokenizer.eos_id], True)]),)
    turns = [at for at, message in enumerate(chat.messages) if message.role == "assistant" and at >= chat.first_learned]
    documents: list[Labelled] = []
    while turns:
        text = tokenizer.template.render(chat.messages[: turns[-1] + 1], chat.tools, generation_prompt=False)
        answers = {turn: answer for turn in turns if (answer := _find_answer(text, chat, turn, tokenizer))}
        if turns[-1] not in answers:
            raise UserError(
                what="the text of an answer does not begin with the prompt for it",
                where=tokenizer.template.where,
                why="the tokens of the answer are the ones after its prompt, up to a stop token",
                fix="use a template that writes the same text before an answer, with and without add_generation_prompt",
            )
        documents.append(_encode(text, list(answers.values()), tokenizer))
        turns = [turn for turn in turns if turn not in answers]
    return tuple(reversed(documents))


def _find_answer(text: str, chat: Chat, turn: int, tokenizer: ChatTokenizer) -> tuple[int, int] | None:
    """The characters [begin, end) of a turn in the text.

    None if the text before it is not the turn's prompt, or if the turn lacks thoughts that it has as the last turn.
    """
    template, message = tokenizer.template, chat.messages[turn]
    prompt = template.render(chat.messages[:turn], chat.tools, generation_prompt=True)
    end = tokenizer.find_stop(text, len(prompt))
    if end is None or not text.startswith(prompt):
        return None
    if message.reasoning or "</think>" in message.content:
        complete = template.render(chat.messages[: turn + 1], chat.tools, generation_prompt=False)
        if not complete.startswith(text[:end]):
            return None
    return len(prompt), end


def _encode(text: str, answers: Sequence[tuple[int, int]], tokenizer: ChatTokenizer) -> Labelled:
    return _join([(tokenizer.encode(part), learned) for part, learned in _parts(text, answers)])


def _parts(text: str, answers: Sequence[tuple[int, int]]) -> Iterator[tuple[str, bool]]:
    """The text in parts that are tokenised apart, and whether each is an answer."""
    place = 0
    for begin, end in answers:
        yield text[place:begin], False
        yield text[begin:end], True
        place = end
    yield text[place:], False


def _join(parts: Sequence[tuple[Sequence[int], bool]]) -> Labelled:
    tokens = tuple(token for part, _ in parts for token in part)
    return Labelled(tokens, tuple(learned for part, learned in parts for _ in part))
