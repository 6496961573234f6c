"""The sizes of the model that a file names come from its folder or the registry, and hostile folders give none."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from prime_train.config.foreign.model_sizes import sizes_of
from prime_train.config.foreign.values import ForeignPart, Open
from prime_train.toml.document import Document

LLAMA = {"num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096, "max_position_embeddings": 8192}


def part(folder: Path, model: Any, format: str = "vllm-serve", moved: bool = False) -> ForeignPart:
    values = {"model": model}
    return ForeignPart(format, values, Document("", str(folder / "job.sh"), values), moved=moved)


def folder_with(folder: Path, config: object) -> Path:
    (folder / "m").mkdir()
    (folder / "m" / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def test_a_folder_beside_the_file_comes_before_the_registry(tmp_path: Path) -> None:
    found = sizes_of(part(folder_with(tmp_path, LLAMA), "m"))
    assert (found["heads"], found["kv_heads"], found["max_positions"], found["hybrid"]) == (32, 8, 8192, False)
    assert "parameters" not in found


def test_a_model_of_the_registry_is_known_without_a_folder(tmp_path: Path) -> None:
    found = sizes_of(part(tmp_path, "Qwen/Qwen2.5-7B-Instruct"))
    assert (found["heads"], found["max_positions"]) == (28, 32768)
    assert sizes_of(part(tmp_path, "qwen/qwen3-next-80b-a3b-instruct"))["hybrid"] is True


@pytest.mark.parametrize("model", ["someone/else", "", None, 7, ["a"], Open("$MODEL"), "https://host/m", "~/m", "a\0b"])
def test_a_model_that_is_not_known_has_no_sizes(tmp_path: Path, model: object) -> None:
    assert sizes_of(part(tmp_path, model)) == {}


def test_a_script_that_changes_its_folder_leaves_the_folder_of_the_model_open(tmp_path: Path) -> None:
    assert sizes_of(part(folder_with(tmp_path, LLAMA), "m", moved=True)) == {}


def test_sizes_of_a_text_model_inside_another_count(tmp_path: Path) -> None:
    assert sizes_of(part(folder_with(tmp_path, {"text_config": LLAMA}), "m"))["heads"] == 32


def test_scaled_positions_are_not_known(tmp_path: Path) -> None:
    scaled = {**LLAMA, "rope_scaling": {"rope_type": "yarn", "factor": 4.0}}
    assert "max_positions" not in sizes_of(part(folder_with(tmp_path, scaled), "m"))


@pytest.mark.parametrize(
    "config", [[], 7, {"num_attention_heads": -1}, {"num_attention_heads": True}, {"num_attention_heads": 1e300}]
)
def test_nonsense_in_a_config_gives_no_size(tmp_path: Path, config: object) -> None:
    assert sizes_of(part(folder_with(tmp_path, config), "m")).get("heads") is None


def test_a_hostile_folder_gives_no_sizes(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    os.mkfifo(tmp_path / "m" / "config.json")
    assert sizes_of(part(tmp_path, "m")) == {}
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "config.json").write_text("[" * 100_000, encoding="utf-8")
    assert sizes_of(part(tmp_path, "deep")) == {}
    (tmp_path / "binary").mkdir()
    (tmp_path / "binary" / "config.json").write_bytes(b"\xff\xfe\x00{")
    assert sizes_of(part(tmp_path, "binary")) == {}
