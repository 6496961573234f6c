"""Renders a model's chat template in a child with a deadline. Judges nothing."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from prime_train.core.chat_template import TemplateText
from prime_train.facts.facts import NotKnown
from prime_train.facts.probe_process import NoAnswer, read_answer, script

DEADLINE_S = 10.0


class Renderings(NamedTuple):
    """Question -> rendered text or error message. `fault` is the template's syntax error.

    `parts`: the contents were lists of parts, because the template does not accept plain text.
    """

    texts: Mapping[str, str]
    errors: Mapping[str, str]
    fault: str = ""
    parts: bool = False


def render_all(
    template: TemplateText, tokens: Mapping[str, str], python: str = sys.executable
) -> Renderings | NotKnown:
    """Every question rendered: with contents as plain text, or as lists of parts if the template needs those."""
    plain = _render(template, tokens, python, QUESTIONS)
    if isinstance(plain, NotKnown) or plain.fault or ANSWER in plain.texts.get("chat_2", ""):
        return plain
    in_lists = _render(template, tokens, python, map(in_parts, QUESTIONS))
    if isinstance(in_lists, Renderings) and ANSWER in in_lists.texts.get("chat_2", ""):
        return in_lists._replace(parts=True)
    return plain


def _render(
    template: TemplateText, tokens: Mapping[str, str], python: str, questions: Iterable[TemplateQuestion]
) -> Renderings | NotKnown:
    request = {
        "template": template.text,
        "special_tokens": dict(tokens),
        "tool": TOOL,
        "questions": [question._asdict() for question in questions],
    }
    output = read_answer("rendering", [python, script("chat_template_program", __file__)], DEADLINE_S, request)
    if isinstance(output, NoAnswer):
        return Renderings({}, {}, f"it does not finish: no rendering within {DEADLINE_S:g} s")
    if isinstance(output, NotKnown):
        return output
    if "unable" in output:
        return NotKnown(output["unable"])
    if "fault" in output:
        return Renderings({}, {}, output["fault"])
    answers = output["answers"]
    return Renderings(
        {name: each["text"] for name, each in answers.items() if "text" in each},
        {name: each["error"] for name, each in answers.items() if "error" in each},
    )


ANSWER = "It is 18 degrees in Paris."
THOUGHT = "The tool returned 18."
SECOND_ANSWER = "It is 21 degrees in Rome."
RESULT = '{"celsius": 18}'
TOOL_NAME = "get_temperature"
ARGUMENT = "Paris-Montmartre"

TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": TOOL_NAME,
        "description": "The temperature in a city right now.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "description": "The name of the city"}},
            "required": ["city"],
        },
    },
}
_USER = {"role": "user", "content": "How warm is it in Paris?"}
_SECOND_USER = {"role": "user", "content": "And in Rome?"}
_ANSWER = {"role": "assistant", "content": ANSWER}
_SECOND_ANSWER = {"role": "assistant", "content": SECOND_ANSWER}
_THINKS = {"role": "assistant", "content": f"<think>\n{THOUGHT}\n</think>\n\n{ANSWER}"}
_RESULT = {"role": "tool", "tool_call_id": "call00001", "name": TOOL_NAME, "content": RESULT}


def _call(arguments: object) -> dict[str, Any]:
    # Nine letters and digits: Mistral's templates accept no other id.
    function = {"name": TOOL_NAME, "arguments": arguments}
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "call00001", "type": "function", "function": function}],
    }


_CALL = _call({"city": ARGUMENT})


class TemplateQuestion(NamedTuple):
    """One conversation to render. `prompt`: the text ends where the model's next turn begins."""

    name: str
    messages: tuple[dict[str, Any], ...]
    tools: bool = False
    prompt: bool = False


QUESTIONS = (
    TemplateQuestion("system", ({"role": "system", "content": "Answer briefly."}, _USER), prompt=True),
    TemplateQuestion("chat_1", (_USER,), prompt=True),
    TemplateQuestion("chat_2", (_USER, _ANSWER)),
    TemplateQuestion("chat_3", (_USER, _ANSWER, _SECOND_USER), prompt=True),
    TemplateQuestion("chat_4", (_USER, _ANSWER, _SECOND_USER, _SECOND_ANSWER)),
    TemplateQuestion("think_2", (_USER, _THINKS)),
    TemplateQuestion("think_3", (_USER, _THINKS, _SECOND_USER), prompt=True),
    TemplateQuestion("tool_1", (_USER,), tools=True, prompt=True),
    TemplateQuestion("tool_2", (_USER, _CALL), tools=True),
    TemplateQuestion("tool_3", (_USER, _CALL, _RESULT), tools=True, prompt=True),
    TemplateQuestion("tool_4", (_USER, _CALL, _RESULT, _ANSWER), tools=True),
    TemplateQuestion("tool_5", (_USER, _CALL, _RESULT, _ANSWER, _SECOND_USER), tools=True, prompt=True),
    TemplateQuestion("tool_text_arguments", (_USER, _call(json.dumps({"city": ARGUMENT}))), tools=True),
)
# (shorter, longer): the longer rendering must begin with the shorter one, because a turn must not change history.
EXTENSIONS = {
    "chat": (("chat_1", "chat_2"), ("chat_2", "chat_3"), ("chat_3", "chat_4")),
    "thoughts": (("chat_1", "think_2"), ("think_2", "think_3")),
    "tools": (("tool_1", "tool_2"), ("tool_2", "tool_3"), ("tool_3", "tool_4")),
    "a question after tools": (("tool_4", "tool_5"),),
}
OPENS_A_THOUGHT = "<think>"  # after a prompt that ends with this, the answer must begin with a thought


def in_parts(question: TemplateQuestion) -> TemplateQuestion:
    """The question with each content as a list of parts, as templates of vision-language models expect it."""

    def split(message: dict[str, Any]) -> dict[str, Any]:
        return message | {"content": [{"type": "text", "text": message["content"]}]}

    return question._replace(messages=tuple(map(split, question.messages)))
