from hypothesis import given
from hypothesis import strategies as st

from prime_train.views.text import sanitize


def test_an_escape_sequence_does_not_reach_the_terminal() -> None:
    assert sanitize("a\x1b[2Jb\x07\r\n\tc") == "a\ufffd[2Jb\ufffd\ufffd\n\tc"


@given(st.text())
def test_the_length_stays_and_nothing_is_left_to_replace(text: str) -> None:
    assert len(sanitize(text)) == len(text)
    assert sanitize(sanitize(text)) == sanitize(text)
