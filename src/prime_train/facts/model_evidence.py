"""Gathers what a verdict on a model rests on: files, template, tokenizer, packages. Each has a deadline of its own."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from prime_train.facts import chat_template
from prime_train.facts.architectures import Installed, installed
from prime_train.facts.chat_questions import ANSWER
from prime_train.facts.chat_template import ChatTemplate, Renderings
from prime_train.facts.facts import NotKnown
from prime_train.facts.model_files import model_files
from prime_train.facts.model_source import ModelFiles, Refused
from prime_train.facts.tokenizer import Tokenized, tokenized

TURN_END = "turn end"  # the name under which what follows an answer is tokenised


class Evidence(NamedTuple):
    """All that is known of a model. `config` is the text of config.json; a value is None where there is none."""

    files: ModelFiles
    config: str | None
    generation: Mapping[str, Any]
    tokenizer_config: Mapping[str, Any]
    template: ChatTemplate | str | None
    renderings: Renderings | NotKnown | None
    tokenized: Tokenized | NotKnown | None
    installed: Installed | NotKnown


def evidence(name: str, scratch: Path, python: str, *, revision: str = "", offline: bool = False) -> Evidence | Refused:
    """What is known of a model of the hub or in a folder. `python` is the interpreter that the run will use.

    Raises UserError where the name means a folder and there is none.
    """
    with ThreadPoolExecutor(max_workers=2) as pool:
        packages = pool.submit(installed, python)
        files = model_files(name, scratch, revision=revision, offline=offline)
        if isinstance(files, Refused):
            return files
        template = chat_template.find(files.folder)
        renderings: Renderings | NotKnown | None = None
        if isinstance(template, ChatTemplate):
            renderings = _renderings(template, files.folder, python)
        return Evidence(
            files=files,
            config=_text(files.folder / "config.json"),
            generation=_object(files.folder / "generation_config.json"),
            tokenizer_config=_object(files.folder / "tokenizer_config.json"),
            template=template,
            renderings=renderings,
            tokenized=tokenized(python, files.folder, _texts(renderings)),
            installed=packages.result(),
        )


def _renderings(template: ChatTemplate, folder: Path, python: str) -> Renderings | NotKnown:
    """Rendered by this interpreter's jinja2; where it has none, by that of the run's, which transformers brings."""
    special = chat_template.special_tokens(folder)
    found = chat_template.renderings(template, special)
    if isinstance(found, NotKnown) and python != sys.executable:
        return chat_template.renderings(template, special, python)
    return found


def _texts(renderings: Renderings | NotKnown | None) -> dict[str, str]:
    """What is to be tokenised: all renderings, and what follows an answer."""
    if not isinstance(renderings, Renderings):
        return {}
    after = renderings.texts.get("chat_2", "").rpartition(ANSWER)[2].strip()
    return {**renderings.texts, **({TURN_END: after} if after else {})}


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def _object(path: Path) -> Mapping[str, Any]:
    """The object in a JSON file; {} where it is none: what is missing in it has a default."""
    try:
        found = json.loads(_text(path) or "{}")
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
