"""Finds the chat template of a Hugging Face folder, and the environment that renders it. Renders nothing."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from prime_train.core import outside
from prime_train.core.outside import MODEL_BYTES

if TYPE_CHECKING:
    from jinja2.sandbox import ImmutableSandboxedEnvironment

_SPECIAL = ("bos_token", "eos_token", "pad_token", "unk_token")


class TemplateText(NamedTuple):
    """`text` as written in `file`; `names` are the names of its variants, if it has several."""

    file: str
    text: str
    names: tuple[str, ...] = ()


def find_template(folder: Path) -> TemplateText | str | None:
    """The template, a description of the fault in its file, or None. The order of files is that of transformers."""
    try:
        if (folder / "chat_template.jinja").is_file():
            text = outside.read_text(folder / "chat_template.jinja", MODEL_BYTES)
            return TemplateText("chat_template.jinja", text)
        for name in ("chat_template.json", "tokenizer_config.json"):
            path = folder / name
            if path.is_file():
                found = _from_value(name, _object(path).get("chat_template"))
                if found is not None:
                    return found
    except OSError as error:
        return f"{error.filename} cannot be read: {error.strerror}"
    except UnicodeDecodeError:
        return "chat_template.jinja is not UTF-8"
    except ValueError as error:
        return str(error)
    return None


def _from_value(file: str, value: object) -> TemplateText | str | None:
    """`value` is a string or a list of {name, template}. Prefers the template for tools, because tools are tested."""
    if value is None or isinstance(value, str):
        return TemplateText(file, value) if value else None
    if isinstance(value, list):
        named = {str(item.get("name")): item.get("template") for item in value if isinstance(item, dict)}
        text = named.get("tool_use", named.get("default"))
        if isinstance(text, str):
            return TemplateText(file, text, tuple(named))
    return f"{file}: chat_template is neither a string nor a list of named templates with a default"


def _object(path: Path) -> dict[str, Any]:
    try:
        found = outside.read_json(path, MODEL_BYTES)
    except ValueError:
        raise ValueError(f"{path.name} is not JSON") from None
    if not isinstance(found, dict):
        raise ValueError(f"{path.name} is not a JSON object")
    return found


def read_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file, or {} if there is none: every value in it has a default."""
    try:
        return _object(path)
    except (OSError, ValueError):
        return {}


def special_tokens(folder: Path) -> dict[str, str]:
    """bos_token and the like, as a template receives them."""
    found: dict[str, str] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        tokens = read_object(folder / name)
        for key in _SPECIAL:
            value = tokens.get(key)
            text = value.get("content") if isinstance(value, dict) else value
            if isinstance(text, str):
                found[key] = text
    return found


def environment() -> ImmutableSandboxedEnvironment:
    """Jinja's sandbox, as transformers sets it up. Source: transformers 5.23, utils/chat_template_utils.py."""
    from jinja2 import TemplateError, nodes
    from jinja2.ext import Extension
    from jinja2.ext import loopcontrols as loop_controls
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class GenerationBlock(Extension):
        """The block that marks the assistant's text. It does not change the text."""

        tags = {"generation"}  # noqa: RUF012 - jinja2 reads it as a set

        def parse(self, parser: Any) -> list[nodes.Node]:
            next(parser.stream)
            body: list[nodes.Node] = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return body

    def refuse(message: str) -> None:
        raise TemplateError(message)

    def tojson(value: Any, **options: Any) -> str:
        return json.dumps(value, **({"ensure_ascii": False} | options))

    extensions = [GenerationBlock, loop_controls]
    made = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=extensions)
    made.filters["tojson"] = tojson
    made.globals["raise_exception"] = refuse
    made.globals["strftime_now"] = lambda wanted: datetime.now().strftime(wanted)
    return made
