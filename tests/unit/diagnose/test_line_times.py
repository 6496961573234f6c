"""A line has the time that its prefixes hold; a line that cannot hold one is not parsed."""

from __future__ import annotations

from prime_train.diagnose.line_times import LineTimes
from prime_train.diagnose.log_prefix import strip_prefixes
from prime_train.diagnose.timestamps import Stamp
from tests.system.diagnose.test_made_logs import CLOCKS
from tests.unit.diagnose.made_logs.dress import dress
from tests.unit.diagnose.made_logs.made_log import made_logs

UNDATED = (
    "07:46:34 x",
    "W1121 07:46:34.114 140 torch/api.py:900] x",
    "[12345.678901] NVRM: x",
    "INFO 11-21 07:44:41 [a] x",
)


def _time(raw: str) -> Stamp | None:
    times = LineTimes(None)
    times.start_block([raw.encode()])
    return times.first


def test_no_time_of_any_format_is_missed() -> None:
    clocked: list[str] = []
    for form in CLOCKS:
        clocked += dress("x\nTraceback (most recent call last):\n", [f"clock:{form}"], "seed").decode().splitlines()
    for raw in (*clocked, *UNDATED):
        assert _time(raw) is not None, raw
        assert _time(raw) == strip_prefixes(raw).stamp


def test_lines_of_real_programs_have_the_time_of_their_prefixes() -> None:
    lines = {line[:400] for log in made_logs() for line in log.text().split("\n")[:2000] if "\x1b" not in line}
    assert len(lines) > 4000
    found = {line: stamp for line in lines if (stamp := strip_prefixes(line).stamp) is not None}
    assert len(found) > 500
    assert {line: _time(line) for line in lines if _time(line) is not None} == found
