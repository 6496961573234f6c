"""Finds the control tokens with which a chat template ends an answer, by rendering marks. Knows no chat.

Most templates write the same token behind every answer. That of GLM-4-MoE writes none: the token that begins the next
message ends the answer, `<|user|>` or `<|observation|>`, and generation_config.json names both as stop tokens.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from prime_train.core.errors import UserError
from prime_train.environments.environment import Message, ToolCall, ToolRole
from prime_train.trainer.chats.chat_template import ChatTemplate

PLACE, NEXT = "\ufdd1", "\ufdd2"  # mark places in a rendered chat; Unicode reserves them for internal use
CALL_ID = "call00001"  # Mistral's templates accept no other form


@dataclass(frozen=True, slots=True)
class TurnEnds:
    """The control tokens that end an answer.

    `own`: the one behind an answer that ends the chat; None if the template writes none.
    `before`: role of the next message -> the token that ends the answer before it.
    """

    own: str | None
    before: Mapping[ToolRole, str]

    def get(self, next_role: ToolRole) -> str | None:
        """The end of an answer before a message of this role; None if there is none. No role stands for a tool."""
        return self.before.get(next_role) or (None if next_role == "tool" else self.before["user"])

    def close(self, next_role: ToolRole) -> str:
        """The text that ends an answer behind which the template writes nothing. `next_role`: whose turn it is."""
        if self.own is not None or next_role == "assistant":
            return ""
        return self.before.get(next_role, self.before["user"])

    @property
    def stops(self) -> frozenset[str]:
        """The tokens with which a model shows that it has answered."""
        if self.own is not None:
            return frozenset({self.own})
        return frozenset(token for role, token in self.before.items() if role != "assistant")


def find_turn_ends(template: ChatTemplate, stops: Collection[str]) -> TurnEnds:
    """The ends of answers. `stops`: the stop tokens of the model. Raises UserError if there are none."""
    question, answer = Message("user", "a"), Message("assistant", PLACE)
    if PLACE not in template.render((question, answer), generation_prompt=False):
        raise UserError(
            what="the chat template leaves out the text of an answer",
            where=template.where,
            why="there would be nothing to learn; templates for images expect a list of parts in place of the text",
            fix="use a template that writes contents which are text",
        )
    behind = _list_control(template, (question, answer), "")
    asked = _list_control(template, (question, answer, Message("user", NEXT)), NEXT) or behind
    if not asked:
        raise UserError(
            what="the chat template ends an answer without a control token",
            where=template.where,
            why="the model stops with the token that ends its answer",
            fix="let the template write the end-of-text token behind the messages of the assistant",
        )
    # Of several tokens behind an answer, the end is the one that stops the model, also before a question.
    own = _choose(behind, frozenset(stops).intersection(asked))
    known = {*stops, *filter(None, [own])}
    call = Message("assistant", "", tool_calls=(ToolCall("f", json.dumps({"x": PLACE}, ensure_ascii=False), CALL_ID),))
    result = Message("tool", NEXT, tool_call_id=CALL_ID, name="f")
    called = [token for token in _list_control(template, (question, call, result), NEXT) if token in known]
    found: dict[ToolRole, list[str]] = {
        "user": asked,
        "tool": called or _list_control(template, (question, answer, result), NEXT),
        "system": _list_control(template, (question, answer, Message("system", NEXT)), NEXT),
        "assistant": _list_control(template, (question, answer, Message("assistant", NEXT)), NEXT),
    }
    ends = {role: _choose(tokens, known) for role, tokens in found.items()}
    return TurnEnds(own, {role: end for role, end in ends.items() if end is not None})


def _choose(tokens: Sequence[str], known: Collection[str]) -> str | None:
    """The first token that is known as an end, else the first; None if there is none."""
    return next((token for token in tokens if token in known), next(iter(tokens), None))


def _list_control(template: ChatTemplate, chat: tuple[Message, ...], until: str) -> list[str]:
    """The control tokens behind PLACE, up to `until`; none if the template refuses the chat or leaves out a mark."""
    try:
        _, found, after = template.render(chat, generation_prompt=False).rpartition(PLACE)
    except UserError:
        return []
    if until:
        after, reached, _ = after.partition(until)
        found = found and reached
    return template.split(after)[1::2] if found else []
