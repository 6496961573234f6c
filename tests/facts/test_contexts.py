from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from prime_train.facts.contexts import cached, contexts
from prime_train.facts.facts import NotKnown


def model(folder: Path, config: Any) -> str:
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


@pytest.mark.parametrize(
    ("config", "tokens", "is_scaled"),
    [
        ({"max_position_embeddings": 4096}, 4096, False),
        ({"max_position_embeddings": 4096, "max_sequence_length": 2048}, 2048, False),
        ({"text_config": {"max_position_embeddings": 8192}}, 8192, False),
        ({"max_position_embeddings": 4096, "rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, 4096, True),
        ({"max_position_embeddings": 4096, "rope_scaling": {"type": "linear", "factor": 2.0}}, 4096, True),
        (
            {"max_position_embeddings": 4096, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
            4096,
            False,
        ),
    ],
)
def test_what_a_config_says(tmp_path: Path, config: Any, tokens: int, is_scaled: bool) -> None:
    found = contexts([model(tmp_path, config)])
    assert not isinstance(found, NotKnown)
    assert [(item.tokens, item.is_scaled) for item in found] == [(tokens, is_scaled)]


@pytest.mark.parametrize("config", [{}, [], {"max_position_embeddings": "many"}, {"max_position_embeddings": True}])
def test_a_config_that_does_not_say(tmp_path: Path, config: Any) -> None:
    assert isinstance(contexts([model(tmp_path, config)]), NotKnown)


def test_a_run_without_a_model_asks_nothing() -> None:
    assert contexts([]) == ()


def test_what_the_cache_of_the_hub_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = tmp_path / "models--owner--name" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text('{"max_position_embeddings": 512}')
    refs = tmp_path / "models--owner--name" / "refs"
    refs.mkdir()
    (refs / "main").write_text("abc")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    assert cached("owner/name", "config.json") == snapshot / "config.json"
    assert cached("owner/name", "tokenizer.json") is None
    assert cached("owner/other", "config.json") is None
    assert cached("not a name at all//", "config.json") is None
    found = contexts(["owner/name", "owner/other"])
    assert not isinstance(found, NotKnown)
    assert [(item.name, item.tokens) for item in found] == [("owner/name", 512)]
