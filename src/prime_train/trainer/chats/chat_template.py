"""Renders chats to text with a Jinja template, and finds the control tokens with which it ends an answer.

A template is untrusted code from a model's folder. It runs in Jinja's sandbox, gets only plain values, and its output
is bounded. Most templates write the same token behind every answer. That of GLM-4-MoE writes none: the token that
begins the next message ends the answer, `<|user|>` or `<|observation|>`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prime_train.core.chat_template import environment, find_template, special_tokens
from prime_train.core.errors import UserError
from prime_train.environments.environment import Message, Tool, ToolCall, ToolRole
from prime_train.trainer.chats.chat import parse_text

if TYPE_CHECKING:
    import jinja2

TURN_START, TURN_END = "<|im_start|>", "<|im_end|>"
CALL_START, CALL_END = "<tool_call>", "</tool_call>"
# Words of messages, also where a tokenizer has them as control tokens: messages contain them, templates search them.
MESSAGE_WORDS = frozenset({CALL_START, CALL_END, "<think>", "</think>", "/nothink"})
MAX_CHARACTERS = 2**24  # of one rendered chat
_MARK = "\ufdd0"  # stands in control tokens of messages; Unicode reserves this character for internal use
PLACE, NEXT = "\ufdd1", "\ufdd2"  # mark places in a rendered chat; they are reserved too
CALL_ID = "call00001"  # Mistral's templates accept no other form

# Turns as in ChatML, tools and calls as in Hermes: https://huggingface.co/Qwen/Qwen2.5-0.5B-Instruct
BUILT_IN = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages and messages[0].role == 'system' %}{{- messages[0].content + '\\n' }}{% endif %}
    {{- 'Tools:' }}
    {%- for tool in tools %}{{- '\\n' + (tool.function | tojson) }}{% endfor %}
    {{- '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if not (tools and loop.first and message.role == 'system') %}
        {{- '<|im_start|>' + message.role + '\\n' }}
        {%- if message.role == 'assistant' %}{% generation %}
            {{- message.content }}
            {%- for call in message.tool_calls or [] %}
                {{- '<tool_call>\\n' + ({'name': call.function.name, 'arguments': call.function.arguments} | tojson) }}
                {{- '\\n</tool_call>' }}
            {%- endfor %}
            {{- '<|im_end|>' }}{% endgeneration %}
        {%- else %}
            {{- message.content + '<|im_end|>' }}
        {%- endif %}
        {{- '\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}
"""


@dataclass(frozen=True)
class ChatTemplate:
    """A template with the control tokens of its tokenizer. `where` names it in messages."""

    text: str
    where: str
    special_tokens: Mapping[str, str]  # bos_token and the like, as variables of the template
    control_tokens: tuple[str, ...]

    def render(self, messages: Sequence[Message], tools: Sequence[Tool] = (), *, generation_prompt: bool) -> str:
        """The text of a chat, up to the assistant's answer with `generation_prompt`. Raises UserError.

        A control token in it is the template's own: those in messages and tools are marked, and `split` reads the
        marks.
        """
        import jinja2

        blocks: list[str] = []
        characters = 0
        try:
            for block in self._compiled.generate(
                messages=[self._mark(message_json(message)) for message in messages],
                tools=[self._mark(tool_json(tool)) for tool in tools] or None,
                documents=None,
                add_generation_prompt=generation_prompt,
                **self.special_tokens,
            ):
                blocks.append(block)
                characters += len(block)
                if characters > MAX_CHARACTERS:
                    raise self._refusal(f"its text has more than {MAX_CHARACTERS:,} characters")
        except (jinja2.TemplateError, ArithmeticError, LookupError, TypeError, ValueError, AttributeError) as error:
            raise self._refusal(f"{type(error).__name__}: {error}"[:300]) from error
        return "".join(blocks)

    def split(self, text: str) -> list[str]:
        """Rendered text in pieces: plain text and control tokens in turns, from plain text on."""
        pieces = self._control.split(text)
        return [piece if at % 2 else piece.replace(_MARK, "") for at, piece in enumerate(pieces)]

    def control_tokens_in(self, text: str, start: int) -> Iterator[re.Match[str]]:
        """The control tokens of rendered text from `start` on."""
        return self._control.finditer(text, start)

    @cached_property
    def _compiled(self) -> jinja2.Template:
        import jinja2

        try:
            return environment().from_string(self.text)
        except jinja2.TemplateSyntaxError as error:
            what = f"the chat template is no valid Jinja: line {error.lineno}: {error.message}"
            fix = "correct the template, or use the tokenizer folder of another model"
            raise UserError(what, self.where, "it turns the messages of a chat into text", fix) from error

    @cached_property
    def _control(self) -> re.Pattern[str]:
        return _any_of(self.control_tokens)

    @cached_property
    def _forged(self) -> re.Pattern[str]:
        return _any_of([token for token in self.control_tokens if token not in MESSAGE_WORDS])

    def _mark(self, value: Any) -> Any:
        """`value` with marks between the characters of each control token, which is therefore plain text."""
        match value:
            case str():
                return self._forged.sub(lambda found: _MARK.join(found[0]), value.replace(_MARK, "\ufffd"))
            case Mapping():
                return {key: self._mark(item) for key, item in value.items()}
            case list() | tuple():
                return [self._mark(item) for item in value]
        return value

    def _refusal(self, what: str) -> UserError:
        why = "it turns the messages of a chat into text"
        fix = "give the messages the roles and the order that the template accepts, or use another tokenizer folder"
        return UserError(f"the chat template refuses a chat: {what}", self.where, why, fix)


