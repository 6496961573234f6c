"""Checks of a chat template by what it rendered: is it there, do tools work, does history stay as it was. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from prime_train import model_registry
from prime_train.facts.chat_questions import (
    ANSWER,
    ARGUMENT,
    GROWTH,
    OPENS_A_THOUGHT,
    RESULT,
    THOUGHT,
    TOOL_NAME,
)
from prime_train.facts.chat_template import ChatTemplate, Renderings
from prime_train.facts.facts import NotKnown
from prime_train.facts.tokenizer import Tokenized
from prime_train.verify.check import Check, failure, not_known, ok, warning
from prime_train.verify.known import Stack

_INCREASING = (
    "train on a template that keeps history: PrimeIntellect's Qwen3 models have one, or set your own as chat_template"
)


class Growth(NamedTuple):
    """Where a longer conversation does not begin with the shorter one: which, and what was there and what came."""

    kind: str
    shorter: str
    longer: str
    was: str
    became: str


def check_template(template: ChatTemplate | str | None, renderings: Renderings | NotKnown | None) -> Check:
    if template is None:
        return failure(
            "chat-template",
            "there is none: neither chat_template.jinja nor chat_template in tokenizer_config.json",
            "chat messages cannot be turned into tokens: it is a base model, or the file was left out",
            "take the instruct model, or copy the template of a model of the same family",
        )
    if isinstance(template, str):
        return failure("chat-template", template, "no message can be rendered", "repair or replace the file")
    if isinstance(renderings, NotKnown):
        return not_known("chat-template", f"{template.file} is there, not tried: {renderings.reason}")
    if renderings is None or renderings.fault:
        return failure(
            "chat-template",
            f"{template.file}: {renderings.fault if renderings else 'it was not tried'}",
            "transformers and vLLM refuse it at the first message",
            "replace it by the one of the model it came from",
        )
    broken = _broken(renderings)
    if broken is not None:
        return broken
    system = renderings.errors.get("system")
    if system:
        return warning(
            "chat-template",
            f"{template.file} refuses a system message: {system}",
            "an environment that sets a system prompt fails at its first rollout",
            "leave system prompts out, or put them in front of the first question",
        )
    return ok("chat-template", f"{template.file}: a question, an answer and a system message render")


def _broken(renderings: Renderings) -> Check | None:
    """The failure of a question and an answer, where they do not come out."""
    error = renderings.errors.get("chat_2") or renderings.errors.get("chat_4")
    if error:
        return failure(
            "chat-template",
            f"a question and an answer do not render: {error}",
            "each message of a run goes through it",
            "replace it by the one of the model it came from",
        )
    if ANSWER not in renderings.texts["chat_2"]:
        return failure(
            "chat-template",
            "what the assistant said is not in what it renders",
            "there would be nothing to train on",
            "replace it by the one of the model it came from",
        )
    return None


def check_tools(renderings: Renderings | NotKnown | None) -> Check | None:
    """Whether a tool, a call of it and its result all reach the model. None where nothing was rendered."""
    if not isinstance(renderings, Renderings) or not renderings.texts:
        return None
    steps = (("tool_1", TOOL_NAME, "the tool"), ("tool_2", ARGUMENT, "a call"), ("tool_3", RESULT, "a result"))
    for name, needed, what in steps:
        if name in renderings.errors:
            return _no_tools(f"{what} does not render: {renderings.errors[name]}")
        if needed not in renderings.texts.get(name, "") and not _as_words(needed, renderings.texts.get(name, "")):
            return _no_tools(f"{what} is not in what it renders: the template leaves it out")
    if "tool_text_arguments" in renderings.errors:
        return warning(
            "tools",
            "a tool, its call and its result render, where the arguments are an object; as the text that OpenAI's API "
            f"has them they do not: {renderings.errors['tool_text_arguments']}",
            "vLLM turns the text into an object before it renders, a training script may not",
            "parse the arguments of each call before apply_chat_template",
        )
    return ok("tools", "a tool, a call and its result all render")


def _as_words(needed: str, text: str) -> bool:
    """Whether a template wrote a JSON object in its own way: each word of it is there."""
    words = [word for word in needed.replace('"', " ").replace("{", " ").replace("}", " ").split() if word != ":"]
    return all(word.strip(":") in text for word in words)


def _no_tools(what: str) -> Check:
    return warning(
        "tools",
        what,
        "the model never sees it: an environment with tools would train on half a conversation",
        "use environments without tools, or a template that has them: --chat-template FILE of vLLM and of the trainer",
    )


def growth(renderings: Renderings, tokenized: Tokenized | None) -> Iterator[Growth]:
    """The first place in each kind of conversation where history is rewritten: in the text, else in the tokens."""
    for kind, pairs in GROWTH.items():
        for shorter, longer in pairs:
            was, became = renderings.texts.get(shorter), renderings.texts.get(longer)
            if was is None or became is None or (kind != "thoughts" and _lacks_its_thought(was, became)):
                continue
            same = _same(was, became)
            if same < len(was):
                yield Growth(kind, shorter, longer, was[same : same + 40], became[same : same + 40])
                break
            ids = tokenized.ids if tokenized is not None else {}
            before, after = list(ids.get(shorter, ())), list(ids.get(longer, ()))
            if before and after[: len(before)] != before:
                yield Growth(kind, shorter, longer, "the last token", "one that reaches into the next text")
                break


def _lacks_its_thought(was: str, became: str) -> bool:
    """Whether the prompt opens a thought and the answer has none: no model would have written that."""
    return was.rstrip().endswith(OPENS_A_THOUGHT) and THOUGHT not in became


def _same(was: str, became: str) -> int:
    """How many characters both begin with."""
    return next(
        (n for n, (left, right) in enumerate(zip(was, became, strict=False)) if left != right),
        min(len(was), len(became)),
    )


def check_growth(renderings: Renderings | NotKnown | None, tokenized: Tokenized | NotKnown | None) -> Check | None:
    """Whether a longer conversation begins with the shorter one, turn by turn. None where nothing was rendered."""
    if not isinstance(renderings, Renderings) or "chat_2" not in renderings.texts:
        return None
    found = list(growth(renderings, tokenized if isinstance(tokenized, Tokenized) else None))
    lost = _lost_thoughts(renderings)
    if not found and not lost:
        told = "tokens" if isinstance(tokenized, Tokenized) and tokenized.ids else "text"
        return ok("multi-turn", f"history stays as it was, turn by turn, in {told}")
    kinds = ", ".join(dict.fromkeys([each.kind for each in found] + (["thoughts"] if lost else [])))
    first = found[0] if found else None
    example = f": {_quoted(first.was)} becomes {_quoted(first.became)}" if first else ": earlier thoughts are taken out"
    only_users = all(each.kind != "tools" for each in found)
    still = "; turns with tools alone keep it" if only_users and "tool_4" in renderings.texts else ""
    return warning(
        "multi-turn",
        f"it rewrites history ({kinds}){example}{still}",
        "RL over several turns trains on tokens that the model never saw, or stops: prime-rl asserts the prefix",
        _INCREASING,
    )


def _lost_thoughts(renderings: Renderings) -> bool:
    """Whether a thought that was there is gone one turn later."""
    before, after = renderings.texts.get("think_2", ""), renderings.texts.get("think_3", "")
    return THOUGHT in before and bool(after) and THOUGHT not in after


def _quoted(text: str) -> str:
    return repr(text) if text else "the end"


def check_parser(
    renderings: Renderings | NotKnown | None,
    stack: Stack,
    tested: model_registry.TestedModel | None,
) -> Check | None:
    """Which of vLLM's parsers reads the calls of this template. None where there is nothing to read."""
    if not isinstance(renderings, Renderings) or ARGUMENT not in renderings.texts.get("tool_2", ""):
        return None
    written = renderings.texts["tool_2"]
    wanted, because = _wanted(written[_same(renderings.texts.get("tool_1", ""), written) :], tested)
    if not wanted:
        return not_known(
            "tool-parser",
            "the calls are written in none of the formats that vLLM's parsers are known to read",
            "see `vllm serve --help` for --tool-call-parser, or write one: --tool-parser-plugin",
        )
    here = stack.here
    if not stack.vllm and here is not None and here.has_vllm:
        there = [parser for parser in wanted if parser in here.vllm_tool_parsers]
        where = f"vLLM {here.vllm} of {here.python}"
    else:
        package = model_registry.vllm_tool_parsers()
        version = stack.vllm or package.versions[-1]
        there = [parser for parser in wanted if package.knows(parser, version) is not False]
        where = f"vLLM {version}"
    if there:
        return ok("tool-parser", f"--tool-call-parser {there[0]} ({because}; {where} has it)")
    spans = model_registry.vllm_tool_parsers().known
    since = next((spans[parser].first for parser in wanted if parser in spans), "")
    return failure(
        "tool-parser",
        f"it wants {' or '.join(wanted)} ({because}), which {where} does not have",
        "calls would arrive as plain text, and no tool would ever run",
        f"pip install 'vllm>={since}'" if since else "use a vLLM that has it",
    )


def _wanted(written: str, tested: model_registry.TestedModel | None) -> tuple[tuple[str, ...], str]:
    """The parsers, the best first, and why those."""
    formats = [each.parsers for each in _formats(written)]
    if tested is not None and tested.tool_parser:
        others = [parser for parsers in formats[:1] for parser in parsers if parser != tested.tool_parser]
        return (tested.tool_parser, *others), "as it was run with"
    if formats:
        return formats[0], "by the marks in its calls"
    return (), ""


def _formats(written: str) -> Iterable[model_registry.ToolFormat]:
    return (
        each
        for each in model_registry.tool_formats()
        if all(mark in written for mark in each.marks) and not any(mark in written for mark in each.absent)
    )
