"""The text of the project is plain English: no words that hide who does what."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.prose import ROOT, Text, count_of, count_words, files, found, found_in_name, names, texts

MOST_PER_1000 = 0.2  # may only fall
# Words of chains of nouns and pronouns, where a verb or a name is plainer: (of, its) per 1,000 words. They may only
# fall; 25 and 5 are the aim.
MOST_OF_AND_ITS = {"src": (38.2, 11.0), "docs": (31.5, 9.5)}


@pytest.mark.parametrize("place", ["src", "docs", "README.md", "CONTRIBUTING.md"])
def test_the_text_of_the_project_is_plain(place: str) -> None:
    every = [text for file in files(ROOT / place) for text in texts(file)]
    places = [f"{text.path.relative_to(ROOT)}:{text.line}: {banned}" for text in every for banned in found(text)]
    words = sum(count_words(text) for text in every)
    assert words > 100, place
    assert 1000 * len(places) / words <= MOST_PER_1000, "\n".join(places)


@pytest.mark.parametrize("place", ["src", "docs"])
def test_chains_of_nouns_become_fewer(place: str) -> None:
    every = [text for file in files(ROOT / place) for text in texts(file)]
    words = sum(count_words(text) for text in every)
    for word, most in zip(("of", "its"), MOST_OF_AND_ITS[place], strict=True):
        assert 1000 * sum(count_of(text, word) for text in every) / words <= most, word


def test_names_of_tests_are_plain() -> None:
    every = [name for file in files(ROOT / "tests") if file.suffix == ".py" for name in names(file)]
    assert len(every) > 1000
    places = [f"{name.path.relative_to(ROOT)}:{name.line}: {name.words}" for name in every if found_in_name(name)]
    assert not places, "\n".join(places)


def test_comments_docstrings_and_messages_are_read(tmp_path: Path) -> None:
    file = tmp_path / "module.py"
    source = (
        '"""It says what it reads."""\n\n# Of the parts\n# nobody knows.\nX = f"whatever {1} was told"\nKEY = "say"\n'
    )
    file.write_text(source, encoding="utf-8")
    words = sorted(banned for text in texts(file) for banned in found(text))
    assert words == ["Of", "nobody", "says", "told", "whatever"]


def test_code_and_the_middle_of_a_sentence_do_not_count() -> None:
    for words in ("`said` is a key", "a list of parts: of both kinds", "the size of it. Offers follow"):
        assert found(Text(Path("x.md"), 1, words)) == [], words
