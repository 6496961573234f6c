"""Chat templates of the kinds there are: what each does to tools and to history."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from prime_train.core.chat_template import TemplateText
from prime_train.facts.facts import NotKnown
from prime_train.models.checks import template_checks
from prime_train.models.read.chat_template import Renderings
from prime_train.models.read.evidence import Tokenized
from prime_train.models.verdict.support import Stack
from prime_train.models.verdict.verdicts import Outcome
from prime_train.registry.models import TestedModel
from tests.fakes.model_folder import FORGETFUL, STEADY, WITHOUT_TOOLS, XML_CALLS
from tests.unit.models.known_models import NOWHERE, installed, rendered

TABLE = Stack(NOWHERE)


def parser(text: str, stack: Stack = TABLE, tested: TestedModel | None = None) -> str:
    found = template_checks.check_parser(rendered(text), stack, tested)
    return "" if found is None else f"{found.outcome}: {found.what}"


def test_history_that_stays_as_it_was() -> None:
    assert list(template_checks.find_rewrites(rendered(STEADY), None)) == []


def test_thoughts_that_are_taken_out_of_history() -> None:
    (found,) = template_checks.find_rewrites(rendered(FORGETFUL), None)
    assert (found.kind, found.shorter, found.longer) == ("thoughts", "think_2", "think_3")
    assert found.was.startswith("<think>")
    assert found.became.startswith("It is 18 degrees")
    check = template_checks.check_history(rendered(FORGETFUL), None)
    assert check is not None
    assert check.outcome is Outcome.WARNING
    assert "turns with only tools keep it" in check.what


def test_history_that_stays_in_the_text_and_not_in_the_tokens() -> None:
    said = rendered(STEADY)
    ids = {name: list(text.encode()) for name, text in said.texts.items()}
    assert list(template_checks.find_rewrites(said, Tokenized(256, 255, True, ids))) == []
    ids["chat_2"] = [*ids["chat_2"][:-1], 999]
    (found,) = template_checks.find_rewrites(said, Tokenized(256, 255, True, ids))
    assert (found.kind, found.longer) == ("chat", "chat_3")


def test_an_answer_without_a_thought_is_not_asked_of_a_prompt_that_opens_one() -> None:
    opens = STEADY.replace(
        "<|im_start|>assistant\\n' }}{% endif %}", "<|im_start|>assistant\\n<think>\\n' }}{% endif %}"
    )
    assert opens != STEADY
    assert list(template_checks.find_rewrites(rendered(opens), None)) == []


def test_a_template_without_tools() -> None:
    found = template_checks.check_tools(rendered(WITHOUT_TOOLS))
    assert found is not None
    assert found.outcome is Outcome.WARNING
    assert "lacks the tool" in found.what
    assert parser(WITHOUT_TOOLS) == ""


def test_arguments_that_must_be_an_object() -> None:
    found = template_checks.check_tools(rendered(XML_CALLS))
    assert found is not None
    assert found.outcome is Outcome.WARNING
    assert "not if they are text" in found.what


def test_the_parser_is_known_by_the_marks_of_a_call() -> None:
    assert parser(STEADY).startswith("ok: --tool-call-parser hermes ")
    assert parser(XML_CALLS).startswith("ok: --tool-call-parser qwen3_coder ")
    assert parser(STEADY.replace("<tool_call>", "<mine>").replace("</tool_call>", "</mine>")).startswith("not known")


def test_a_parser_that_this_vllm_does_not_have() -> None:
    assert parser(XML_CALLS, Stack(NOWHERE, "0.9.2")).startswith("failure: it needs qwen3_coder")
    assert parser(XML_CALLS, Stack(NOWHERE, "0.22.0")).startswith("ok")
    old = installed(has_vllm=True, vllm="0.1", vllm_tool_parsers=frozenset({"hermes"}))
    assert parser(STEADY, Stack(old)).startswith("ok")
    assert parser(XML_CALLS, Stack(old)).startswith("failure")


def test_the_parser_that_a_source_ran_it_with_comes_first() -> None:
    tested = TestedModel("lab/model", ("a run",), "2026-11-21", tool_parser="qwen3_xml")
    assert parser(XML_CALLS, tested=tested).startswith("ok: --tool-call-parser qwen3_xml (used in a published run")


def test_templates_that_are_of_no_use() -> None:
    file = TemplateText("chat_template.jinja", "")
    for renderings, outcome in (
        (rendered("{% if %}"), "failure"),
        (rendered("{{ raise_exception('no') }}"), "failure"),
        (rendered("always the same"), "failure"),
        (rendered(STEADY.replace("<|im_start|>' + message.role", "<|im_start|>' + no.such.thing")), "failure"),
        (NotKnown("jinja2 is not installed"), "not known"),
    ):
        assert str(template_checks.check_template(file, renderings).outcome) == outcome
    assert template_checks.check_template(None, None).outcome is Outcome.FAILURE
    assert template_checks.check_template("tokenizer_config.json is not JSON", None).outcome is Outcome.FAILURE


def test_a_template_that_refuses_a_system_message() -> None:
    refuses = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}" + STEADY
    found = template_checks.check_template(TemplateText("chat_template.jinja", refuses), rendered(refuses))
    assert found.outcome is Outcome.WARNING
    assert "no system" in found.what


def test_a_template_that_takes_parts_only() -> None:
    parts = STEADY.replace("message.content }}", "message.content[0].text }}")
    said = rendered(parts)
    assert said.parts
    assert template_checks.check_template(TemplateText("chat_template.jinja", parts), said).outcome is Outcome.OK


# What trl ships to train on beside what the models have: the one keeps history, the other does not.
@pytest.mark.parametrize(
    ("name", "steady", "wanted"),
    [
        ("qwen3", False, "hermes"),
        ("qwen3_training", True, "hermes"),
        ("qwen2_5", True, "hermes"),
        ("qwen3_instruct_2507", True, "hermes"),
        ("qwen3_5_think", False, "qwen3_coder"),
        ("qwen3_5_think_training", True, "qwen3_coder"),
        ("deepseek_r1_distill", False, ""),
        ("gptoss", False, "openai"),
        ("glm4moe", False, "glm47"),
        ("llama3_1", True, "llama3_json"),
        ("gemma4", True, "gemma4"),
    ],
)
def test_templates_of_published_models(name: str, steady: bool, wanted: str) -> None:
    spec = find_spec("trl")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("trl is not installed: its chat_templates are what is rendered here")
    path = Path(next(iter(spec.submodule_search_locations)), "chat_templates", f"{name}.jinja")
    if not path.is_file():
        pytest.skip(f"this trl has no {path.name}")
    said = rendered(path.read_text(encoding="utf-8"))
    assert isinstance(said, Renderings)
    growth = template_checks.check_history(said, None)
    assert growth is not None
    assert growth.outcome is (Outcome.OK if steady else Outcome.WARNING)
    found = template_checks.check_parser(said, TABLE, None)
    assert (f"--tool-call-parser {wanted} " in found.what) if found and wanted else not wanted
