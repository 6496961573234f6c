"""A tokenizer is loaded by the run's interpreter, or it is told why not."""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from prime_train.facts.facts import NotKnown
from prime_train.models.read.evidence import Tokenized, tokenize
from tests.fakes.model_folder import SPECIAL, write_tokenizer

needs_tokenizers = pytest.mark.skipif(find_spec("tokenizers") is None, reason="tokenizers is not installed")


@needs_tokenizers
def test_one_that_loads(tmp_path: Path) -> None:
    write_tokenizer(tmp_path / "tokenizer.json")
    found = tokenize(sys.executable, tmp_path, {"mine": "a<|im_end|>\n"})
    assert isinstance(found, Tokenized), found
    assert (found.size, found.highest, found.restored, found.fault) == (263, 262, True, "")
    assert list(found.ids["mine"]) == [ord("a"), 256 + SPECIAL.index("<|im_end|>"), ord("\n")]


@needs_tokenizers
@pytest.mark.parametrize("content", ["{", "{}", '{"version": "1.0", "model": {"type": "Nothing"}}'])
def test_one_that_does_not(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    found = tokenize(sys.executable, tmp_path, {})
    assert isinstance(found, Tokenized)
    assert found.fault


@needs_tokenizers
def test_one_that_cannot_write_everything(tmp_path: Path) -> None:
    write_tokenizer(tmp_path / "tokenizer.json")
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    vocab = content["model"]["vocab"]
    content["model"]["vocab"] = {letter: number for letter, number in vocab.items() if number < 200}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    found = tokenize(sys.executable, tmp_path, {})
    assert isinstance(found, Tokenized)
    assert not found.restored


def test_a_folder_without_one(tmp_path: Path) -> None:
    assert tokenize(sys.executable, tmp_path, {}) is None


def test_an_interpreter_that_is_none(tmp_path: Path) -> None:
    write_tokenizer(tmp_path / "tokenizer.json")
    assert isinstance(tokenize("/no/such/python", tmp_path, {}), NotKnown)
    assert isinstance(tokenize("/bin/true", tmp_path, {}), NotKnown)
