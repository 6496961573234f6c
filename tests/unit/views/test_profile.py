"""The report of a profile as text, JSON and HTML."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from html import escape
from html.parser import HTMLParser
from typing import Any

import pytest

from prime_train.core.spans import Span
from prime_train.estimate.calibrate import read_measurement
from prime_train.profile.diagnosis import Setup
from prime_train.profile.report import Comparison, Report, report_of
from prime_train.views import profile as view
from prime_train.views.profile import document
from prime_train.views.profile_page import page
from prime_train.views.text import sanitize
from tests.unit.profile.planted import TRAINER, rollout_steps, trainer_steps

HOSTILE = "<script>alert('x')</script>\x1b[31m"


def report(spans: Sequence[Span], title: str = "tiny") -> Report:
    found = report_of(title, spans, 1, Setup(loader_workers=1))
    assert found is not None
    return found._replace(comparisons=(Comparison("step", "s", 2.0, 1.0),), notes=("a note",))


def test_the_text_has_table_diagnosis_and_numbered_recommendations() -> None:
    spans = trainer_steps([("data", 0.6), ("forward", 0.1), ("backward", 0.2)])
    text = view.text(
        document(report(spans)), lambda words, _: words, lambda rows: "\n".join(" ".join(row) for row in rows)
    )
    assert "data 66.7% 0.6 s 0.6 s 0.6 s 0.6 s BOTTLENECK" in text
    assert "forward 11.1% 0.1 s 0.1 s 0.1 s 0.1 s OK" in text
    assert "DIAGNOSIS  input-bound (67% of the critical path)" in text
    assert "  1. data.loader_workers = 3; expected 3.00x faster" in text
    assert "  step: 2 s / 1 s = 2.00" in text
    assert text.endswith("note: a note")


def test_the_document_is_json_that_a_calibration_reads() -> None:
    spans = [*trainer_steps([("forward", 1.0)]), Span("memory", TRAINER, 1.5, 1.5, 2, 3 * 2**30)]
    found: dict[str, Any] = json.loads(json.dumps(document(report(spans))))
    measured = read_measurement([found], "profile.json")
    assert list(measured.step_s) == pytest.approx([1.0])
    assert measured.peak_bytes == 3 * 2**30
    assert sum(one["share"] for one in found["components"]) == pytest.approx(1.0)


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.attributes: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes |= {name for name, _ in attrs}
        assert tag != "script"
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_whole_escaped_and_loads_nothing() -> None:
    spans = [
        *rollout_steps(rollouts=60, concurrency=8, decode_s=0.1, tool_s=0.4),
        Span("memory", TRAINER, 10.0, 10.0, 2, 2**30),
        Span("decode", f"rollout-{HOSTILE}", 10.0, 10.5),
    ]
    found = report(spans, HOSTILE)
    text = page(document(found), found.measured)
    tags = _Tags()
    tags.feed(text)
    assert tags.open == []
    assert not tags.attributes & {"src", "href", "onload"}
    assert re.search(r"https?:|url\(|@import", text) is None
    assert "\x1b" not in text
    assert "&lt;script&gt;" in text
    window = found.measured.window
    for lane, segments in found.measured.lanes.items():  # each is drawn: rollouts in as many rows as run at once
        if any(one.end_s > window.start_s and one.start_s < window.end_s for one in segments):
            assert f"on {escape(sanitize(lane))}:" in text
    assert "more lanes are not shown" not in text
    assert 8 <= text.count(">rollouts, row ") <= 61
    assert "Memory" in text
