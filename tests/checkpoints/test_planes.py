"""A packed piece comes back as it was, and a damaged one is reported, for any bytes."""

from __future__ import annotations

import random
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_train.checkpoints import planes

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
def test_what_ends_early_is_told(piece: bytes, cut: int) -> None:
    packed = planes.pack(piece)
    with pytest.raises(ValueError, match=r"\w"):
        planes.unpack(packed[: cut % len(packed)])


@given(piece=pieces, added=st.binary(min_size=1, max_size=9))
def test_what_goes_on_is_told(piece: bytes, added: bytes) -> None:
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
