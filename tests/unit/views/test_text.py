import json

from hypothesis import given
from hypothesis import strategies as st

from prime_train.views.text import encode_json, inert, sanitize


def test_an_escape_sequence_does_not_reach_the_terminal() -> None:
    assert sanitize("a\x1b[2Jb\x07\r\n\tc") == "a\ufffd[2Jb\ufffd\ufffd\n\tc"


def test_no_name_is_shown_in_another_order() -> None:
    assert sanitize("a\u202egpj.exe\u2066") == "a\ufffdgpj.exe\ufffd"


@given(st.dictionaries(st.text(), st.text() | st.sampled_from("\x7f\x9b\u202e\x1b\r")))
def test_a_document_has_each_control_character_escaped(document: dict[str, str]) -> None:
    text = encode_json(document)
    assert sanitize(text) == text
    assert json.loads(text) == document


@given(st.text())
def test_the_length_stays_and_nothing_is_left_to_replace(text: str) -> None:
    assert len(sanitize(text)) == len(text)
    assert sanitize(sanitize(text)) == sanitize(text)


# What a renderer would fetch or open when someone reads the report of a run with a hostile name, sample or error.
_OUTSIDE = (
    "//evil.example/a",
    "/etc/passwd",
    "../secret",
    "a/../../b",
    "https://evil.example",
    "a?b",
    "#top",
    "<a>",
    ".git/config",
)


@given(st.sampled_from(_OUTSIDE), st.text("ab ![]()", max_size=4))
def test_no_link_leads_out_of_the_folder_of_a_report(target: str, around: str) -> None:
    assert f"]({target})" not in inert(f"{around}[a]({target}){around}")


def test_a_link_to_a_file_beside_the_report_stays() -> None:
    for target in ("config.toml", "plots/loss.png", "attempts/001/trainer.log"):
        assert inert(f"[it]({target})") == f"[it]({target})"
