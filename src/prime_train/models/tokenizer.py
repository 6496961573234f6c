"""Loads a tokenizer in the run's interpreter, as a child with a deadline. Imports no tokenizer itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from prime_train.facts.facts import NotKnown
from prime_train.facts.hub import TOKENIZER_FILES
from prime_train.facts.probe_process import read_answer, script

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