def _any_of(tokens: Sequence[str]) -> re.Pattern[str]:
    longest_first = sorted(tokens, key=len, reverse=True)
    return re.compile(f"({'|'.join(map(re.escape, longest_first)) or '(?!)'})")


def built_in_template() -> ChatTemplate:
    """The template of a tokenizer that is trained on chats."""
    return ChatTemplate(BUILT_IN, "the built-in chat template", {}, (TURN_START, TURN_END))


def folder_template(folder: Path, control_tokens: Sequence[str]) -> ChatTemplate:
    """The template of a tokenizer folder. Raises UserError if there is none."""
    found = find_template(folder)
    where = f'tokenizer.path = "{folder}"'
    if found is None or isinstance(found, str):
        what = f"its chat template cannot be read: {found}" if found else "it has no chat template"
        why = "it turns the messages of a chat into text, in the form that the model was trained with"
        fix = "add chat_template.jinja to the folder, or leave tokenizer.path unset to train one on the chats"
        raise UserError(what, where, why, fix)
    return ChatTemplate(found.text, f"{where}: {found.file}", special_tokens(folder), tuple(control_tokens))


def message_json(message: Message) -> dict[str, Any]:
    """A message in the form that templates expect. Source: transformers, docs of chat templates with tools."""
    found: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.reasoning:
        found["reasoning_content"] = message.reasoning
    if message.tool_calls:
        found["tool_calls"] = [_call_json(call) for call in message.tool_calls]
    if message.role == "tool":
        found |= {"tool_call_id": message.tool_call_id, "name": message.name}
    return found


def _call_json(call: ToolCall) -> dict[str, Any]:
    arguments = parse_text(call.arguments)
    function = {"name": call.name, "arguments": arguments if isinstance(arguments, dict) else call.arguments}
    return {"id": call.id, "type": "function", "function": function}


def tool_json(tool: Tool) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}
    return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class TurnEnds:
    """The control tokens that end an answer: `own` behind one that ends the chat, `before` by the role of the next."""

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
        what = "the chat template leaves out the text of an answer"
        why = "there would be nothing to learn; templates for images expect a list of parts in place of the text"
        raise UserError(what, template.where, why, "use a template that writes contents which are text")
    behind = _list_control(template, (question, answer), "")
    asked = _list_control(template, (question, answer, Message("user", NEXT)), NEXT) or behind
    if not asked:
        what = "the chat template ends an answer without a control token"
        fix = "let the template write the end-of-text token behind the messages of the assistant"
        raise UserError(what, template.where, "the model stops with the token that ends its answer", fix)
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
