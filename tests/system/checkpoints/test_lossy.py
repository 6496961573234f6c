"""Moments become the bf16 numbers that torch makes of them, however a file is cut; nothing else changes."""

from __future__ import annotations

import io
import os
import shutil
import tempfile
import zipfile
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from prime_train.checkpoints import dcp, layout
from prime_train.checkpoints.packing import archive, lossy, packing_plan
from prime_train.checkpoints.packing import lossy as moments
from prime_train.checkpoints.packing.lossy import Edits
from prime_train.checkpoints.packing.packing_plan import Sizes
from prime_train.core.errors import UserError
from tests.system.checkpoints.test_archive import content, doing, size_bytes, survives

SMALL = Sizes(segment_bytes=3001, piece_bytes=1000, pieces_together=2, smallest_bytes=1)
ODD = ("norm.weight", "embedding.weight")
pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


def tensors(moments_dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    """A state as the trainer saves it: weights, moments, a counter, and text before them so that nothing is aligned."""
    drawn = torch.Generator().manual_seed(3)
    shapes = dict(zip(ODD, ((7,), (64, 9)), strict=True))
    weights = {name: torch.randn(shape, generator=drawn) for name, shape in shapes.items()}
    state = {
        name: {
            "step": torch.tensor(3.0),
            "exp_avg": (torch.randn(shape, generator=drawn) * 1e-3).to(moments_dtype),
            "exp_avg_sq": (torch.rand(shape, generator=drawn) * 1e-6).to(moments_dtype),
        }
        for name, shape in shapes.items()
    }
    return {"reached": "abc", "model": weights, "optimizer": state}


def write(folder: Path, state: dict[str, Any]) -> Path:
    """A complete checkpoint of step 5."""
    save(state, storage_writer=FileSystemWriter(folder, thread_count=1, sync_files=False), no_dist=True)
    layout.write_manifest(folder, 5)
    return folder


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("saved") / "step_5", tensors())


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "step_5"))


