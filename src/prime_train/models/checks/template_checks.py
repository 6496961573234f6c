"""Checks of a chat template by its renderings: does it exist, do tools work, does history stay the same. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile
from typing import NamedTuple

from prime_train.core.chat_template import TemplateText
from prime_train.facts.facts import NotKnown
from prime_train.models.read.chat_template import (
    ANSWER,
    ARGUMENT,
    EXTENSIONS,
    OPENS_A_THOUGHT,
    RESULT,
    THOUGHT,
    TOOL_NAME,
    Renderings,
)
from prime_train.models.read.evidence import Tokenized
from prime_train.models.verdict.support import Stack
from prime_train.models.verdict.verdicts import Check, failure, not_known, ok, warning
from prime_train.registry.models import TestedModel, tool_formats, vllm_tool_parsers

_REPLACE = "replace it with the template of the original model"
_KEEP_HISTORY = (
    "train with a template that keeps history: PrimeIntellect's Qwen3 models have one, or set your own chat_template"
)


class Rewrite(NamedTuple):
    """A longer conversation that does not begin with the shorter one: the text `was` became `became`."""

    kind: str
    shorter: str
    longer: str
    was: str
    became: str


def check_template(template: TemplateText | str | None, renderings: Renderings | NotKnown | None) -> Check:
    if template is None:
        return failure(
            "chat-template",
            "there is none: no chat_template.jinja, and no chat_template in tokenizer_config.json",
            "chat messages cannot be turned into tokens: this is a base model, or the file is missing",
            "use the instruct model, or copy the template of a model of the same family",
        )
    if isinstance(template, str):
        return failure("chat-template", template, "no message can be rendered", "repair or replace the file")
    if isinstance(renderings, NotKnown):
        return not_known("chat-template", f"{template.file} exists, but was not tested: {renderings.reason}")
    if renderings is None or renderings.fault:
        return failure(
            "chat-template",
            f"{template.file}: {renderings.fault if renderings else 'it was not tested'}",
            "transformers and vLLM refuse it at the first message",
            _REPLACE,
        )
    failed = _check_plain_chat(renderings)
    if failed is not None:
        return failed
    system = renderings.errors.get("system")
    if system:
        return warning(
            "chat-template",
            f"{template.file} refuses a system message: {system}",
            "an environment that sets a system prompt fails at its first rollout",
            "use no system prompts, or put them before the first question",
        )
    return ok("chat-template", f"{template.file}: a question, an answer and a system message render")


def _check_plain_chat(renderings: Renderings) -> Check | None:
    """A failure if a question and an answer do not render, else None."""
    error = renderings.errors.get("chat_2") or renderings.errors.get("chat_4")
    if error:
        return failure(
            "chat-template",
            f"a question and an answer do not render: {error}",
            "every message of a run is rendered with it",
            _REPLACE,
        )
    if ANSWER not in renderings.texts["chat_2"]:
        return failure(
            "chat-template",
            "the rendered text lacks the assistant's message",
            "without it there is nothing to train on",
            _REPLACE,
        )
    return None


def check_tools(renderings: Renderings | NotKnown | None) -> Check | None:
    """Whether a tool, a call and its result are in the rendered text. None if nothing was rendered."""
    if not isinstance(renderings, Renderings) or not renderings.texts:
        return None
    steps = (("tool_1", TOOL_NAME, "the tool"), ("tool_2", ARGUMENT, "a call"), ("tool_3", RESULT, "a result"))
    for name, needed, what in steps:
        if name in renderings.errors:
            return _no_tools(f"{what} does not render: {renderings.errors[name]}")
        if needed not in renderings.texts.get(name, "") and not _has_words(needed, renderings.texts.get(name, "")):
            return _no_tools(f"the rendered text lacks {what}: the template drops it")
    if "tool_text_arguments" in renderings.errors:
        return warning(
            "tools",
            "a tool, its call and its result render if the arguments are an object, but not if they are text, "
            f"as in OpenAI's API: {renderings.errors['tool_text_arguments']}",
            "vLLM parses the text into an object before it renders, a training script may not",
            "parse the arguments of each call before apply_chat_template",
        )
    return ok("tools", "a tool, a call and its result all render")


def _has_words(needed: str, text: str) -> bool:
    """Whether `text` has every word of `needed`: templates print JSON objects in different ways."""
    words = [word for word in needed.replace('"', " ").replace("{", " ").replace("}", " ").split() if word != ":"]
    return all(word.strip(":") in text for word in words)


def _no_tools(what: str) -> Check:
    return warning(
        "tools",
        what,
        "the model never sees it: an environment with tools would train on incomplete conversations",
        "use environments without tools, or a template with tools: --chat-template FILE of vLLM and of the trainer",
    )


def find_rewrites(renderings: Renderings, tokenized: Tokenized | None) -> Iterator[Rewrite]:
    """The first rewrite of history in each kind of conversation: in the text, else in the tokens."""
    for kind, pairs in EXTENSIONS.items():
        for shorter, longer in pairs:
            was, became = renderings.texts.get(shorter), renderings.texts.get(longer)
            if was is None or became is None or (kind != "thoughts" and _lacks_thought(was, became)):
                continue
            same = _common_length(was, became)
            if same < len(was):
                yield Rewrite(kind, shorter, longer, was[same : same + 40], became[same : same + 40])
                break
            ids = tokenized.ids if tokenized is not None else {}
            before, after = list(ids.get(shorter, ())), list(ids.get(longer, ()))
            if before and after[: len(before)] != before:
                yield Rewrite(kind, shorter, longer, "the last token", "one that spans into the next text")
                break


def _lacks_thought(was: str, became: str) -> bool:
    """Whether the prompt opens a thought and the answer has none, which no model would generate."""
    return was.rstrip().endswith(OPENS_A_THOUGHT) and THOUGHT not in became


def _common_length(was: str, became: str) -> int:
    """The length of the common beginning, in characters."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(was, became, strict=False)))


