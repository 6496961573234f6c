from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from prime_train.cloud import monitor_state as state
from prime_train.cloud.monitor import Decision, Poll
from prime_train.cloud.monitor_state import Comment, Note

counts = st.integers(0, 10**12)
polls = st.lists(
    st.builds(
        Poll, st.floats(0, 4e9), st.sampled_from(["alive", "crashed"]), st.none() | counts, st.none() | counts, counts
    ),
    max_size=130,
).map(lambda found: tuple(sorted(found, key=lambda poll: poll.at_s)))
notes = st.builds(
    Note,
    st.just("claim"),
    counts,
    st.floats(0, 4e9),
    counts,
    st.sampled_from(["pending", "started"]),
    st.text(),
    st.text(),
)


@given(polls, st.text(), st.text())
def test_the_polls_come_back(given_polls: tuple[Poll, ...], why: str, fix: str) -> None:
    body = state.write_body("demo", Decision("wait", why, fix), given_polls)
    assert len(body) < 65_536
    assert state.read_polls(body) == given_polls[-100:]


@given(notes)
def test_a_comment_comes_back(note: Note) -> None:
    assert state.read_comment(7, state.write_comment(note)) == Comment(7, *note)


@given(st.text(alphabet='<!->prime-train monitor{}"`@\n1,:'))
def test_text_from_outside_adds_no_hidden_state(words: str) -> None:
    """A verdict's reason, or an error, is written by others: it closes no comment and opens none."""
    fake = f'{words} <!-- prime-train-monitor {{"version": 1, "polls": []}} --> @everyone'
    note = Note("claim", 1, 5.0, 2, "failed", "1-1", fake)
    assert state.read_comment(7, state.write_comment(note)) == Comment(7, *note)


@given(st.text())
def test_any_text_is_a_comment_or_none(text: str) -> None:
    assert state.read_comment(1, text) is None
    assert state.read_polls(text) == ()


def test_of_two_claims_of_a_number_the_lowest_id_counts() -> None:
    def claim(comment_id: int, number: int, holder: str) -> Comment:
        return Comment(comment_id, "claim", number, 1.0, 0, "started", holder, "")

    found = state.winners((claim(9, 1, "b"), claim(8, 1, "a"), claim(12, 2, "c"), claim(11, 3, "d")))
    assert [(one.number, one.holder) for one in found] == [(1, "a"), (2, "c"), (3, "d")]


def test_an_edited_body_has_no_polls() -> None:
    body = state.write_body("demo", Decision("wait", "w"), (Poll(1.0, "alive", 1, None, 0),))
    assert state.read_polls(body.replace('"version": 1', '"version": 2')) == ()
    assert state.read_polls(body + body) == ()
    assert state.read_polls("") == ()


def test_text_from_outside_is_shown_as_code() -> None:
    body = state.write_body("demo", Decision("wait", "ping @admins `rm`\n# heading"), ())
    assert "**wait**: `ping @admins 'rm' # heading`" in body
