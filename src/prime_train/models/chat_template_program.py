"""Program: renders a chat template in Jinja's sandbox, as transformers does, and prints one JSON object.

A template is untrusted code: it gets only plain values and limited memory, and the caller sets a deadline.
"""

from __future__ import annotations

import json
import resource
import sys
from datetime import datetime
from typing import Any

_MEMORY_BYTES = 2**30
_NEEDED = (3, 1, 6)  # transformers 5 refuses older versions, because their sandbox can be escaped


def render(request: dict[str, Any]) -> dict[str, Any]:
    """`request`: template, special_tokens, tool, and questions of name, messages, tools and prompt."""
    try:
        import jinja2
    except ImportError:
        return {"unable": "jinja2 is not installed"}
    if tuple(int(part) for part in jinja2.__version__.split(".")[:3] if part.isdigit()) < _NEEDED:
        return {"unable": f"jinja2 {jinja2.__version__} is older than 3.1.6, the first with a safe sandbox"}
    try:
        template = _environment().from_string(request["template"])
    except jinja2.TemplateSyntaxError as error:
        return {"fault": f"line {error.lineno}: {error.message}"}
    answers: dict[str, dict[str, str]] = {}
    for question in request["questions"]:
        try:
            text = template.render(
                messages=question["messages"],
                tools=[request["tool"]] if question["tools"] else None,
                documents=None,
                add_generation_prompt=question["prompt"],
                **request["special_tokens"],
            )
        except Exception as error:  # a template may raise any exception: its text is the result
            answers[question["name"]] = {"error": f"{type(error).__name__}: {error}"[:500]}
        else:
            answers[question["name"]] = {"text": text}
    return {"answers": answers}


def _environment() -> Any:
    """Source: transformers 5.23, utils/chat_template_utils.py."""
    from jinja2 import Environment, TemplateError, nodes
    from jinja2.ext import Extension
    from jinja2.ext import loopcontrols as loop_controls
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
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

    environment: Environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loop_controls]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda wanted: datetime.now().strftime(wanted)
    return environment


if __name__ == "__main__":
    sys.path.pop(0)  # this folder: a module in it must not stand in for a package
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    print(json.dumps(render(json.load(sys.stdin))))  # noqa: T201 - the answer
