"""Program: renders a chat template in Jinja's sandbox, as transformers does, and prints one JSON object.

A template is untrusted code: it gets only plain values and limited memory, and the caller sets a deadline.
"""

from __future__ import annotations

import importlib.util
import json
import resource
import sys
from pathlib import Path
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
        template = _shared().environment().from_string(request["template"])
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


def _shared() -> Any:
    """core/chat_template.py, loaded by its path: this program may run in an interpreter without prime-train."""
    file = Path(__file__).parents[2] / "core" / "chat_template.py"
    found = importlib.util.spec_from_file_location("chat_template", file)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


if __name__ == "__main__":
    sys.path.pop(0)  # this folder: a module in it must not stand in for a package
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    print(json.dumps(render(json.load(sys.stdin))))  # noqa: T201 - the answer
