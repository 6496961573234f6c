"""A value becomes TOML that a terminal shows as it is and that means the same."""

import tomli
from hypothesis import given
from hypothesis import strategies as st

from prime_train.toml.document import dotted, to_toml
from prime_train.views.text import sanitize

_TEXTS = st.text() | st.sampled_from(["\x7f", "a\x9b31m", "\u202egpj", "\x1b]0;x\x07", "\r", '"\\'])


@given(_TEXTS, st.lists(_TEXTS))
def test_a_value_and_a_key_come_back_and_control_no_terminal(key: str, values: list[str]) -> None:
    text = f"{dotted((key,))} = {to_toml(values)}"
    assert tomli.loads(text) == {key: values}
    assert sanitize(text) == text
