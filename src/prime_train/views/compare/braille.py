"""Draws lines with characters: braille dots in colour, or a letter for each line where there is no colour. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby, pairwise
from string import ascii_uppercase
from typing import NamedTuple

from prime_train.core.units import format_count
from prime_train.views.text import Paint

STYLES = ("cyan", "yellow", "green", "red", "bold", "dim")
LETTERS = ascii_uppercase
_BLANK = 0x2800
# The bits for the 2 x 4 dots in a cell. Source: Unicode, chapter 21.1, Braille Patterns.
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
_MOST_COUNTED = 1e15  # "1000.0 T"
_SEVERAL = "*"  # two lines meet in the cell


_Cell = tuple[int, frozenset[int]]  # its dots, and the numbers for the lines that have some


class Drawn(NamedTuple):
    """A line to draw: its places with rising x, and the number for its colour or letter."""

    points: Sequence[tuple[float, float]]
    number: int


def plot(lines: Sequence[Drawn], columns: int, rows: int, paint: Paint | None) -> list[str]:
    """The lines in a frame with so many columns, the scales included. `paint`: for braille in colour; None: letters."""
    points = [point for line in lines for point in line.points]
    left, right = min(x for x, _ in points), max(x for x, _ in points)
    low, high = min(y for _, y in points), max(y for _, y in points)
    labels = (_shown(high), _shown(low))
    margin = max(map(len, labels))
    width = max(8, columns - margin - 2)
    across, down = (2, 4) if paint else (1, 1)
    cells: dict[tuple[int, int], _Cell] = {}
    for line in lines:
        for x, y in _dots(line.points, (left, right, low, high), width * across, rows * down):
            dots, numbers = cells.get((x // across, y // down), (0, frozenset()))
            cells[x // across, y // down] = dots | _DOTS[y % down][x % across], numbers | {line.number}
    drawn = []
    for row in range(rows):
        label = labels[0] if row == 0 else labels[1] if row == rows - 1 else ""
        text = _row_text([cells.get((column, row)) for column in range(width)], paint)
        drawn.append(f"{label:>{margin}} |{text}".rstrip())
    start, end = _shown(left), _shown(right)
    return [*drawn, f"{'':>{margin}} +{'-' * width}", f"{'':>{margin}}  {start}{end:>{max(1, width - len(start))}}"]


def _row_text(cells: Sequence[_Cell | None], paint: Paint | None) -> str:
    if paint is None:
        return "".join(" " if found is None else _letter(found[1]) for found in cells)
    text = ""
    for number, run in groupby(cells, key=lambda found: -1 if found is None else max(found[1])):
        dots = "".join(" " if found is None else chr(_BLANK + found[0]) for found in run)
        text += dots if number < 0 else paint(dots, STYLES[number % len(STYLES)])
    return text


def _letter(numbers: frozenset[int]) -> str:
    return _SEVERAL if len(numbers) > 1 else LETTERS[max(numbers) % len(LETTERS)]


def _dots(
    points: Sequence[tuple[float, float]], frame: tuple[float, float, float, float], width: int, height: int
) -> set[tuple[int, int]]:
    """The dots for a line, also between two neighbouring points. Row 0 is at the top."""
    left, right, low, high = frame
    placed = [
        (_scale(x, left, right, width), height - 1 - _scale(y, low, high, height))
        for x, y in points
        if math.isfinite(x) and math.isfinite(y)
    ]
    dots = set(placed)
    for (x, y), (next_x, next_y) in pairwise(placed):
        longest = max(abs(next_x - x), abs(next_y - y))
        for part in range(1, longest):
            dots.add((x + round((next_x - x) * part / longest), y + round((next_y - y) * part / longest)))
    return dots


def _scale(value: float, low: float, high: float, size: int) -> int:
    return round((value - low) / (high - low) * (size - 1)) if high > low else 0


def _shown(value: float) -> str:
    return format_count(value) if 10_000 <= abs(value) < _MOST_COUNTED else f"{value:.4g}"
