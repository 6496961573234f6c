"""What follows `run --` is taken as it is, if a config can hold it."""

import pytest

from prime_train.cli.app import _mark_words
from prime_train.cli.terminal.options import COMMAND_WORD
from prime_train.core.errors import UserError


def test_each_word_is_marked() -> None:
    words = ["python", "--lr", "1e-3", "", "é", "a b"]
    assert _mark_words(["run", "--", *words], 1) == ["run", *(f"{COMMAND_WORD}={word}" for word in words)]


@pytest.mark.parametrize("words", [[], ["train", "data-\udcff"]])
def test_a_command_that_no_config_can_hold_is_refused(words: list[str]) -> None:
    with pytest.raises(UserError):
        _mark_words(["run", "--", *words], 1)
