"""Files that a training names and that are not there are found, and what the hub or the run may have is left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from prime_train.config.foreign.named_files import find_missing, find_model_folders
from prime_train.config.foreign.values import ForeignPart, Open
from prime_train.toml.document import Document


def part(folder: Path, format: str, values: dict[str, Any], moved: bool = False) -> ForeignPart:
    return ForeignPart(format, values, Document("", str(folder / "x.yaml"), values), moved=moved)


@pytest.mark.parametrize(
    ("format", "values", "missing"),
    [
        ("axolotl", {"base_model": "./m"}, {"./m": "base_model"}),
        ("axolotl", {"base_model": "owner/m", "datasets": [{"path": "a.jsonl"}]}, {"a.jsonl": "datasets.0.path"}),
        ("axolotl", {"datasets": [{"path": "owner/rows", "data_files": "a.jsonl"}]}, {}),
        ("axolotl", {"datasets": [{"path": "json", "data_files": ["a.jsonl"]}]}, {"a.jsonl": "datasets.0.data_files"}),
        ("axolotl", {"datasets": [{"path": "s3://bucket/a.jsonl"}, 7, {"path": Open("$DATA")}]}, {}),
        ("axolotl", {"base_model": "./*"}, {}),
        ("axolotl", {"base_model": "./a\0b"}, {}),
        ("torchtune", {"dataset": {"source": "owner/rows", "data_files": "a.json"}}, {}),
        ("torchtune", {"dataset": {"source": "json", "data_files": "a.json"}}, {"a.json": "dataset.data_files"}),
        (
            "verl",
            {"data": {"train_files": ["a.parquet", "b.parquet"]}},
            dict.fromkeys(("a.parquet", "b.parquet"), "data.train_files"),
        ),
        ("vllm-serve", {"model": "./m"}, {}),
    ],
)
def test_what_cannot_be_of_the_hub_is_missing(
    tmp_path: Path, format: str, values: dict[str, Any], missing: dict[str, str]
) -> None:
    assert find_missing([part(tmp_path, format, values)]) == missing
    assert find_missing([part(tmp_path, format, values, moved=True)]) == {}
    assert find_missing([part(tmp_path, format, values), part(tmp_path, "skypilot", {})]) == {}


def test_a_file_beside_the_config_is_there(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("{}", encoding="utf-8")
    (tmp_path / "m").mkdir()
    values = {"base_model": "./m", "datasets": [{"path": "a.jsonl"}]}
    assert find_missing([part(tmp_path, "axolotl", values)]) == {}
    assert find_model_folders([part(tmp_path, "axolotl", values)]) == {str(tmp_path / "m"): "base_model"}
