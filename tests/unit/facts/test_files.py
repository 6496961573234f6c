from __future__ import annotations

import contextlib
import glob
import json
import os
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_train.facts.facts import NotKnown, to_json
from prime_train.facts.files import evaluation_files, model_folder, settle_unknown, source_files, tokenizer_folder
from prime_train.facts.find_files import FileSearch, SearchBounds
from prime_train.spec import Benchmark, Eval, EvalSet, Source
from tests.unit.rules.examples import GOOD_MACHINE

LLAMA = {
    "model_type": "llama",
    "vocab_size": 320,
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 192,
    "tie_word_embeddings": True,
}


def folder_with(folder: Path, **files: str) -> str:
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)
    return str(folder)


def test_no_folder_is_named() -> None:
    assert model_folder(None) is None
    assert tokenizer_folder(None) is None


def test_a_model_folder(tmp_path: Path) -> None:
    found = model_folder(folder_with(tmp_path, config__json=json.dumps(LLAMA), model__safetensors=""))
    assert found is not None
    assert (found.problem, found.model_type, found.has_weights) == ("", "llama", True)
    assert found.architecture is not None
    assert found.architecture.head_dim == 16
    written = json.loads(json.dumps(to_json(replace(GOOD_MACHINE, model_folder=found))))["model_folder"]
    assert written["architecture"]["head_dim"] == 16
    assert written["architecture"]["parameters"] == found.architecture.parameters


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        (None, "it has no config.json"),
        ("{", "its config.json is not JSON"),
        ("[" * 100_000, "its config.json is not JSON"),
        ("[]", "its config.json is not a JSON object"),
        ("\xff", "its config.json is not JSON"),
    ],
)
def test_a_model_folder_that_is_none(tmp_path: Path, config: str | None, problem: str) -> None:
    if config is not None:
        (tmp_path / "config.json").write_bytes(config.encode("latin1"))
    found = model_folder(str(tmp_path))
    assert found is not None
    assert found.problem == problem


def test_a_config_without_sizes_or_weights(tmp_path: Path) -> None:
    found = model_folder(folder_with(tmp_path, config__json='{"model_type": "llama", "vocab_size": "many"}'))
    assert found is not None
    assert found.architecture is None
    assert not found.has_weights
    assert 'vocab_size = "many"' in found.refusal[0]


def test_a_folder_that_the_trainer_does_not_compute(tmp_path: Path) -> None:
    config = json.dumps(LLAMA | {"mlp_bias": True})
    found = model_folder(folder_with(tmp_path, config__json=config, model__safetensors=""))
    assert found is not None
    assert found.architecture is None
    assert found.refusal[0] == "mlp_bias = true"
    assert found.refusal[1]


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    for found in (model_folder(str(tmp_path / "no")), tokenizer_folder(str(tmp_path / "no"))):
        assert found is not None
        assert found.problem == "there is no such folder"


def test_a_tokenizer_folder(tmp_path: Path) -> None:
    content = {"model": {"vocab": {"a": 0, "b": 7}}, "added_tokens": [{"id": 9, "content": "<end>"}]}
    found = tokenizer_folder(folder_with(tmp_path, tokenizer__json=json.dumps(content)))
    assert found is not None
    assert (found.problem, found.vocab_size) == ("", 10)


def test_a_tokenizer_folder_of_another_kind(tmp_path: Path) -> None:
    found = tokenizer_folder(folder_with(tmp_path, tokenizer__model="x"))
    assert found is not None
    assert (found.problem, found.vocab_size) == ("", None)
    empty = tokenizer_folder(folder_with(tmp_path / "empty"))
    assert empty is not None
    assert empty.problem.startswith("it has no tokenizer.json")


# --- data ----------------------------------------------------------------------------------------


def look(path: str, kind: str = "files") -> tuple[int, int, str]:
    (found,) = source_files((Source(kind=kind, path=path),), FileSearch())  # type: ignore[arg-type]
    return found.files, found.size_bytes, found.problem


def test_text_files(tmp_path: Path) -> None:
    folder_with(tmp_path, a__txt="hello", b__jsonl="{}", c__md="no")
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "d.parquet").write_bytes(b"xyz")
    assert look(str(tmp_path)) == (3, 10, "")
    assert look(f"{tmp_path}/*.txt") == (1, 5, "")
    assert look(f"{tmp_path}/**/*") == (3, 10, "")
    assert look(f"{tmp_path}/a.txt") == (1, 5, "")


def test_text_files_that_are_not_there(tmp_path: Path) -> None:
    folder_with(tmp_path, c__md="no", empty__txt="")
    assert look(f"{tmp_path}/gone.txt")[2] == "there is no such file or folder"
    assert look(f"{tmp_path}/*.jsonl")[2] == "no .txt, .jsonl or .parquet file matches"
    assert look(f"{tmp_path}/c.md")[2] == "no .txt, .jsonl or .parquet file matches"
    assert look(str(tmp_path))[2] == "the file is empty"
    (tmp_path / "none").mkdir()
    assert look(str(tmp_path / "none"))[2] == "there is no .txt, .jsonl or .parquet file in it"


def test_a_broken_link(tmp_path: Path) -> None:
    (tmp_path / "a.txt").symlink_to(tmp_path / "gone")
    assert look(str(tmp_path))[2] == f"{tmp_path / 'a.txt'}: No such file or directory"


def test_a_pipe_among_the_data(tmp_path: Path) -> None:
    folder_with(tmp_path, a__txt="hello")
    os.mkfifo(tmp_path / "b.jsonl")
    assert look(str(tmp_path))[2] == f"{tmp_path / 'b.jsonl'} is not a regular file, and reading it may never end"


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_that_may_not_be_read(tmp_path: Path) -> None:
    folder_with(tmp_path, a__txt="hello")
    (tmp_path / "a.txt").chmod(0)
    assert look(str(tmp_path))[2] == f"{tmp_path / 'a.txt'} may not be read"


