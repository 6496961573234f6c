"""The prefixes of a message are removed and returned."""

from __future__ import annotations

import pytest

from prime_train.diagnose.log_prefix import ANSI, strip_prefixes, unwrap


@pytest.mark.parametrize(
    ("raw", "text", "stream", "level"),
    [
        ("[rank0]: Traceback", "Traceback", "rank0", ""),
        ("[default3]:  File", " File", "default3", ""),
        ("(EngineCore pid=12) ERROR 11-21 07:44:41 [core.py:1510]   File", "  File", "EngineCore pid=12", "error"),
        ("(Worker pid=1, ip=10.0.0.2) text", "text", "Worker pid=1, ip=10.0.0.2", ""),
        ("(Worker_TP0 pid=1) WARNING 11-21 07:44:41 [a.py:1] x", "x", "Worker_TP0 pid=1", "warning"),
        ("2026-11-21 07:44:41.123 | ERROR    | a.b:run:12 - boom", "boom", "", "error"),
        ("2026-11-21 07:44:41,123 - train - INFO - starting", "starting", "", "info"),
        ("[2026-11-21 07:44:41] [WARNING] x", "x", "", "warning"),
        ("07:44:41 [   INFO] x", "[   INFO] x", "", ""),
        ("07:44:41    SUCCESS Step 1", "Step 1", "", "info"),
        ("[rank3]:[E1121 07:46:34.114372868 ProcessGroupNCCL.cpp:685] [Rank 3] x", "[Rank 3] x", "rank3", "error"),
        ("W1121 07:46:34.114000 140 torch/api.py:900] x", "x", "", "warning"),
        ("ERROR:    Exception in ASGI application", "Exception in ASGI application", "", "error"),
        ("Nov 21 07:46:34 node7 kernel: [12345.678901] NVRM: x", "NVRM: x", "", ""),
        ("[Sat Nov 21 07:46:34 2026] NVRM: x", "NVRM: x", "", ""),
        ("[12345.678901] NVRM: x", "NVRM: x", "", ""),
        ("trainer-1  | ERROR: x", "x", "trainer-1", "error"),
        (" 3: slurmstepd: error: x", "slurmstepd: error: x", "3", ""),
        ("wandb: ERROR x", "wandb: ERROR x", "", "error"),
        ("    | ValueError: x", "ValueError: x", "", ""),
        ("step 812 | loss: nan", "step 812 | loss: nan", "", ""),
        ('  File "a.py", line 3', '  File "a.py", line 3', "", ""),
        ("ValueError: x", "ValueError: x", "", ""),
    ],
)
def test_prefixes(raw: str, text: str, stream: str, level: str) -> None:
    line = strip_prefixes(raw)
    assert (line.text, line.stream, line.level) == (text, stream, level)


@pytest.mark.parametrize(
    "raw",
    [
        "2026-11-21T07:46:34Z x",
        "2026-11-21 08:46:34.000 +01:00 x",
        "[2026-11-21 07:46:34,000] x",
        "2026-11-21 08:46:34 CET x",
        "20261121T074634Z x",
        "20261121 07:46:34 x",
        "2026-11-21_07:46:34 x",
        "1795247194 x",
        "1795247194.000 - x",
        "[1795247194000] x",
        "Sat Nov 21 07:46:34 2026 x",
        "Sat Nov 21 08:46:34 CET 2026: x",
        "[Sat Nov 21 07:46:34 2026] x",
        "[21/Nov/2026:08:46:34 +0100] x",
        "10.0.0.1 - - [21/Nov/2026:07:46:34 +0000] x",
        '<34>1 2026-11-21T07:46:34.000Z host app 123 - [a b="c"] x',
        '{"time": "2026-11-21T07:46:34.000000000Z", "log": "x\\n"}',
        '{"ts": 1795247194.0, "msg": "x"}',
        '{"timestamp": 1795247194000, "message": "x"}',
        '{"text": "x", "record": {"time": {"timestamp": 1795247194.0}, "level": {"name": "ERROR"}, "message": "x"}}',
    ],
)
def test_a_time_with_its_date_is_the_same_moment(raw: str) -> None:
    (line,) = unwrap(raw)
    assert line.text == "x"
    assert line.stamp is not None
    assert (line.stamp.kind, line.stamp.seconds) == ("wall", 1795247194.0)


def test_a_traceback_inside_json_becomes_lines() -> None:
    lines = unwrap('{"level": "error", "message": "failed", "exc_info": "Traceback:\\n  File x\\nE: 1"}')
    assert [line.text for line in lines] == ["failed", "Traceback:", "  File x", "E: 1"]
    assert {line.level for line in lines} == {"error"}


@pytest.mark.parametrize("raw", ["{", "{}", "[1]", '{"a": 1}', "{" * 5000, '{"msg": 3}', '{"msg": ""}'])
def test_what_is_no_record_stays_a_line(raw: str) -> None:
    assert [line.text for line in unwrap(raw)] == [raw]


def test_colours_titles_and_moves_go() -> None:
    assert ANSI.sub(b"", b"\x1b[1;31mred\x1b[0m\x1b[2K\x1b]0;title\x07 \x1b[38;5;12mx\x1bM") == b"red x"
