"""The stream: a reader that loses the connection at any place ends with the same document."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from prime_train.control import stream
from prime_train.control.stream import Stream, apply, find_difference

Document = dict[str, dict[str, Any]]
VALUES = st.one_of(st.integers(), st.text(max_size=3), st.lists(st.integers(), max_size=2))
DOCUMENTS = st.dictionaries(st.sampled_from(["runs", "machines"]), st.dictionaries(st.text(max_size=2), VALUES))


def without_empty(document: Document) -> Document:
    return {section: values for section, values in document.items() if values}


@given(DOCUMENTS, DOCUMENTS)
def test_a_difference_leads_from_one_document_to_the_other(before: Document, after: Document) -> None:
    assert without_empty(apply(before, find_difference(before, after))) == without_empty(after)


@given(st.lists(st.tuples(DOCUMENTS, st.booleans()), max_size=30))
def test_a_reader_that_comes_back_at_any_time_has_the_latest_document(steps: list[tuple[Document, bool]]) -> None:
    served = Stream()
    last, shown = "", Document()
    for document, reads in steps:
        served.publish(document)
        if reads:
            for change in served.since(last):
                shown = change.document if change.kind == "state" else apply(shown, change.document)
                last = change.id
            assert without_empty(shown) == without_empty(document)


def test_a_reader_that_was_away_too_long_gets_the_whole_document() -> None:
    served = Stream()
    served.publish({"runs": {"a": 0}})
    [first] = served.since("")
    for number in range(stream._KEPT + 1):
        served.publish({"runs": {"a": number + 1}})
    assert [(change.kind, change.document) for change in served.since(first.id)] == [
        ("state", {"runs": {"a": stream._KEPT + 1}})
    ]


def test_a_number_of_another_controller_means_nothing() -> None:
    first, second = Stream(), Stream()
    for served in (first, second):
        served.publish({"runs": {"a": 1}})
    for given_id in (first.snapshot().id, "x", "-1", f"{second.snapshot().id}9", "a-" + "9" * 5000, "\u00b2-\u00b2"):
        assert [change.kind for change in second.since(given_id)] == ["state"], given_id


def test_nothing_is_sent_where_nothing_changed() -> None:
    served, calls = Stream(), []
    end = served.listen(lambda: calls.append(1))
    assert served.publish({"runs": {"a": 1}})
    assert not served.publish({"runs": {"a": 1}})
    end()
    assert served.publish({"runs": {"a": 2}})
    assert calls == [1]
