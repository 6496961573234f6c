"""A packed piece comes back as it was, and a damaged one is reported, for any bytes."""

from __future__ import annotations

import random
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_train.checkpoints.packing import planes

FEW = st.integers(0, 3).map(lambda value: bytes([value]))
pieces = st.binary(max_size=5000) | st.lists(FEW, max_size=5000).map(b"".join)


def numbers(kind: str, count: int = 50_000) -> bytes:
    """Numbers of a Gaussian as a tensor holds them: noise in the low bytes, few exponents. "H" is bf16."""
    draw = random.Random(1)
    values = [draw.gauss(0, 0.02) for _ in range(count)]
    if kind == "H":
        return b"".join(struct.pack("<f", value)[2:] for value in values)
    return struct.pack(f"<{count}{kind}", *values)


@given(piece=pieces)
def test_what_is_packed_comes_back(piece: bytes) -> None:
    packed = planes.pack(piece)
    assert planes.unpack(packed) == piece
    assert len(packed) <= len(piece) + 5 + 4 * 8


@given(piece=pieces, cut=st.integers(0, 10**6))
def test_what_ends_early_is_reported(piece: bytes, cut: int) -> None:
    packed = planes.pack(piece)
    with pytest.raises(ValueError, match=r"\w"):
        planes.unpack(packed[: cut % len(packed)])


@given(piece=pieces, added=st.binary(min_size=1, max_size=9))
def test_what_goes_on_is_reported(piece: bytes, added: bytes) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        planes.unpack(planes.pack(piece) + added)


@given(packed=st.binary(max_size=200))
def test_what_was_never_packed_is_an_error_or_bytes(packed: bytes) -> None:
    try:
        assert isinstance(planes.unpack(packed), bytearray)
    except ValueError as error:
        assert str(error)  # noqa: PT017 - either end is right, any other exception is not


@pytest.mark.parametrize(("kind", "saved"), [("f", 0.14), ("H", 0.28), ("d", 0.07)])
@pytest.mark.parametrize("shift", [0, 1, 3])
def test_exponents_are_found_at_any_width_and_place(kind: str, saved: float, shift: int) -> None:
    piece = b"\x07" * shift + numbers(kind)
    assert len(planes.pack(piece)) < (1 - saved) * len(piece)


def test_noise_grows_by_its_head_alone() -> None:
    piece = random.Random(1).randbytes(100_000)
    assert len(planes.pack(piece)) <= len(piece) + 5 + 4 * 8


def test_a_head_that_asks_for_too_much_memory_is_refused() -> None:
    with pytest.raises(ValueError, match="larger than the limit"):
        planes.unpack(struct.pack("<BI", 1, 2**31) + bytes(8))


def test_a_plane_that_packs_to_its_own_length_is_stored_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the lengths are equal, a reader takes the stored bytes for the plane."""
    monkeypatch.setattr(planes, "_compress", lambda plane: bytes(len(plane)))
    piece = bytes(range(1, 101))
    found = planes.pack_planes(piece)
    assert planes.unpack(b"".join(found.parts)) == piece
    assert found.is_in(b"".join(found.parts), 0)


def test_a_piece_is_found_at_its_place_in_a_block_and_nowhere_else() -> None:
    found, other = planes.pack_planes(numbers("f", 1000)), planes.pack_planes(numbers("f", 1000)[::-1])
    block = b"head" + b"".join(found.parts) + b"tail"
    assert found.is_in(block, 4)
    assert not other.is_in(block, 4)
    assert found.stored_bytes == len(block) - 8


@pytest.mark.parametrize("more", [-1, 1])
def test_a_plane_of_another_length_than_its_head_names_is_refused(more: int) -> None:
    packed = planes.pack(bytes(1000))
    width, size = struct.unpack_from("<BI", packed)
    with pytest.raises(ValueError, match="a plane has"):
        planes.unpack(struct.pack("<BI", width, size + more * width) + packed[5:])


@pytest.mark.parametrize(("size", "why"), [(2**26, "ends early"), (2**26 + 1, "larger than the limit")])
def test_the_largest_piece_is_allowed_and_one_byte_more_is_not(size: int, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        planes.unpack(struct.pack("<BI", 1, size))
