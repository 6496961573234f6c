"""The module that opens what comes from outside: regular files only, no link below a root, bounded content."""

import os
import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_train.core import outside
from prime_train.core.errors import ExitCode
from prime_train.core.outside import OutsideError


def test_a_regular_file_is_read_with_and_without_a_root(tmp_path: Path) -> None:
    file = tmp_path / "a" / "b.json"
    file.parent.mkdir()
    file.write_text('{"x": [1, 2.5, "é"]}')

    assert outside.read_bytes(file, 100) == file.read_bytes()
    assert outside.read_text(file, 100, within=tmp_path) == file.read_text()
    assert outside.read_json(file, 100, within=tmp_path) == {"x": [1, 2.5, "é"]}


@pytest.mark.parametrize("within", [False, True])
def test_only_regular_files_are_opened(tmp_path: Path, within: bool) -> None:
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        for name in ("pipe", "socket"):
            with pytest.raises(OutsideError, match=f"{name}, not a regular file"):
                outside.read_bytes(tmp_path / name, 100, tmp_path if within else None)


def test_a_device_is_not_opened(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/dev/zero")

    for path in (Path("/dev/zero"), tmp_path / "link"):
        with pytest.raises(OutsideError, match="a device"):
            outside.read_bytes(path, 100)


def test_a_folder_and_a_missing_file_raise_what_open_raises(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        outside.read_bytes(tmp_path, 1)
    with pytest.raises(FileNotFoundError):
        outside.read_bytes(tmp_path / "none", 1)
    with pytest.raises(FileNotFoundError):
        outside.read_bytes(tmp_path / "none" / "x", 1, tmp_path)


def test_no_link_is_followed_below_a_root(tmp_path: Path) -> None:
    root, secret = tmp_path / "root", tmp_path / "secret"
    (root / "a").mkdir(parents=True)
    secret.mkdir()
    (secret / "file").write_text("secret")
    (root / "a" / "file").symlink_to(secret / "file")
    (root / "b").symlink_to(secret)
    (root / "inner").write_text("inside")
    (root / "c").symlink_to(root / "inner")

    for name in ("a/file", "b/file", "c"):
        with pytest.raises(OutsideError, match="a symbolic link"):
            outside.read_bytes(root / name, 100, root)
    with pytest.raises(OutsideError, match="not below"):
        outside.read_bytes(root / "../secret/file", 100, root)
    (tmp_path / "way").symlink_to(root)
    assert outside.read_bytes(tmp_path / "way" / "inner", 100, tmp_path / "way") == b"inside"  # the root is the user's


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "file").write_text("x")
    (tmp_path / "a" / "link").symlink_to("file")
    os.mkfifo(tmp_path / "a" / "pipe")
    before = len(os.listdir("/proc/self/fd"))

    for name in ("file", "link", "pipe", "none", ""):
        try:
            outside.read_bytes(tmp_path / "a" / name, 100, tmp_path)
        except OSError:
            continue

    assert len(os.listdir("/proc/self/fd")) == before


def test_the_size_is_bounded(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"x" * 4096)

    assert len(outside.read_bytes(file, 4096)) == 4096
    with pytest.raises(OutsideError, match="more than"):
        outside.read_bytes(file, 4095)
    with pytest.raises(OutsideError, match=r"more than 1\.0 KiB"):
        outside.read_bytes(file, 1024, tmp_path)


@pytest.mark.parametrize("name", ["a", "a/b.distcp", "__0_0.distcp", ".metadata", "..a", "a..b/c...", "step 1/é"])
def test_plain_names(name: str) -> None:
    assert outside.name_fault(name) == ""


@pytest.mark.parametrize(
    "name", ["", "/etc/passwd", "..", "../x", "a/../../x", "a/..", ".", "./a", "a//b", "a/", "a\0b", 5, None, "x" * 300]
)
def test_other_names(name: object) -> None:
    assert outside.name_fault(name) != ""


@given(st.text())
def test_a_plain_name_never_leads_out_of_its_folder(name: str) -> None:
    if not outside.name_fault(name):
        assert os.path.normpath(f"/folder/{name}").startswith("/folder/")


@given(st.integers(0, 10**18 - 1))
def test_a_count_is_read_from_its_number_and_its_text(count: int) -> None:
    assert outside.to_count(count) == outside.to_count(str(count)) == count


@given(st.text() | st.floats() | st.booleans() | st.none() | st.lists(st.integers()) | st.integers(min_value=10**18))
def test_anything_else_is_no_count_and_no_error(value: object) -> None:
    read = outside.to_count(value)
    assert read is None or (isinstance(value, str) and read == int(value))


def test_an_error_becomes_a_message_of_four_parts(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OutsideError) as raised:
        outside.read_bytes(tmp_path / "pipe", 1)

    error = outside.as_user_error(raised.value, "run.toml", "name a file", ExitCode.OUT_OF_REACH)

    assert (error.what, error.where) == ("it is a named pipe, not a regular file", "run.toml")
    assert error.why
    assert (error.fix, error.exit_code) == ("name a file", ExitCode.OUT_OF_REACH)
    assert outside.as_user_error(ValueError("no JSON"), "x", "y").why == "no JSON"
