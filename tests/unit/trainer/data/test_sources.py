from __future__ import annotations

import ctypes
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from prime_train.core.errors import UserError
from prime_train.spec import Source
from prime_train.trainer.data.sources import library_files, locate, matching_files, open_files, read_library, read_text
from tests.unit.trainer.data.small_runs import files, write_lines, write_texts


def all_texts(source: Source) -> list[str]:
    documents = locate(source).open()
    return documents.texts(range(documents.count))


def test_the_standard_library_is_megabytes_of_python() -> None:
    texts = all_texts(Source(kind="python-stdlib"))
    assert len(texts) > 100
    assert sum(map(len, texts)) > 1_000_000
    assert any("class Path" in text for text in texts)


def test_installed_packages_and_tests_are_no_part_of_the_library(tmp_path: Path) -> None:
    for name in ("a.py", "json/b.py", "site-packages/c.py", "test/d.py", "json/tests/e.py", "f.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x = 1")
    assert [file.name for file in library_files(tmp_path)] == ["a.py", "b.py"]


def test_library_files_that_are_not_utf8_are_skipped_and_counted(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1")
    (tmp_path / "b.py").write_bytes(b"# \xff\xfe")
    (tmp_path / "c.py").write_text("\n")
    documents = read_library(library_files(tmp_path))
    assert (documents.texts(range(documents.count)), documents.skipped) == (["x = 1"], 1)


def test_a_file_a_folder_and_a_glob(tmp_path: Path) -> None:
    write_texts(tmp_path / "deep" / "er", 3)
    everything = all_texts(files(tmp_path))
    assert len(everything) == 3
    assert all_texts(files(tmp_path / "deep" / "er" / "0001.txt")) == everything[1:2]
    assert all_texts(files(tmp_path / "**" / "000[02].txt")) == everything[::2]


def test_a_folder_may_hold_several_formats(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("from txt")
    write_lines(tmp_path / "b.jsonl", [{"text": "line 1"}, {"text": "line 2"}])
    documents = locate(files(tmp_path)).open()
    assert documents.count == 3
    assert documents.texts([0, 1, 2]) == ["line 1", "line 2", "from txt"]
    assert documents.texts([2, 1, 2, 0]) == ["from txt", "line 2", "from txt", "line 1"]


def test_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfhello\r\n")
    assert all_texts(files(tmp_path)) == ["hello\r\n"]


def test_the_fingerprint_follows_names_sizes_and_times(tmp_path: Path) -> None:
    write_texts(tmp_path / "texts", 3)
    origin = locate(files(tmp_path / "texts"))
    assert locate(files(tmp_path / "texts")).fingerprint == origin.fingerprint
    os.utime(tmp_path / "texts" / "0001.txt", (1, 1))
    touched = locate(files(tmp_path / "texts"))
    assert touched.fingerprint != origin.fingerprint
    assert touched.identity == origin.identity
    (tmp_path / "texts" / "0001.txt").write_text("other text altogether")
    assert locate(files(tmp_path / "texts")).identity != origin.identity


def test_the_identity_does_not_depend_on_where_the_files_lie(tmp_path: Path) -> None:
    here, there = write_texts(tmp_path / "here", 3), write_texts(tmp_path / "there", 3)
    assert locate(files(here)).identity == locate(files(there)).identity


def test_no_matching_file_is_reported_with_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "a.pdf").write_text("x")
    with pytest.raises(UserError) as caught:
        locate(files(tmp_path))
    assert "no .txt, .jsonl, .parquet file matches; found .pdf" in caught.value.what
    assert str(tmp_path) in caught.value.where


def test_a_path_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no \.txt"):
        locate(files(tmp_path / "missing" / "*.txt"))


def test_a_source_of_files_needs_a_path() -> None:
    with pytest.raises(UserError, match="path is not set"):
        locate(Source(kind="files"))


def test_text_in_another_encoding_is_refused_with_the_byte(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"abc\xff")
    with pytest.raises(UserError, match="byte 3 is not UTF-8"):
        all_texts(files(tmp_path))


@pytest.fixture
def forbidden() -> Iterator[Path]:
    """A folder with a file and a folder that only root may read; the test reads files as another user.

    setfsuid is for the calling thread alone. seteuid is for all threads, so that threads of other tests would fail too.
    """
    set_file_user = ctypes.CDLL(None).setfsuid if os.geteuid() == 0 else lambda _user: None
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "a.txt").write_text("secret")
        (folder / "closed").mkdir()
        (folder / "closed" / "b.txt").write_text("secret")
        (folder / "a.txt").chmod(0)
        (folder / "closed").chmod(0)
        try:
            set_file_user(65534)
            yield folder
        finally:
            set_file_user(os.geteuid())
            (folder / "closed").chmod(0o755)


@pytest.mark.parametrize("name", ["a.txt", "closed", "closed/b.txt"])
def test_what_may_not_be_read_is_named(forbidden: Path, name: str) -> None:
    with pytest.raises(UserError) as caught:
        locate(files(forbidden / name)).open()
    assert "Permission denied" in caught.value.what
    assert str(forbidden / name) in caught.value.where


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.parquet"])
def test_a_pipe_among_the_training_data_is_refused_and_not_waited_for(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    _, files = matching_files(str(tmp_path))
    with pytest.raises(UserError, match="named pipe") as refused:
        open_files(files, "text")
    assert refused.value.where == str(tmp_path / name)
    with pytest.raises(UserError, match="named pipe"):
        read_text(tmp_path / name)