def check_history(renderings: Renderings | NotKnown | None, tokenized: Tokenized | NotKnown | None) -> Check | None:
    """Whether each longer conversation begins with the shorter one. None if nothing was rendered."""
    if not isinstance(renderings, Renderings) or "chat_2" not in renderings.texts:
        return None
    found = list(find_rewrites(renderings, tokenized if isinstance(tokenized, Tokenized) else None))
    lost = _drops_thoughts(renderings)
    if not found and not lost:
        unit = "tokens" if isinstance(tokenized, Tokenized) and tokenized.ids else "text"
        return ok("multi-turn", f"history stays the same from turn to turn, compared as {unit}")
    kinds = ", ".join(dict.fromkeys([each.kind for each in found] + (["thoughts"] if lost else [])))
    first = found[0] if found else None
    example = f": {_quoted(first.was)} becomes {_quoted(first.became)}" if first else ": earlier thoughts are removed"
    only_users = all(each.kind != "tools" for each in found)
    still = "; turns with only tools keep it" if only_users and "tool_4" in renderings.texts else ""
    return warning(
        "multi-turn",
        f"it rewrites history ({kinds}){example}{still}",
        "multi-turn RL trains on tokens that the model never saw, or stops, because prime-rl asserts the prefix",
        _KEEP_HISTORY,
    )


def _drops_thoughts(renderings: Renderings) -> bool:
    """Whether a thought is missing one turn later."""
    before, after = renderings.texts.get("think_2", ""), renderings.texts.get("think_3", "")
    return THOUGHT in before and bool(after) and THOUGHT not in after


def _quoted(text: str) -> str:
    return repr(text) if text else "the end"


def check_parser(renderings: Renderings | NotKnown | None, stack: Stack, tested: TestedModel | None) -> Check | None:
    """Which vLLM parser reads the tool calls of this template. None if no call was rendered."""
    if not isinstance(renderings, Renderings) or ARGUMENT not in renderings.texts.get("tool_2", ""):
        return None
    written = renderings.texts["tool_2"]
    wanted, because = _choose_parsers(written[_common_length(renderings.texts.get("tool_1", ""), written) :], tested)
    if not wanted:
        return not_known(
            "tool-parser",
            "no known parser of vLLM reads the format of its tool calls",
            "see `vllm serve --help` for --tool-call-parser, or write a parser: --tool-parser-plugin",
        )
    here = stack.here_with_vllm
    if here is not None:
        available = [parser for parser in wanted if parser in here.vllm_tool_parsers]
        where = f"vLLM {here.vllm} of {here.python}"
    else:
        package = vllm_tool_parsers()
        version = stack.vllm or package.versions[-1]
        available = [parser for parser in wanted if package.knows(parser, version) is not False]
        where = f"vLLM {version}"
    if available:
        return ok("tool-parser", f"--tool-call-parser {available[0]} ({because}; {where} has it)")
    spans = vllm_tool_parsers().known
    since = next((spans[parser].first for parser in wanted if parser in spans), "")
    return failure(
        "tool-parser",
        f"it needs {' or '.join(wanted)} ({because}), which {where} does not have",
        "tool calls would arrive as plain text, and no tool would run",
        f"pip install 'vllm>={since}'" if since else "use a vLLM that has it",
    )


def _choose_parsers(written: str, tested: TestedModel | None) -> tuple[tuple[str, ...], str]:
    """The parsers, best first, and the reason for them."""
    formats = [
        each.parsers
        for each in tool_formats()
        if all(mark in written for mark in each.marks) and not any(mark in written for mark in each.absent)
    ]
    if tested is not None and tested.tool_parser:
        others = [parser for parsers in formats[:1] for parser in parsers if parser != tested.tool_parser]
        return (tested.tool_parser, *others), "used in a published run"
    if formats:
        return formats[0], "from the marks in its calls"
    return (), ""
