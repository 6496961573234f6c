"""Has a tokenizer loaded by the run's interpreter, in a child with a deadline. Imports no tokenizer here."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from prime_train.facts.child import ask, script
from prime_train.facts.facts import NotKnown

DEADLINE_S = 30.0  # transformers on a cold disk
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "tekken.json")


class Tokenized(NamedTuple):
    """What a tokenizer does. `size` counts its tokens, `highest` is the largest id, `ids` are our texts as tokens.

    `restored`: a text with digits, tabs, accents and an emoji comes back as it went in. `fault` is what it says
    instead of loading.
    """

    size: int
    highest: int
    restored: bool
    ids: Mapping[str, Sequence[int]]
    fault: str = ""


def tokenized(python: str, folder: Path, texts: Mapping[str, str]) -> Tokenized | NotKnown | None:
    """None where the folder has no tokenizer."""
    if not any((folder / name).is_file() for name in TOKENIZER_FILES):
        return None
    asked = {"folder": str(folder), "texts": dict(texts)}
    offline = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
    answer = ask([python, script("tokenizer_program")], DEADLINE_S, given=json.dumps(asked), environment=offline)
    if isinstance(answer, NotKnown):
        return answer
    try:
        said = json.loads(answer.out.splitlines()[-1])
        if "unable" in said:
            return NotKnown(f"{python}: {said['unable']}")
        if "fault" in said:
            return Tokenized(0, -1, False, {}, said["fault"])
        return Tokenized(said["size"], said["highest"], said["restored"], said["ids"])
    except (ValueError, KeyError, IndexError):
        return NotKnown(f"{python} ended with exit code {answer.code}: {answer.last_line or 'it said nothing'}")
