"""Files that are written piece by piece are what safetensors reads, and none is larger than asked."""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor

from prime_train.trainer.saves.tensor_files import FileTensor, plan_files, write_files

shapes = st.lists(st.lists(st.integers(1, 5), max_size=3).map(tuple), min_size=1, max_size=8)
dtypes = st.sampled_from([torch.float32, torch.bfloat16, torch.int64])


def described(tensors: dict[str, Tensor]) -> list[FileTensor]:
    return [FileTensor(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()]


def rows(tensors: dict[str, Tensor]) -> Iterator[Tensor]:
    for tensor in tensors.values():
        yield from torch.split(tensor, 2) if tensor.ndim else [tensor]


@given(shapes=shapes, dtype=dtypes, largest_bytes=st.integers(1, 2000))
def test_what_is_written_loads(shapes: list[tuple[int, ...]], dtype: torch.dtype, largest_bytes: int) -> None:
    tensors = {f"t{number}": torch.randn(shape).to(dtype) for number, shape in enumerate(shapes)}
    files = plan_files(described(tensors), largest_bytes)
    assert [tensor for file in files for tensor in file] == described(tensors)
    assert all(sum(tensor.size_bytes for tensor in file) <= largest_bytes or len(file) == 1 for file in files)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_files(folder, "model", files, rows(tensors))
        paths = sorted(folder.glob("*.safetensors"))
        assert len(paths) == len(files)
        loaded = {name: tensor for path in paths for name, tensor in load_file(path).items()}
        assert loaded.keys() == tensors.keys()
        assert all(torch.equal(loaded[name], tensor) for name, tensor in tensors.items())
        if len(files) > 1:
            index = json.loads((folder / "model.safetensors.index.json").read_text())
            assert set(index["weight_map"]) == set(tensors)
            assert {folder / file for file in index["weight_map"].values()} == set(paths)
            assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in tensors.values())


def test_pieces_that_do_not_fit_the_shapes_are_refused(tmp_path: Path) -> None:
    tensors = {"a": torch.zeros(4, 2), "b": torch.zeros(3)}
    files = plan_files(described(tensors), 32)
    for number, pieces in enumerate(([tensors["a"]], [*rows(tensors), torch.zeros(1)], [torch.zeros(11)])):
        folder = tmp_path / str(number)
        folder.mkdir()
        with pytest.raises(ValueError, match=r"numbers than the shapes|crosses the end"):
            write_files(folder, "model", files, iter(pieces))
