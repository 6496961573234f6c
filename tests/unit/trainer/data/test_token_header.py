from __future__ import annotations

import contextlib
import os
import pickle
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prime_train.core.errors import UserError
from prime_train.trainer.data.token_header import FORMATS, read_header
from tests.unit.trainer.data.token_sources import write_bin


def fault(path: Path) -> UserError:
    with pytest.raises(UserError) as caught:
        read_header(path)
    assert all((caught.value.what, caught.value.where, caught.value.why, caught.value.fix))
    assert str(path) in caught.value.where
    return caught.value


@pytest.mark.parametrize(("magic", "size"), [(20240520, 2), (20240801, 4)])
def test_a_bin_of_llm_c(tmp_path: Path, magic: int, size: int) -> None:
    found = read_header(write_bin(tmp_path / "a.bin", [5, 6, 7], magic))
    assert (found.count, found.begin_bytes, found.kind.itemsize) == (3, 1024, size)
    assert found.format is FORMATS[magic]


@pytest.mark.parametrize("kind", ["u1", "<u2", ">u2", "<u4", "<u8"])
def test_an_npy_of_unsigned_integers(tmp_path: Path, kind: str) -> None:
    np.save(tmp_path / "a.npy", np.arange(5, dtype=kind))
    found = read_header(tmp_path / "a.npy")
    descriptor = os.open(tmp_path / "a.npy", os.O_RDONLY)
    assert (found.count, found.kind, found.format) == (5, np.dtype(kind), None)
    assert found.read(descriptor, 1, 3).tolist() == [1, 2, 3]
    with pytest.raises(UserError, match="it ends before token 6 of 5"):
        found.read(descriptor, 4, 2)
    os.close(descriptor)


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"", "it has 0 bytes, and the header of a .bin has 1024"),
        (np.arange(2000, dtype="<u2").tobytes(), "its first number is 65536, not 20240520 or 20240801"),
        (np.asarray([20240520, 2, 5], dtype="<i4").tobytes() + bytes(2000), "its header has version 2"),
        (np.asarray([20240520, 1, -5], dtype="<i4").tobytes() + bytes(2000), "its header has -5 tokens"),
    ],
)
def test_another_header_is_refused(tmp_path: Path, content: bytes, what: str) -> None:
    (tmp_path / "a.bin").write_bytes(content)
    assert fault(tmp_path / "a.bin").what.startswith(what)
    assert 'numpy.save("a.npy", numpy.fromfile("a.bin", numpy.uint16))' in fault(tmp_path / "a.bin").fix


@pytest.mark.parametrize("name", ["a.bin", "a.npy"])
@pytest.mark.parametrize("change", [-1, 1])
def test_a_file_of_another_size_is_refused(tmp_path: Path, name: str, change: int) -> None:
    if name == "a.bin":
        write_bin(tmp_path / name, range(50))
    else:
        np.save(tmp_path / name, np.arange(50, dtype=np.uint32))
    content = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(content[:-1] if change < 0 else content + b"x")
    found = fault(tmp_path / name)
    assert "by its header of 50 tokens" in found.what
    assert ("it was cut" in found.why) == (change < 0)


class Marks:
    """A pickle that runs code when it is loaded."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.mark),)


def test_a_pickle_is_refused_and_not_loaded(tmp_path: Path) -> None:
    mark = tmp_path / "loaded"
    np.save(tmp_path / "a.npy", np.asarray([Marks(mark)], dtype=object), allow_pickle=True)
    assert fault(tmp_path / "a.npy").what.startswith("its elements are Python objects")
    assert "runs code" in fault(tmp_path / "a.npy").why
    (tmp_path / "b.npy").write_bytes(pickle.dumps(Marks(mark)))
    assert fault(tmp_path / "b.npy").what.startswith("it is no .npy file")
    assert not mark.exists()
    np.load(tmp_path / "a.npy", allow_pickle=True)
    assert mark.exists(), "loading it would have run it"


@pytest.mark.parametrize(
    ("array", "what", "fix"),
    [
        (np.zeros(4, dtype=np.float32), "its elements are float32", "astype"),
        (np.zeros(4, dtype=np.int64), "its elements are int64", "astype"),
        (np.zeros(4, dtype=np.bool_), "its elements are bool", "astype"),
        (np.zeros((2, 2), dtype=np.uint16), "it has the shape (2, 2)", "reshape"),
        (np.zeros((), dtype=np.uint16), "it has the shape ()", "reshape"),
        (np.zeros(4, dtype=[("a", "<u2")]), "its elements are void16", "astype"),
    ],
)
def test_another_array_is_refused(tmp_path: Path, array: Any, what: str, fix: str) -> None:
    np.save(tmp_path / "a.npy", array)
    found = fault(tmp_path / "a.npy")
    assert found.what.startswith(what)
    assert fix in found.fix


@pytest.mark.parametrize(
    "header", [b"{'descr': '<u2', 'fortran_order': False, 'shape': (-3,), }", b"{'descr': '<u2', 'shape': (3,)", b"[]"]
)
def test_a_header_that_makes_no_sense_is_refused(tmp_path: Path, header: bytes) -> None:
    length = len(header).to_bytes(2, "little")
    (tmp_path / "a.npy").write_bytes(b"\x93NUMPY\x01\x00" + length + header + bytes(6))
    fault(tmp_path / "a.npy")


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 127), st.integers(0, 255)), max_size=6), st.integers(0, 200))
def test_a_damaged_file_is_refused_or_read_as_before(changes: list[tuple[int, int]], size: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.npy")
        np.save(path, np.arange(36, dtype="<u2"))
        content = bytearray(path.read_bytes())
        for place, value in changes:
            content[place] = value
        path.write_bytes(content[:size])
        with contextlib.suppress(UserError):
            found = read_header(path)
            assert found.begin_bytes + found.count * found.kind.itemsize == size
            assert found.kind.kind == "u"


def test_brackets_without_end_are_refused(tmp_path: Path) -> None:
    header = b"[" * 9000
    (tmp_path / "a.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
    fault(tmp_path / "a.npy")


def test_a_pipe_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.npy")
    assert "named pipe" in fault(tmp_path / "a.npy").what
