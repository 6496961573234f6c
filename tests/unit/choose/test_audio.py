"""For clips of every kind, the file that is drafted has no error."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from prime_train.choose.audio import AudioWishes, ClipsSeen, draft_audio
from prime_train.config import detect
from prime_train.core.findings import Severity
from prime_train.rules.judge import lint

CLIPS = st.builds(
    ClipsSeen,
    rows=st.integers(1, 10**7),
    median_s=st.floats(0.01, 10_000),
    rate_hz=st.sampled_from([8000, 11_025, 16_000, 22_050, 32_000, 44_100, 192_000]),
    labels=st.integers(0, 10_000),
    most_labels=st.integers(0, 5),
    label_field=st.sampled_from(["label", "ebird_code", None]),
).filter(lambda seen: seen.label_field is not None or not seen.labels)


@given(CLIPS | st.none(), st.integers(0, 16), st.none() | st.integers(1, 10**6))
def test_a_draft_has_no_error(seen: ClipsSeen | None, gpus: int, steps: int | None) -> None:
    text = draft_audio(AudioWishes("birds", "clips/", seen=seen, gpus=gpus, steps=steps)).text("clips")
    reading = detect.read(text, "run.toml")
    assert reading.faults == ()
    found = [each for each in lint(text, "run.toml").findings if each.severity is Severity.ERROR]
    assert found == []
    assert reading.run is not None
    assert reading.run.run.max_steps == (steps or reading.run.run.max_steps)
