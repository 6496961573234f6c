from __future__ import annotations

from pathlib import Path

import datasets
import pytest

from prime_train.core.errors import ExitCode, UserError
from prime_train.spec import Source
from prime_train.trainer.data.sources import locate
from prime_train.trainer.data.tables import check_lines
from tests.unit.trainer.data.small_runs import files, write_lines


def all_texts(source: Source) -> list[str]:
    documents = locate(source).open()
    return documents.texts(range(documents.count))


def fault(source: Source) -> UserError:
    with pytest.raises(UserError) as caught:
        locate(source).open()
    return caught.value


def test_a_line_that_nests_too_deeply_is_named(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text('{"text": "a"}\n' + "[" * 100_000 + "]" * 100_000 + "\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"a.jsonl:2: not a line of JSON: maximum recursion depth"):
        check_lines(file)


def test_lines_of_json(tmp_path: Path) -> None:
    file = write_lines(tmp_path / "a.jsonl", [{"text": "one", "id": 1}, {"text": "zwei\n2"}, {"text": None}])
    assert all_texts(files(file)) == ["one", "zwei\n2", ""]
    assert locate(files(file)).open().texts([1, 0, 1]) == ["zwei\n2", "one", "zwei\n2"]


def test_rows_of_parquet(tmp_path: Path) -> None:
    datasets.Dataset.from_dict({"body": ["one", "two"], "n": [1, 2]}).to_parquet(str(tmp_path / "a.parquet"))
    assert all_texts(files(tmp_path, text_field="body")) == ["one", "two"]


def test_a_broken_line_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "fine"}\n\n{"text": oops}\n')
    error = fault(files(tmp_path))
    assert error.where == f"{tmp_path / 'a.jsonl'}:3"
    assert "not a line of JSON" in error.what


def test_a_missing_field_is_reported_with_those_that_exist(tmp_path: Path) -> None:
    file = write_lines(tmp_path / "a.jsonl", [{"texts": "one", "id": 1}])
    error = fault(files(file))
    assert error.what == 'no field "text"; there are texts, id; did you mean texts?'
    assert error.fix == 'text_field = "texts"'


def test_a_field_that_is_not_text(tmp_path: Path) -> None:
    file = write_lines(tmp_path / "a.jsonl", [{"text": 3}])
    assert "not text" in fault(files(file)).what


def test_a_file_without_a_line(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").touch()
    assert fault(files(tmp_path)).what == "it contains no text"


def test_a_parquet_file_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_text("not parquet")
    error = fault(files(tmp_path))
    assert "cannot be read as parquet" in error.what
    assert "a.parquet" in error.where


def test_a_dataset_folder_with_splits(tmp_path: Path) -> None:
    part = {"train": ["one", "two"], "test": ["three"]}
    saved = datasets.DatasetDict({name: datasets.Dataset.from_dict({"text": texts}) for name, texts in part.items()})
    saved.save_to_disk(str(tmp_path / "saved"))
    for name, texts in part.items():
        assert all_texts(Source(kind="hf-dataset", path=str(tmp_path / "saved"), split=name)) == texts


def test_a_dataset_folder_without_splits(tmp_path: Path) -> None:
    datasets.Dataset.from_dict({"text": ["one"]}).save_to_disk(str(tmp_path / "saved"))
    assert all_texts(Source(kind="hf-dataset", path=str(tmp_path / "saved"))) == ["one"]


def test_a_folder_of_files_as_the_hub_has_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf")
    (tmp_path / "repo").mkdir()
    write_lines(tmp_path / "repo" / "train.jsonl", [{"text": "one"}])
    source = Source(kind="hf-dataset", path=str(tmp_path / "repo"))
    assert all_texts(source) == ["one"]
    error = fault(Source(kind="hf-dataset", path=str(tmp_path / "repo"), split="validatoin"))
    assert "validatoin" in error.what
    assert "train" in error.what


def test_a_dataset_out_of_reach_is_named_with_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    error = fault(Source(kind="hf-dataset", path="somebody/some-text"))
    assert error.exit_code is ExitCode.OUT_OF_REACH
    assert "somebody/some-text" in error.what
    assert "hf download --repo-type dataset somebody/some-text" in error.fix
