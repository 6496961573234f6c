"""A chat template is found as transformers finds it, and rendered as transformers renders it, by a child."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from prime_train.core.chat_template import TemplateText, find_template, special_tokens
from prime_train.models.read import chat_template as module
from prime_train.models.read.chat_template import (
    QUESTIONS,
    TOOL,
    Renderings,
    render_all,
)
from tests.fakes.model_folder import FORGETFUL, STEADY, XML_CALLS


def rendered(text: str) -> Renderings:
    found = render_all(TemplateText("chat_template.jinja", text), {"bos_token": "<s>", "eos_token": "</s>"})
    assert isinstance(found, Renderings), found
    return found


def write(folder: Path, **files: Any) -> Path:
    for name, content in files.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (folder / name.replace("__", ".")).write_text(text)
    return folder


def test_where_a_template_is_looked_for(tmp_path: Path) -> None:
    assert find_template(tmp_path) is None
    write(tmp_path, tokenizer_config__json={"chat_template": "three"})
    assert find_template(tmp_path) == TemplateText("tokenizer_config.json", "three")
    write(tmp_path, chat_template__json={"chat_template": "two"})
    assert find_template(tmp_path) == TemplateText("chat_template.json", "two")
    write(tmp_path, chat_template__jinja="one")
    assert find_template(tmp_path) == TemplateText("chat_template.jinja", "one")


def test_of_several_the_one_for_tools_is_taken(tmp_path: Path) -> None:
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]
    write(tmp_path, tokenizer_config__json={"chat_template": named})
    assert find_template(tmp_path) == TemplateText("tokenizer_config.json", "tools", ("default", "tool_use"))


@pytest.mark.parametrize("content", ["{", "[]", '{"chat_template": 5}', '{"chat_template": [{"name": "x"}]}'])
def test_a_file_that_has_no_template_reports_it(tmp_path: Path, content: str) -> None:
    found = find_template(write(tmp_path, tokenizer_config__json=content))
    assert isinstance(found, str)
    assert "tokenizer_config.json" in found


def test_special_tokens_come_as_text_or_as_objects(tmp_path: Path) -> None:
    write(tmp_path, special_tokens_map__json={"bos_token": "<old>", "eos_token": "<end>"})
    write(tmp_path, tokenizer_config__json={"bos_token": {"content": "<s>"}, "pad_token": None})
    assert special_tokens(tmp_path) == {"bos_token": "<s>", "eos_token": "<end>"}


def test_what_transformers_gives_a_template_is_there() -> None:
    text = (
        "{{ bos_token }}{% generation %}marked{% endgeneration %}{{ strftime_now('%Y') | length }}"
        "{% for x in [1, 2, 3] %}{% if x == 2 %}{% break %}{% endif %}{{ x }}{% endfor %}{{ {'a': '<é>'} | tojson }}"
    )
    assert rendered(text).texts["chat_1"] == '<s>marked41{"a": "<é>"}'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{{ raise_exception('not so') }}", "not so"),
        ("{{ ''.__class__.__mro__ }}", "SecurityError"),
        ("{{ messages.append(1) }}", "SecurityError"),
        ("{{ no.such.thing }}", "UndefinedError"),
        ("{% for x in range(10 ** 9) %}{% endfor %}", "Range too big"),
        ("{{ 'a' * 10 ** 10 }}", "MemoryError"),
    ],
)
def test_what_a_template_may_not_do_is_reported(text: str, said: str) -> None:
    assert said in rendered(text).errors["chat_1"]


def test_a_template_that_does_not_parse() -> None:
    assert "line 1" in rendered("{% if %}").fault


def test_a_template_that_never_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DEADLINE_S", 1.0)
    turns = "{% for a in range(99999) %}" * 3
    assert "does not finish" in rendered(turns + "{% endfor %}" * 3).fault


@pytest.mark.parametrize("text", [STEADY, FORGETFUL, XML_CALLS], ids=("steady", "forgetful", "xml calls"))
def test_transformers_renders_the_same(text: str) -> None:
    utils = pytest.importorskip("transformers.utils.chat_template_utils")
    ours = rendered(text)
    for question in QUESTIONS:
        if question.name not in ours.texts:
            continue
        (theirs,), _ = utils.render_jinja_template(
            conversations=[list(question.messages)],
            tools=[TOOL] if question.tools else None,
            chat_template=text,
            add_generation_prompt=question.prompt,
            bos_token="<s>",
            eos_token="</s>",
        )
        assert ours.texts[question.name] == theirs
