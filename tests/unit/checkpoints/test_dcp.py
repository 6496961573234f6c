"""`.metadata` is read without torch, and none of its code runs."""

from __future__ import annotations

import contextlib
import os
import pickle
from collections.abc import Callable
from enum import Enum
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.checkpoint.metadata import _MEM_FORMAT_ENCODING
from torch.distributed.checkpoint.state_dict_saver import save

from prime_train.checkpoints import dcp
from prime_train.checkpoints.step_folders import problem
from prime_train.programs.prime_rl.run_directory import folder_layout


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint that torch itself has written."""
    folder = tmp_path_factory.mktemp("saved") / "step_7" / "trainer"
    state = {"w": torch.arange(100.0), "deep": {"b": torch.ones(3, 3)}, "step": 7}
    save(state, checkpoint_id=folder, no_dist=True)
    return folder


def test_what_torch_has_written_is_whole(saved: Path) -> None:
    stored, shapes = dcp.entries((saved / dcp.METADATA).read_bytes())
    assert {entry.name for entry in stored} == set(shapes) == {"w", "deep.b", "step"}
    assert dcp.missing(saved) == ""


def test_a_file_that_is_short_or_gone_is_named(saved: Path, tmp_path: Path) -> None:
    copy = tmp_path / "step_7" / "trainer"
    copy.mkdir(parents=True)
    for path in saved.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    (file,) = (path for path in copy.iterdir() if path.name != dcp.METADATA)
    os.truncate(file, file.stat().st_size // 2)
    assert file.name in dcp.missing(copy)
    assert "of at least" in problem([copy.parent], folder_layout(orchestrated=False))
    file.unlink()
    assert dcp.missing(copy) == f"{file.name} is missing"


@pytest.mark.parametrize("text", [b"", b"metadata", pickle.dumps([1, 2]), pickle.dumps({"storage_data": 3})])
def test_what_torch_has_not_written_is_reported(tmp_path: Path, text: bytes) -> None:
    (tmp_path / dcp.METADATA).write_bytes(text)
    assert "not as torch writes it" in dcp.missing(tmp_path)


class _Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, ("run-by-a-pickle",)


def test_nothing_in_it_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / dcp.METADATA).write_bytes(pickle.dumps(_Evil()))
    assert dcp.missing(tmp_path)
    assert not (tmp_path / "run-by-a-pickle").exists()


@pytest.mark.parametrize("file", ["../../../etc/passwd", "/etc/passwd"])
def test_a_file_outside_the_folder_is_not_looked_at(saved: Path, tmp_path: Path, file: str) -> None:
    text = (saved / dcp.METADATA).read_bytes()
    (name,) = {entry.file for entry in dcp.entries(text)[0]}
    written, wanted = (b"X" + len(one).to_bytes(4, "little") + one for one in (name.encode(), file.encode()))
    short = b"\x8c" + bytes([len(name)]) + name.encode()  # SHORT_BINUNICODE, else BINUNICODE
    assert short in text or written in text
    (tmp_path / dcp.METADATA).write_bytes(text.replace(short, wanted).replace(written, wanted))
    assert f"it names the file '{file}'" in dcp.missing(tmp_path)


@pytest.mark.parametrize("text", [b"\x8e" + b"\xff" * 8, b"r\xff\xff\xff\x7f."], ids=["bytes", "memo"])
def test_a_pickle_that_names_any_size_is_reported(tmp_path: Path, text: bytes) -> None:
    (tmp_path / dcp.METADATA).write_bytes(text)
    assert "not as torch writes it" in dcp.missing(tmp_path)


def test_metadata_that_is_no_regular_file_is_reported(tmp_path: Path) -> None:
    step = tmp_path / "step_7" / "trainer"
    step.mkdir(parents=True)
    (tmp_path / "elsewhere").write_bytes(b"x")
    (step / dcp.METADATA).symlink_to(tmp_path / "elsewhere")
    assert problem([step.parent], folder_layout(orchestrated=False)) == ".metadata is unreadable: it is a symbolic link"


def test_the_stand_ins_are_those_of_the_classes_that_dcp_writes(saved: Path) -> None:
    root = dcp.parse((saved / dcp.METADATA).read_bytes())
    assert root.qualified == "torch.distributed.checkpoint.metadata.Metadata"
    assert set(root.state["state_dict_metadata"]) == {"w", "deep.b", "step"}


def test_an_enum_is_read_as_each_python_pickles_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.11.0 to 3.11.3 writes getattr(class, name), the others class(value)."""
    ways: dict[str, Callable[[Enum], tuple[object, tuple[object, ...]]]] = {
        "getattr": lambda member: (getattr, (type(member), member.name)),
        "value": lambda member: (type(member), (member.value,)),
    }
    for way, reduce in ways.items():
        monkeypatch.setattr(_MEM_FORMAT_ENCODING, "__reduce_ex__", lambda member, _protocol, to=reduce: to(member))
        save({"w": torch.arange(100.0)}, checkpoint_id=tmp_path / way, no_dist=True)
        written = (tmp_path / way / dcp.METADATA).read_bytes()
        assert (b"getattr" in written) == (way == "getattr")
        assert set(dcp.parse(written).state["state_dict_metadata"]) == {"w"}
        assert dcp.missing(tmp_path / way) == ""


@pytest.mark.parametrize(
    "harm",
    [
        b"cbuiltins\ngetattr\n(S'os'\nS'system'\ntR.",
        b"cbuiltins\ngetattr\n(ctorch.distributed.checkpoint.metadata\nMetadata\nS'__init__'\ntR.",
        b"cbuiltins\ngetattr\n(ctorch.distributed.checkpoint.metadata\n_MEM_FORMAT_ENCODING\ntR.",
        b"cbuiltins\ngetattr\n(cbuiltins\ngetattr\n(ctorch.distributed.checkpoint.metadata\n_MEM_FORMAT_ENCODING\n"
        b"S'__init__'\ntRS'__globals__'\ntR.",
    ],
)
def test_getattr_is_refused_for_anything_but_a_member_of_the_enum(harm: bytes) -> None:
    with pytest.raises(dcp.UnlikeError, match="for another thing than a member of"):
        dcp.parse(harm)


@pytest.mark.parametrize(
    "harm",
    [
        b"cos\nsystem\n(S'true'\ntR.",
        b"cbuiltins\neval\n.",
        b"ctorch.distributed.checkpoint.metadata\nos.system\n.",
        b"ctorch\nload\n.",
        b"\x80\x04\x8c\x05torch\x94\x8c\x10serialization.os\x94\x93.",
    ],
)
def test_every_other_name_is_refused(harm: bytes) -> None:
    with pytest.raises(dcp.UnlikeError, match="which no checkpoint of tensors needs"):
        dcp.parse(harm)


@given(st.integers(0, 10**6), st.binary(min_size=1, max_size=8))
def test_a_damaged_pickle_is_refused_or_read(saved: Path, position: int, change: bytes) -> None:
    """Never another exception."""
    content = (saved / dcp.METADATA).read_bytes()
    position %= len(content)
    with contextlib.suppress(dcp.UnlikeError):
        dcp.parse(content[:position] + change + content[position + len(change) :])
