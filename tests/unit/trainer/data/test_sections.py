from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_train.core.errors import UserError
from prime_train.trainer.cache import Origin
from prime_train.trainer.data.sources import SECTION_CHARACTERS, Documents, locate, open_documents
from tests.unit.trainer.data.small_runs import files, write_lines, write_texts

LINES = "".join(f"line {number} of the play\n" for number in range(20_000))


def origin_of(*texts: str) -> Origin[Documents]:
    documents = Documents(len(texts), lambda indices: [texts[index] for index in indices])
    return Origin("input.txt", "", "", sum(map(len, texts)), lambda: documents)


def parted(text: str, held_out_ratio: float = 0.1) -> tuple[list[str], list[str]]:
    """The sections to train on, and those held out."""
    documents = open_documents(origin_of(text), held_out_ratio)
    found = documents.texts(range(documents.count))
    return found[: -documents.held_out], found[-documents.held_out :]


def test_the_end_of_a_single_document_is_held_out() -> None:
    train, held_out = parted(LINES)
    assert "".join(train + held_out) == LINES
    assert sum(map(len, held_out)) == pytest.approx(0.1 * len(LINES), abs=30)
    assert len(train) == 7
    assert max(map(len, train + held_out)) <= SECTION_CHARACTERS
    assert all(section.startswith("line ") and section.endswith("\n") for section in train + held_out)
    assert parted(LINES) == (train, held_out)


def test_one_long_line_is_parted_at_spaces() -> None:
    text = "A title\n" + LINES.replace("\n", " ")
    train, held_out = parted(text)
    assert "".join(train + held_out) == text
    assert sum(map(len, held_out)) == pytest.approx(0.1 * len(text), abs=30)
    assert all(section.endswith((" ", "\n")) for section in train + held_out)


@given(text=st.text("ab \né", max_size=200), ratio=st.floats(0.001, 0.499))
def test_both_parts_have_words_or_the_text_is_refused(text: str, ratio: float) -> None:
    origin = origin_of(text)
    try:
        documents = open_documents(origin, ratio)
    except UserError:
        refused = True
    else:
        refused = False
    assert refused == (0 < len(text.split()) < 4)
    if refused:
        return
    if documents.held_out:
        train, held_out = parted(text, ratio)
        assert "".join(train + held_out) == text
        assert all(len("".join(part).split()) > 1 for part in (train, held_out))
    else:
        assert not text.strip()


def test_a_word_longer_than_a_section_is_cut() -> None:
    text = "a b " + "c" * (2 * SECTION_CHARACTERS) + " d e\nf g"
    train, held_out = parted(text, 0.001)
    assert "".join(train + held_out) == text
    assert max(map(len, train)) == SECTION_CHARACTERS


def test_several_documents_are_left_as_they_are(tmp_path: Path) -> None:
    origin = locate(files(write_texts(tmp_path, 3)))
    documents = open_documents(origin, 0.1)
    assert (documents.count, documents.held_out) == (3, 0)


def test_a_table_of_one_row_is_a_single_document_too(tmp_path: Path) -> None:
    origin = locate(files(write_lines(tmp_path / "one.jsonl", [{"text": LINES}])))
    documents = open_documents(origin, 0.1)
    assert documents.held_out > 0
    assert "".join(documents.texts(range(documents.count))) == LINES
