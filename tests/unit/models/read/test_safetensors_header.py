"""Headers of safetensors files: what they say, and what is no header."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_train.models.read.safetensors_header import LENGTH_BYTES, HeaderError, length, parse, shards, summarise
from tests.fakes.model_folder import header


def test_a_header_states_what_the_file_holds() -> None:
    start, size = header({"model.embed_tokens.weight": (10, 4), "lm_head.weight": (10, 4), "visual.a.weight": (3,)})
    assert length(start) == len(start) - LENGTH_BYTES
    found = parse(start[LENGTH_BYTES:])
    assert found.file_bytes == len(start) + size
    said = summarise([found])
    assert (said.stored, said.stored_bytes, said.embedding) == (83, 166, (10, 4))


def test_the_package_itself_reads_it_the_same() -> None:
    safetensors = pytest.importorskip("safetensors")
    start, size = header({"model.layers.3.mlp.up_proj.weight": (2, 3)}, "F32", 4)
    assert list(safetensors.deserialize(start + bytes(size))[0][1]["shape"]) == [2, 3]
    assert summarise([parse(start[LENGTH_BYTES:])]).layers == 4


@pytest.mark.parametrize("start", [b"", b"1234567", b"\xff" * 8, b"\0" * 8, b"PK\x03\x04abcd"])
def test_what_does_not_begin_as_one(start: bytes) -> None:
    with pytest.raises(HeaderError):
        length(start)


@pytest.mark.parametrize(
    "tensor",
    [
        {},
        [],
        {"dtype": "BF16", "shape": [2], "data_offsets": [0, 5]},
        {"dtype": "BF16", "shape": [-2], "data_offsets": [0, 4]},
        {"dtype": "BF16", "shape": [2.5], "data_offsets": [0, 5]},
        {"dtype": "X9", "shape": [2], "data_offsets": [0, 4]},
        {"dtype": "BF16", "shape": [2], "data_offsets": [0]},
        {"dtype": "BF16", "shape": "ab", "data_offsets": [0, 4]},
    ],
)
def test_a_tensor_that_is_none(tensor: object) -> None:
    with pytest.raises(HeaderError, match=r"a\.weight"):
        parse(json.dumps({"a.weight": tensor}).encode())


@given(st.binary(max_size=200) | st.text(max_size=80).map(str.encode))
def test_no_bytes_make_it_fall_over(content: bytes) -> None:
    for read in (length, parse):
        with suppress(HeaderError):  # any other exception is the fault that is looked for
            read(content)


@given(
    st.dictionaries(
        st.text(st.characters(codec="ascii"), min_size=1, max_size=8).filter(lambda name: name != "__metadata__"),
        st.lists(st.integers(0, 50), max_size=3).map(tuple),
        max_size=5,
    )
)
def test_what_is_written_is_what_is_read(tensors: dict[str, tuple[int, ...]]) -> None:
    start, size = header(tensors)
    found = parse(start[LENGTH_BYTES:])
    assert {name: shape for name, _, shape in found.tensors} == tensors
    assert found.file_bytes == len(start) + size


@pytest.mark.parametrize("index", [{}, {"weight_map": []}, {"weight_map": {"a": 1}}])
def test_an_index_that_names_nothing(index: dict[str, object]) -> None:
    with pytest.raises(HeaderError):
        shards(index)
