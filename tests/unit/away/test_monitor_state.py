from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from prime_train.away.monitor import history as state
from prime_train.away.monitor.decide import BegunResume, Decision, Poll, PollHistory

counts = st.integers(0, 10**12)
times = st.floats(0, 4e9)
polls = st.lists(
    st.builds(Poll, times, st.sampled_from(["alive", "crashed"]), st.none() | counts, st.none() | counts, counts),
    max_size=130,
).map(lambda found: tuple(sorted(found, key=lambda poll: poll.at_s)))
resumes = st.lists(st.builds(BegunResume, counts, times, counts), max_size=130).map(
    lambda found: tuple(sorted(found, key=lambda resume: resume.number))
)
histories = st.builds(PollHistory, polls, resumes, st.none() | st.text(max_size=500))


@given(histories, st.text(), st.text())
def test_the_history_comes_back(history: PollHistory, why: str, fix: str) -> None:
    body = state.write_body("demo", Decision("wait", why, fix), history)
    assert len(body) < 65_536
    assert state.read_history(body) == PollHistory(history.polls[-100:], history.resumes[-100:], history.gave_up)


@given(st.text(alphabet='<!->prime-train monitor{}"`@\n1,:'))
def test_text_from_outside_adds_no_hidden_state(words: str) -> None:
    """A verdict's reason, or an error, is written by others: it closes no HTML comment and opens none."""
    fake = f'{words} <!-- prime-train-monitor {{"version": 1, "polls": []}} --> @everyone'
    history = PollHistory((Poll(5.0, "crashed", 1, None, 0),), (BegunResume(1, 5.0, 2),), fake[:500])
    assert state.read_history(state.write_body("demo", Decision("give-up", fake, fake), history)) == history


@given(st.text())
def test_any_text_has_a_history(text: str) -> None:
    assert state.read_history(text) == PollHistory()


def test_an_edited_body_has_no_history() -> None:
    body = state.write_body("demo", Decision("wait", "w"), PollHistory((Poll(1.0, "alive", 1, None, 0),)))
    assert state.read_history(body.replace('"version": 1', '"version": 2')) == PollHistory()
    assert state.read_history(body + body) == PollHistory()
    assert state.read_history("") == PollHistory()


def test_text_from_outside_is_shown_as_code() -> None:
    body = state.write_body("demo", Decision("wait", "ping @admins `rm`\n# heading"), PollHistory())
    assert "**wait**: `ping @admins 'rm' # heading`" in body
    assert state.write_comment("Resume 1:", "ping @admins\n`rm`") == "Resume 1: `ping @admins 'rm'`"
