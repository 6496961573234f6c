"""`prime-train simulate spot`: real simulations of a few lives."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.commands import prime_train
from tests.views.written_runs import WHOLE_LIFE, write_run

TIMES = ("--step-s", "9", "--save-s", "12", "--write-s", "60", "--steps", "20000", "--seeds", "20")
RATE = ("--interruptions-per-day", "6")


def test_lives_by_interval(tmp_path: Path) -> None:
    done = prime_train("simulate", "spot", "quickstart", *TIMES, *RATE, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["advice"]["interval_steps"] == 64
    assert [row["lives"] for row in document["intervals"]] == [20] * len(document["intervals"])
    best = next(row for row in document["intervals"] if row["interval_steps"] == 64)
    assert best["usd"]["typical"] == 0  # no price was given
    again = prime_train("simulate", "spot", "quickstart", *TIMES, *RATE, "--json", cwd=tmp_path)
    assert again.stdout == done.stdout


def test_the_table_marks_the_recommended_interval(tmp_path: Path) -> None:
    done = prime_train("simulate", "spot", "quickstart", *TIMES, *RATE, "--usd-per-hour", "2", cwd=tmp_path)
    assert "9 min 36 s *" in done.stdout
    assert "$" in done.stdout
    assert "GIVEN UP" in done.stdout


def test_a_run_that_no_interval_finishes_is_called_so(tmp_path: Path) -> None:
    words = ("simulate", "spot", "quickstart", *TIMES)
    assert "No interval finishes the run" not in prime_train(*words, *RATE, cwd=tmp_path).stdout
    assert "No interval finishes the run" in prime_train(*words, "--interruptions-per-day", "9e4", cwd=tmp_path).stdout


def test_a_recording_is_replayed(tmp_path: Path) -> None:
    data = [1] * 900 + [0] * 100
    (tmp_path / "trace.json").write_text(json.dumps({"metadata": {"gap_seconds": 32}, "data": data}), encoding="utf-8")
    done = prime_train("simulate", "spot", "quickstart", *TIMES, "--trace", "trace.json", "--json", cwd=tmp_path)
    document = json.loads(done.stdout)
    assert document["process"] == "recorded in trace.json, a machine lives 8 h 00 min on average"
    (tmp_path / "trace.json").write_text("{}", encoding="utf-8")
    refused = prime_train("simulate", "spot", "quickstart", *TIMES, "--trace", "trace.json", cwd=tmp_path)
    assert refused.returncode == 1
    assert "spot-traces" in refused.stderr


def test_times_are_measured_in_a_run(tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "first", WHOLE_LIFE)
    done = prime_train(
        *("simulate", "spot", "quickstart", "--measured", "first", "--step-s", "9", "--steps", "500", "--seeds", "5"),
        *(*RATE, "--json"), cwd=tmp_path,
    )  # fmt: skip
    document = json.loads(done.stdout)
    assert document["advice"]["measured"] is True
    assert "measured in first" in document["basis"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--plot", "spot.pdf"), ".svg"),
        (("--trace", "missing.json"), "missing.json"),
        (("--measured", "nothing"), "nothing"),
    ],
)
def test_a_wrong_option(tmp_path: Path, options: tuple[str, ...], words: str) -> None:
    done = prime_train("simulate", "spot", "quickstart", *TIMES, *options, cwd=tmp_path)
    assert done.returncode == 2
    assert words in done.stderr


def test_a_plot_is_written(tmp_path: Path) -> None:
    done = prime_train("simulate", "spot", "quickstart", *TIMES, *RATE, "--plot", "spot.svg", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "spot.svg").read_bytes().startswith(b"<?xml")
