"""The numbers in README.md, CHANGELOG.md and docs/ are those of the code and of bench/results."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def numbers() -> Any:
    sys.path.insert(0, str(DOCS))
    try:
        import numbers_of_pages

        return numbers_of_pages
    finally:
        sys.path.remove(str(DOCS))


def test_every_number_of_the_pages_is_right(numbers: Any) -> None:
    assert [f"{where}: {what}" for where, what in numbers.wrong()] == []


def test_a_count_that_is_old_is_corrected(numbers: Any) -> None:
    old = "Two rules with examples, 3 signatures, presets for two GPUs, configs of nine generations, 1 tested models"
    right = numbers.corrected(old)
    assert numbers.corrected(right) == right
    assert "presets for nine GPUs" in right
    assert "configs of three generations" in right
    assert "1 tested models" not in right
    assert " 3 signatures" not in right


def test_rows_of_a_file_are_counted(numbers: Any) -> None:
    path = "bench/anchors/memory_rows.csv"
    rows = len((DOCS.parent / path).read_text(encoding="utf-8").splitlines()) - 1
    assert numbers.corrected(f"All 3 rows of `{path}`") == f"All {rows} rows of `{path}`"


@pytest.mark.parametrize("text", ["It has 12 rules.", "with 40 shipped presets", "three new environments"])
def test_a_count_without_a_source_is_reported(numbers: Any, text: str) -> None:
    assert len(list(numbers.uncounted(text))) == 1


def test_a_figure_that_differs_from_its_result_is_reported(numbers: Any) -> None:
    table = numbers.TABLES[0]
    page = (DOCS.parent / table.page).read_text(encoding="utf-8")
    line = next(line for line in page.splitlines() if line.startswith("| all |"))
    cells = line.split("|")
    changed = page.replace(line, "|".join([*cells[:3], " 99.9 % ", *cells[4:]]))
    assert [what for _, what in numbers.wrong_figures(table, page)] == []
    assert any("99.9 %" in what for _, what in numbers.wrong_figures(table, changed))
    assert list(numbers.wrong_figures(table, "no table"))
