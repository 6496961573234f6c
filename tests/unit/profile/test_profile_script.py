"""A script with spans writes them in a profile, ends after the counted steps, and is unchanged otherwise."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from prime_train.core.spans import ENV, read_spans
from prime_train.profile_script import STEPS_ENV

SCRIPT = """
from prime_train.profile_script import span, step
for number in range(6):
    with step():
        with span("forward", count=3):
            pass
        print(number)
"""


def run(folder: Path, variables: dict[str, str]) -> str:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=True,
        cwd=folder,
    )
    return done.stdout


def test_a_profile_ends_the_script_after_its_steps(tmp_path: Path) -> None:
    spans = tmp_path / "spans.jsonl"
    assert run(tmp_path, {ENV: str(spans), STEPS_ENV: "4"}).split() == ["0", "1", "2", "3"]
    found = list(read_spans(spans))
    assert [one.step for one in found if one.component == "step"] == [1, 2, 3, 4]
    assert {(one.component, one.lane, one.count) for one in found if one.component != "step"} == {
        ("forward", "trainer-rank0", 3)
    }


def test_without_a_profile_nothing_is_written(tmp_path: Path) -> None:
    assert run(tmp_path, {ENV: "", STEPS_ENV: "2"}).split() == [str(number) for number in range(6)]
    assert list(tmp_path.iterdir()) == []