@pytest.fixture(scope="module")
def becomes(saved: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files after all is done, by the shortest way."""
    copy = Path(shutil.copytree(saved, tmp_path_factory.mktemp("becomes") / "step_5"))
    archive.compress_lossy(copy, SMALL)
    archive.restore(copy)
    return content(copy)


bits = st.integers(0, 2**32 - 1) | st.sampled_from([0x7F7FFFFF, 0x7F800000, 0xFF800000, 0x7F800001, 0xFFFFFFFF, 0x8000])


@given(st.lists(bits, min_size=1, max_size=50))
def test_each_number_becomes_what_torch_makes_of_it_and_stays_so(values: list[int]) -> None:
    numbers = b"".join(value.to_bytes(4, "little") for value in values)
    found = torch.frombuffer(bytearray(lossy.round_to_bf16(numbers)), dtype=torch.float32)
    expected = torch.frombuffer(bytearray(numbers), dtype=torch.float32).bfloat16().float()
    assert torch.equal(found.nan_to_num(1.5, 7, 8), expected.nan_to_num(1.5, 7, 8))
    assert torch.equal(found.isnan(), expected.isnan())
    assert lossy.round_to_bf16(lossy.round_to_bf16(numbers)) == lossy.round_to_bf16(numbers)


@given(st.binary(min_size=60, max_size=60), st.integers(0, 60), st.integers(0, 60))
def test_what_is_read_of_a_file_does_not_depend_on_where_it_is_cut(held: bytes, one: int, other: int) -> None:
    edits = Edits(((3, 15), (17, 25), (30, 50)), ((0, b"abc"), (26, b"WXYZ"), (55, b"!!!")))
    whole = edits.apply(held, 0)
    assert whole[15:17] == held[15:17]
    assert whole[26:30] == b"WXYZ"
    assert whole[30:50] == lossy.round_to_bf16(held[30:50])
    start, stop = sorted((one, other))
    with tempfile.TemporaryFile(buffering=0) as file:
        file.write(held)
        assert lossy.read(file.fileno(), start, stop, edits) == whole[start:stop]
        border = edits.number_start(one)
        os.truncate(file.fileno(), border)  # what was packed is cut off: the head is read without it
        assert lossy.read(file.fileno(), 0, border, edits) == whole[:border]
    assert edits.apply(whole, 0) == whole


def test_weights_stay_bit_equal_and_moments_are_those_of_torch(folder: Path) -> None:
    before = packing_plan.measure(folder)
    archive.compress_lossy(folder, SMALL)
    assert packing_plan.is_lossy(folder)
    assert packing_plan.is_packed(folder)
    assert packing_plan.measure(folder).stored_bytes == size_bytes(folder) < before.size_bytes
    assert layout.inspect(folder, hashes=True).complete
    archive.restore(folder)
    assert packing_plan.is_lossy(folder)
    assert layout.inspect(folder, hashes=True).complete

    expected, found = tensors(), tensors()
    for name in ODD:
        found["model"][name].zero_()
        for moment in ("exp_avg", "exp_avg_sq"):
            found["optimizer"][name][moment].zero_()
            expected["optimizer"][name][moment] = expected["optimizer"][name][moment].bfloat16().float()
    load(found, storage_reader=FileSystemReader(folder), no_dist=True)
    for name in ODD:
        assert torch.equal(found["model"][name], expected["model"][name])
        for key, value in expected["optimizer"][name].items():
            assert torch.equal(found["optimizer"][name][key], value)


def test_the_checksums_inside_the_file_hold(folder: Path) -> None:
    before = content(folder)
    archive.compress_lossy(folder, SMALL)
    archive.restore(folder)
    whole = (folder / "__0_0.distcp").read_bytes()
    found = list(moments.find_moments((folder / dcp.METADATA).read_bytes()))
    assert len(found) == 4
    for one in found:
        with zipfile.ZipFile(io.BytesIO(whole[one.offset : one.offset + one.length])) as tensor:
            assert tensor.testzip() is None
    assert content(folder).keys() == before.keys()
    assert whole != before["__0_0.distcp"]


def test_it_is_done_once(folder: Path) -> None:
    reads: list[int] = []
    assert packing_plan.lossy_work_bytes(folder, SMALL) == sum(len(file) for file in content(folder).values())
    archive.compress_lossy(folder, SMALL, reads.append)
    assert sum(reads) == sum(entry.size_bytes for entry in layout.entries(folder))
    packed = content(folder)
    assert packing_plan.lossy_work_bytes(folder, SMALL) == 0
    archive.compress_lossy(folder, SMALL)
    assert content(folder) == packed


def test_one_that_is_packed_without_loss_is_restored_first(folder: Path, becomes: dict[str, bytes]) -> None:
    archive.compress(folder, SMALL)
    reads: list[int] = []
    expected_bytes = packing_plan.lossy_work_bytes(folder, SMALL)
    archive.compress_lossy(folder, SMALL, reads.append)
    assert sum(reads) == expected_bytes
    archive.restore(folder)
    assert content(folder) == becomes


def test_what_it_will_save_is_reported_without_doing_it(folder: Path) -> None:
    before = content(folder)
    planned = packing_plan.estimate(folder, SMALL, packing_plan.find_edits(folder, SMALL))
    assert content(folder) == before
    assert planned.stored_bytes < packing_plan.estimate(folder, SMALL).stored_bytes


@pytest.mark.parametrize("spoil", ["no .metadata", "not a pickle", "no zip"])
def test_a_checkpoint_that_is_laid_out_otherwise_is_left_as_it_is(folder: Path, spoil: str) -> None:
    if spoil == "no .metadata":
        (folder / dcp.METADATA).unlink()
    elif spoil == "not a pickle":
        (folder / dcp.METADATA).write_bytes(b"\x80\x04garbage")
    else:
        (folder / "__0_0.distcp").write_bytes(bytes(len((folder / "__0_0.distcp").read_bytes())))
    layout.write_manifest(folder, 5)
    before = content(folder)
    with pytest.raises(UserError, match="its moments cannot be found"):
        archive.compress_lossy(folder, SMALL)
    assert content(folder) == before


def test_moments_that_are_in_bf16_are_reported(tmp_path: Path) -> None:
    folder = write(tmp_path / "step_5", tensors(torch.bfloat16))
    with pytest.raises(UserError, match="it holds no moments in fp32"):
        archive.compress_lossy(folder, SMALL)


def test_nothing_that_a_pickle_names_is_run(tmp_path: Path) -> None:
    made = tmp_path / "made"
    evil = b"cos\nsystem\n(S'touch %s'\ntR." % str(made).encode()
    with pytest.raises(dcp.UnlikeError):
        list(moments.find_moments(evil))
    assert not made.exists()


def test_a_damaged_file_is_not_rounded(folder: Path) -> None:
    damaged = bytearray((folder / "__0_0.distcp").read_bytes())
    damaged[40] ^= 1  # in the text at its beginning
    (folder / "__0_0.distcp").write_bytes(damaged)
    with pytest.raises(archive.DamagedError, match=r"__0_0.distcp does not match its SHA-256"):
        archive.compress_lossy(folder, SMALL)
    assert (folder / "__0_0.distcp").read_bytes() == damaged


actions = st.tuples(
    st.sampled_from(["lossy", "compress", "restore"]),
    st.none() | st.integers(0, 40),
    st.sampled_from([1001, 3001, 10**6]),
)


@settings(deadline=None, max_examples=30)
@given(history=st.lists(actions, max_size=5))
def test_no_history_of_kills_leaves_anything_between(
    saved: Path, becomes: dict[str, bytes], history: list[tuple[str, int | None, int]]
) -> None:
    with tempfile.TemporaryDirectory() as root:
        folder = Path(shutil.copytree(saved, Path(root) / "step_5"))
        for verb, effects, segment_bytes in history:
            sizes = Sizes(segment_bytes, 500, 2, 1)
            work = partial(archive.compress_lossy, folder, sizes) if verb == "lossy" else doing(verb, folder, sizes)
            survives(work, folder, effects)
            assert layout.inspect(folder, hashes=True).problem == ""
        chosen = packing_plan.is_lossy(folder)
        archive.restore(folder)
        assert content(folder) == (becomes if chosen else content(saved))
        archive.compress_lossy(folder, SMALL)
        archive.restore(folder)
        assert content(folder) == becomes
