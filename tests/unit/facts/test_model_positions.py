from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from prime_train.facts.data_lengths import find_file, read_contexts
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
def test_what_a_config_states(tmp_path: Path, config: Any, tokens: int, is_scaled: bool) -> None:
    found = read_contexts([model(tmp_path, config)])
    assert not isinstance(found, NotKnown)
    assert [(item.tokens, item.is_scaled) for item in found] == [(tokens, is_scaled)]


@pytest.mark.parametrize(
    ("scaling", "model_type", "tokens"),
    [
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}, "qwen3", 131072),
        ({"type": "linear", "factor": 2.0}, "llama", 81920),
        ({"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192}, "llama", 40960),
        ({"rope_type": "linear", "factor": 8.0}, "gemma3_text", 40960),
        ({"rope_type": "yarn", "factor": 4.0}, "qwen3", None),
        ({"rope_type": "linear", "factor": "4"}, "qwen3", None),
        ({"full_attention": {"rope_type": "linear", "factor": 8.0}}, "llama", None),
        ({"rope_type": "default"}, "qwen3", None),
    ],
)
def test_what_rope_scaling_makes_of_the_positions(tmp_path: Path, scaling: Any, model_type: str, tokens: Any) -> None:
    config = {"max_position_embeddings": 40960, "model_type": model_type, "rope_scaling": scaling}
    found = read_contexts([model(tmp_path, config)])
    assert not isinstance(found, NotKnown)
    assert [item.scaled_tokens for item in found] == [tokens]


@pytest.mark.parametrize("config", [{}, [], {"max_position_embeddings": "many"}, {"max_position_embeddings": True}])
def test_a_config_that_does_not_state(tmp_path: Path, config: Any) -> None:
    assert isinstance(read_contexts([model(tmp_path, config)]), NotKnown)


def test_a_run_without_a_model_asks_nothing() -> None:
    assert read_contexts([]) == ()


def test_what_the_cache_of_the_hub_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = tmp_path / "models--owner--name" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text('{"max_position_embeddings": 512}')
    refs = tmp_path / "models--owner--name" / "refs"
    refs.mkdir()
    (refs / "main").write_text("abc")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    assert find_file("owner/name", "config.json") == snapshot / "config.json"
    assert find_file("owner/name", "tokenizer.json") is None
    assert find_file("owner/other", "config.json") is None
    assert find_file("not a name at all//", "config.json") is None
    found = read_contexts(["owner/name", "owner/other"])
    assert not isinstance(found, NotKnown)
    assert [(item.name, item.tokens) for item in found] == [("owner/name", 512)]
