"""Finds a model's chat template and has it rendered, by a child with a deadline. Judges nothing."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from prime_train.facts.chat_questions import ANSWER, QUESTIONS, TOOL, Question, in_parts
from prime_train.facts.child import ask, script
from prime_train.facts.facts import NotKnown

DEADLINE_S = 10.0
_SPECIAL = ("bos_token", "eos_token", "pad_token", "unk_token")


class ChatTemplate(NamedTuple):
    """`text` as it is written in `file`; `names` are those of its variants, where it has several."""

    file: str
    text: str
    names: tuple[str, ...] = ()


class Renderings(NamedTuple):
    """Per question the text, or what the template said instead. `fault` is its own syntax error.

    `parts`: the contents were lists of parts, because it does not take plain text.
    """

    texts: Mapping[str, str]
    errors: Mapping[str, str]
    fault: str = ""
    parts: bool = False


def find(folder: Path) -> ChatTemplate | str | None:
    """The template, what is wrong with the file that has it, or None. transformers looks in the same order."""
    try:
        if (folder / "chat_template.jinja").is_file():
            text = (folder / "chat_template.jinja").read_text(encoding="utf-8")
            return ChatTemplate("chat_template.jinja", text)
        for name in ("chat_template.json", "tokenizer_config.json"):
            path = folder / name
            if path.is_file():
                found = _of_value(name, _object(path).get("chat_template"))
                if found is not None:
                    return found
    except OSError as error:
        return f"{error.filename} cannot be read: {error.strerror}"
    except UnicodeDecodeError:
        return "chat_template.jinja is not UTF-8"
    except ValueError as error:
        return str(error)
    return None


def _of_value(file: str, value: object) -> ChatTemplate | str | None:
    """A string, or a list of {name, template}: the one for tools is taken, since it is the tools that are tried."""
    if value is None or isinstance(value, str):
        return ChatTemplate(file, value) if value else None
    if isinstance(value, list):
        named = {str(item.get("name")): item.get("template") for item in value if isinstance(item, dict)}
        text = named.get("tool_use", named.get("default"))
        if isinstance(text, str):
            return ChatTemplate(file, text, tuple(named))
    return f"{file}: chat_template is neither a text nor a list of named ones with a default"


def _object(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        raise ValueError(f"{path.name} is not JSON") from None
    if not isinstance(found, dict):
        raise ValueError(f"{path.name} is not a JSON object")
    return found


def special_tokens(folder: Path) -> dict[str, str]:
    """bos_token and its like, as a template sees them."""
    found: dict[str, str] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        try:
            said = _object(folder / name)
        except (OSError, ValueError):
            continue
        for key in _SPECIAL:
            value = said.get(key)
            text = value.get("content") if isinstance(value, dict) else value
            if isinstance(text, str):
                found[key] = text
    return found


def renderings(
    template: ChatTemplate, tokens: Mapping[str, str], python: str = sys.executable
) -> Renderings | NotKnown:
    """What the template makes of each of our questions: as plain text, else in parts where it takes no text."""
    plain = _rendered(template, tokens, python, QUESTIONS)
    if isinstance(plain, NotKnown) or plain.fault or ANSWER in plain.texts.get("chat_2", ""):
        return plain
    parted = _rendered(template, tokens, python, map(in_parts, QUESTIONS))
    if isinstance(parted, Renderings) and ANSWER in parted.texts.get("chat_2", ""):
        return parted._replace(parts=True)
    return plain


def _rendered(
    template: ChatTemplate, tokens: Mapping[str, str], python: str, questions: Iterable[Question]
) -> Renderings | NotKnown:
    asked = {
        "template": template.text,
        "special_tokens": dict(tokens),
        "tool": TOOL,
        "questions": [question._asdict() for question in questions],
    }
    answer = ask([python, script("chat_template_program")], DEADLINE_S, given=json.dumps(asked))
    if isinstance(answer, NotKnown):
        if answer.reason.startswith("no answer"):
            return Renderings({}, {}, f"it does not end: no rendering within {DEADLINE_S:g} s")
        return answer
    try:
        said = json.loads(answer.out)
    except ValueError:
        return NotKnown(f"rendering it ended with exit code {answer.code}: {answer.last_line or 'it said nothing'}")
    if "unable" in said:
        return NotKnown(said["unable"])
    if "fault" in said:
        return Renderings({}, {}, said["fault"])
    answers = said["answers"]
    return Renderings(
        {name: each["text"] for name, each in answers.items() if "text" in each},
        {name: each["error"] for name, each in answers.items() if "error" in each},
    )
