from __future__ import annotations

import pytest

from prime_train.core.units import counted, format_bytes, format_count, format_seconds


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [(0, "0 B"), (512, "512 B"), (1024, "1.0 KiB"), (1536 * 2**20, "1.5 GiB"), (2**50, "1024.0 TiB")],
)
def test_format_bytes(size_bytes: float, text: str) -> None:
    assert format_bytes(size_bytes) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0"), (950, "950"), (9999, "9999"), (12_500, "12.5 k"), (4_300_000, "4.3 M"), (7.6e9, "7.6 B"), (2.5, "2.5")],
)
def test_format_count(count: float, text: str) -> None:
    assert format_count(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.0 s"),
        (0.0123, "12 ms"),
        (0.096, "0.1 s"),
        (0.84, "0.8 s"),
        (9.99, "10.0 s"),
        (45, "45 s"),
        (59.6, "1 min 00 s"),
        (185, "3 min 05 s"),
        (7800, "2 h 10 min"),
        (356_400, "4 d 3 h"),
        (float("inf"), "without end"),
    ],
)
def test_format_seconds(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


@pytest.mark.parametrize(("number", "text"), [(0, "0 files"), (1, "1 file"), (2, "2 files"), (12_400, "12,400 files")])
def test_counted(number: int, text: str) -> None:
    assert counted(number, "file") == text
