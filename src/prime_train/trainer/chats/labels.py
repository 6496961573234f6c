"""Converts a chat to tokens with a mask of those that the model learns. No effects.

The model learns the assistant's tokens, with the token that ends the turn. The messages of system, user and tool are
context, and so is the template's text around the turns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from prime_train.core.errors import UserError
from prime_train.environments.environment import ToolRole
from prime_train.trainer.chats.chat import Chat, Completion
from prime_train.trainer.chats.chat_tokens import ChatTokenizer
from prime_train.trainer.chats.lost_parts import refuse_lost_parts


@dataclass(frozen=True, slots=True)
class LabelledTokens:
    """T tokens of one document, and which of them the model learns."""

    tokens: tuple[int, ...]  # (T,)
    learned: tuple[bool, ...]  # (T,)

    @property
    def least_ctx_tokens(self) -> int | None:
        """The smallest context in which a token is learned; None without one. No token predicts the first one."""
        return next((place + 1 for place, learned in enumerate(self.learned) if learned and place), None)

    def cut(self, ctx_tokens: int) -> LabelledTokens:
        """The first `ctx_tokens` tokens."""
        return LabelledTokens(self.tokens[:ctx_tokens], self.learned[:ctx_tokens])


def label(chat: Chat | Completion, tokenizer: ChatTokenizer) -> tuple[LabelledTokens, ...]:
    """The documents of a chat: usually one; none if the assistant has no message in it. Raises UserError.

    A template that drops the thoughts of earlier turns gives each such turn a document of its own, with the context
    that the model saw.
    """
    if isinstance(chat, Completion):
        prompt, completion = tokenizer.tokenizer.encode_batch([chat.prompt, chat.completion])
        return (_join([(prompt, False), ([*completion, tokenizer.tokenizer.eos_id], True)]),)
    turns = [at for at, message in enumerate(chat.messages) if message.role == "assistant" and at >= chat.first_learned]
    if turns:
        refuse_lost_parts(replace(chat, messages=chat.messages[: turns[-1] + 1]), tokenizer.template)
    documents: list[LabelledTokens] = []
    while turns:
        text = _render(chat, turns[-1], tokenizer)
        found = {turn: _find_answer(text, chat, turn, tokenizer, is_last=turn == turns[-1]) for turn in turns}
        answers = {turn: answer for turn, answer in found.items() if answer is not None}
        if turns[-1] not in answers:
            what = "the text of an answer does not begin with the prompt for it"
            why = "the tokens of the answer are the ones after its prompt, up to a stop token"
            fix = "use a template that writes the same text before an answer, with and without add_generation_prompt"
            raise UserError(what, tokenizer.template.where, why, fix)
        parts = _parts(text, list(answers.values()))
        documents.append(_join([(tokenizer.encode(part), learned) for part, learned in parts]))
        turns = [turn for turn in turns if turn not in answers]
    return tuple(reversed(documents))


def _render(chat: Chat, turn: int, tokenizer: ChatTokenizer) -> str:
    """The text of the chat up to an answer, with the token that ends the answer."""
    text = tokenizer.template.render(chat.messages[: turn + 1], chat.tools, generation_prompt=False)
    return text + tokenizer.ends.close(_next_role(chat, turn))


def _next_role(chat: Chat, turn: int) -> ToolRole:
    """The role of the message behind an answer. A chat that ends goes on with results of its calls, or a question."""
    if turn + 1 < len(chat.messages):
        return chat.messages[turn + 1].role
    return "tool" if chat.messages[turn].tool_calls else "user"


def _find_answer(
    text: str, chat: Chat, turn: int, tokenizer: ChatTokenizer, *, is_last: bool
) -> tuple[int, int] | None:
    """The characters [begin, end) of a turn; None where it differs. `is_last`: the text ends with the turn."""
    template, message, ends = tokenizer.template, chat.messages[turn], tokenizer.ends
    prompt = template.render(chat.messages[:turn], chat.tools, generation_prompt=True)
    if not text.startswith(prompt):
        return None
    next_role = _next_role(chat, turn)
    end = (ends.own or ends.close(next_role)) if is_last else ends.get(next_role)
    if end is None:
        raise UserError(
            what=f"the chat template writes no stop token between message {turn + 1} of a chat "
            "and the result of its call",
            where=template.where,
            why="the model would learn to write the results of tools by itself",
            fix="name the token that ends a call in eos_token_id of generation_config.json, or use another template",
        )
    found = tokenizer.find_end(text, len(prompt), end)
    if found is None:
        return None
    # The token that begins another answer ends none: the model would go on behind it.
    stop = found.start() if ends.own is None and next_role == "assistant" else found.end()
    has_thoughts = message.reasoning or "</think>" in message.content
    if has_thoughts and not _render(chat, turn, tokenizer).startswith(text[:stop]):
        return None
    return len(prompt), stop


def _parts(text: str, answers: Sequence[tuple[int, int]]) -> Iterator[tuple[str, bool]]:
    """The text in parts that are tokenised apart, and whether each is an answer."""
    place = 0
    for begin, end in answers:
        yield text[place:begin], False
        yield text[begin:end], True
        place = end
    yield text[place:], False


def _join(parts: Sequence[tuple[Sequence[int], bool]]) -> LabelledTokens:
    tokens = tuple(token for part, _ in parts for token in part)
    return LabelledTokens(tokens, tuple(learned for part, learned in parts for _ in part))
