"""Changes of the text of a message count apart from changes of behaviour."""

from __future__ import annotations

import pytest

from tests.mutants import is_text_change


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        ('Close("failed", "it is lost")', 'Close("failed", "XXit is lostXX")', True),
        ('Close("failed", f"{count} left")', 'Close("failed", f"{count + 1} left")', True),
        ('Close("failed", "it is lost")', 'Close("XXfailedXX", "it is lost")', False),
        ('Close("failed", "it is lost")', 'Close("failed", None)', False),
        ('name == "frozen base"', 'name == "XXfrozen baseXX"', False),
        ("count + 1", "count - 1", False),
    ],
)
def test_a_change_of_a_message_alone_is_a_change_of_text(before: str, after: str, text: bool) -> None:
    assert is_text_change(f"def a():\n    return {before}", f"def b():\n    return {after}") is text
