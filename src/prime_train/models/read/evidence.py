"""Gathers the evidence about a model: files, chat template, tokenizer, packages. Each has its own deadline."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from prime_train.core import outside
from prime_train.core.chat_template import TemplateText, find_template, read_object, special_tokens
from prime_train.core.outside import MODEL_BYTES
from prime_train.facts.accounts import TOKENIZER_FILES
from prime_train.facts.facts import NotKnown
from prime_train.facts.probe_process import read_answer, script
from prime_train.models.read.architectures import InstalledPackages, read_installed
from prime_train.models.read.chat_template import ANSWER, Renderings, render_all
from prime_train.models.read.model_files import ModelFiles, RefusedRead
from prime_train.models.read.read_files import read_model_files

TURN_END = "turn end"  # the name of the text that follows an answer, among the tokenised texts


class ModelEvidence(NamedTuple):
    """All evidence about a model. `config` is the text of config.json. A value is None if there is none."""

    files: ModelFiles
    config: str | None
    generation: Mapping[str, Any]
    tokenizer_config: Mapping[str, Any]
    template: TemplateText | str | None
    renderings: Renderings | NotKnown | None
    tokenized: Tokenized | NotKnown | None
    installed: InstalledPackages | NotKnown


def gather_evidence(
    name: str, scratch: Path, python: str, *, revision: str = "", offline: bool = False
) -> ModelEvidence | RefusedRead:
    """The evidence about a model on the hub or in a folder. `python` is the run's interpreter.

    Raises UserError if the name is the path of a missing folder.
    """
    with ThreadPoolExecutor(max_workers=2) as pool:
        packages = pool.submit(read_installed, python)
        files = read_model_files(name, scratch, f"verify-model {name}", revision=revision, offline=offline)
        if isinstance(files, RefusedRead):
            return files
        template = find_template(files.folder)
        renderings: Renderings | NotKnown | None = None
        if isinstance(template, TemplateText):
            renderings = _renderings(template, files.folder, python)
        return ModelEvidence(
            files=files,
            config=_text(files.folder / "config.json"),
            generation=read_object(files.folder / "generation_config.json"),
            tokenizer_config=read_object(files.folder / "tokenizer_config.json"),
            template=template,
            renderings=renderings,
            tokenized=tokenize(python, files.folder, _texts(renderings)),
            installed=packages.result(),
        )


def _renderings(template: TemplateText, folder: Path, python: str) -> Renderings | NotKnown:
    """Renders with this interpreter's jinja2, or with the one in the run's interpreter, which transformers installs."""
    special = special_tokens(folder)
    found = render_all(template, special)
    if isinstance(found, NotKnown) and python != sys.executable:
        return render_all(template, special, python)
    return found


def _texts(renderings: Renderings | NotKnown | None) -> dict[str, str]:
    """The texts to tokenise: all renderings, and the text that follows an answer."""
    if not isinstance(renderings, Renderings):
        return {}
    after = renderings.texts.get("chat_2", "").rpartition(ANSWER)[2].strip()
    return {**renderings.texts, **({TURN_END: after} if after else {})}


def _text(path: Path) -> str | None:
    try:
        return outside.read_text(path, MODEL_BYTES, errors="replace")
    except OSError:
        return None


DEADLINE_S = 30.0  # transformers on a cold disk


class Tokenized(NamedTuple):
    """The results of a tokenizer. `size` counts its tokens, `highest` is the largest id, `ids` has the tokenised texts.

    `restored`: a text with digits, tabs, accents and an emoji is the same after encoding and decoding. `fault` is the
    error if it does not load.
    """

    size: int
    highest: int
    restored: bool
    ids: Mapping[str, Sequence[int]]
    fault: str = ""


def tokenize(python: str, folder: Path, texts: Mapping[str, str]) -> Tokenized | NotKnown | None:
    """The results for a folder and named texts; None if the folder has no tokenizer."""
    if not any((folder / name).is_file() for name in TOKENIZER_FILES):
        return None
    request = {"folder": str(folder), "texts": dict(texts)}
    offline = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
    command = [python, script("tokenizer_program", __file__)]
    output = read_answer(python, command, DEADLINE_S, request, environment=offline)
    if isinstance(output, NotKnown):
        return output
    if "unable" in output:
        return NotKnown(f"{python}: {output['unable']}")
    if "fault" in output:
        return Tokenized(0, -1, False, {}, output["fault"])
    try:
        return Tokenized(**output)
    except TypeError:
        return NotKnown(f"{python} is not the run's interpreter: its answer has no tokenizer")