def test_datasets(tmp_path: Path) -> None:
    folder_with(tmp_path, a__arrow="x")
    assert look(str(tmp_path), "hf-dataset") == (1, 1, "")
    assert look("./gone", "hf-dataset")[2] == "there is no such file or folder"
    hub = Source(kind="hf-dataset", path="owner/name")
    assert source_files((hub, Source(kind="python-stdlib")), FileSearch()) == ()


def test_files_of_evaluations(tmp_path: Path) -> None:
    folder_with(tmp_path, a__txt="hello", questions__jsonl="{}")
    text = Source(kind="files", path=str(tmp_path / "*.txt"))
    gone = Source(kind="files", path=str(tmp_path / "gone.txt"))
    asked = Eval(
        sets=(EvalSet(name="a", sources=(text,)), EvalSet(name="b", sources=(text, gone))),
        benchmarks=(
            Benchmark(kind="lm-eval", task="arc_easy"),
            Benchmark(kind="hellaswag", path=str(tmp_path / "questions.jsonl")),
            Benchmark(kind="hellaswag", path=str(tmp_path / "gone.jsonl")),
        ),
    )
    found = [(one.field, one.files, bool(one.problem)) for one in evaluation_files(asked, FileSearch())]
    assert found == [
        ("eval.sets.0.sources.0.path", 1, False),
        ("eval.sets.1.sources.0.path", 1, False),
        ("eval.sets.1.sources.1.path", 0, True),
        ("eval.benchmarks.1.path", 1, False),
        ("eval.benchmarks.2.path", 0, True),
    ]


LETTERS = st.sampled_from(("a", "b.txt", ".c", "a[b]", "*"))
PATTERNS = st.lists(
    st.sampled_from(("**", "*", "?", "a", "*.txt", ".*", "[ab]*", "a[[]b]", ".c")), min_size=1, max_size=4
)


@given(st.sets(st.lists(LETTERS, min_size=1, max_size=3).map("/".join), max_size=8), PATTERNS, st.booleans())
def test_a_search_finds_what_a_glob_stands_for(files: set[str], pattern: list[str], is_absolute: bool) -> None:
    with tempfile.TemporaryDirectory() as name:
        for file in files:
            with contextlib.suppress(FileExistsError, NotADirectoryError, IsADirectoryError):
                (Path(name) / file).parent.mkdir(parents=True, exist_ok=True)
                (Path(name) / file).touch()
        wanted = f"{name}/{'/'.join(pattern)}"
        wanted = wanted if is_absolute else os.path.relpath(wanted)
        found = set(FileSearch().match(wanted))
        # For `**` a glob names the folder, too.
        asked = glob.glob(wanted, recursive=True)  # noqa: PTH207 - the pattern is absolute
        assert found == {path for path in asked if not path.endswith("/")}


@pytest.mark.parametrize(
    ("bounds", "limit"),
    [
        (SearchBounds(files=3), "3 files"),
        (SearchBounds(entries=5), "5 entries"),
        (SearchBounds(seconds=-1), "-1 s"),
    ],
)
@pytest.mark.parametrize("pattern", ["", "/**/*", "/*/*.txt", "/**/*.txt"])
def test_a_search_that_is_longer_than_any_data_is_not_known(
    tmp_path: Path, bounds: SearchBounds, limit: str, pattern: str
) -> None:
    for number in range(6):
        folder_with(tmp_path / f"{number}", a__txt="hello")
    endless = Source(kind="files", path=f"{tmp_path}{pattern}")
    found = source_files((endless,), FileSearch(bounds))
    answer = settle_unknown(found)
    assert isinstance(answer, NotKnown)
    assert answer.reason.startswith(
        f"data.sources.0.path = {endless.path!r}: the search for files was ended after {limit};"
    )
    assert "name a folder" in answer.reason
    # A fault elsewhere is one whatever the search would have found.
    gone = source_files((Source(kind="files", path=str(tmp_path / "gone.txt")),), FileSearch())
    assert settle_unknown((*found, *gone)) == gone


def test_many_endless_globs_are_one_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder_with(tmp_path, **{f"{number}__txt": "hello" for number in range(6)})
    looked: list[int] = []
    real = FileSearch._count

    def count(self: FileSearch, entries: int) -> None:
        looked.append(entries)
        real(self, entries)

    monkeypatch.setattr(FileSearch, "_count", count)
    endless = [Source(kind="files", path=f"{tmp_path}/**/*") for _ in range(50)]
    found = source_files(endless, FileSearch(SearchBounds(entries=5)))
    assert [bool(one.unknown) for one in found] == [True] * 50
    assert sum(looked) == 6, "the first search is ended by its sixth entry, and the others look at none"


def test_a_search_of_the_whole_machine_ends_without_a_match() -> None:
    (found,) = source_files(
        (Source(kind="files", path="/**/absent-everywhere.txt"),), FileSearch(SearchBounds(entries=2_000))
    )
    assert (found.files, found.problem, found.unknown) == (0, "", "the search for files was ended after 2,000 entries")


@pytest.mark.parametrize("reads", [model_folder, tokenizer_folder])
def test_a_folder_whose_files_are_pipes_does_not_hang(tmp_path: Path, reads: Callable[[str], Any]) -> None:
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        os.mkfifo(tmp_path / name)
    assert reads(str(tmp_path)).problem
    for name in ("config.json", "tokenizer.json"):
        (tmp_path / name).unlink()
        (tmp_path / name).write_text("[" * 100_000)
    assert reads(str(tmp_path)).problem
