"""`prime-train compare` as a process: text, picture, documents, and what it says about bad input."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from tests.unit.cli.commands import prime_train
from tests.unit.views.compare.made import write_compared, write_lines
from tests.unit.views.written_runs import WHOLE_LIFE, write_run

SEEDS = {"one": (1, 1e-3, 0.0), "two": (2, 1e-3, 0.1), "three": (1, 2e-3, 2.0), "four": (2, 2e-3, 2.1)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two seeds of two learning rates, the second worse by far; a run without a config, and one without a step."""
    made = tmp_path_factory.mktemp("compared")
    for name, (seed, lr, worse) in SEEDS.items():
        run_dir = write_compared(made / "runs", name, seed=seed, lr=lr)
        losses = ((step, 5.0 - step / 40 + worse) for step in range(1, 101))
        write_lines(run_dir, [{"step": step, "loss": loss, "step_s": 36.0} for step, loss in losses])
    write_run(made / "elsewhere" / "bare", WHOLE_LIFE)
    write_run(made / "runs" / "empty", WHOLE_LIFE[:3])
    return made


def test_the_text_has_curves_keys_and_noise(folder: Path) -> None:
    done = prime_train("compare", *SEEDS, cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("loss over optimizer step\n")
    assert "C  three: finished, step 100 of 100" in done.stdout
    lines = [line.split() for line in done.stdout.splitlines()]
    assert ["optim.lr", "0.001", "0.001", "0.002", "0.002"] in lines
    (against,) = (line for line in done.stdout.splitlines() if line.startswith("three + four  loss"))
    assert "+2, more than the noise of" in against


def test_with_one_seed_of_each_the_noise_is_not_known(folder: Path) -> None:
    done = prime_train("compare", "one", "three", "--json", cwd=folder)
    document = json.loads(done.stdout)
    assert {one["verdict"] for one in document["noise"]} == {"not known"}
    assert document["differences"] == [{"key": "optim.lr", "values": {"one": 0.001, "three": 0.002}}]
    assert [group["runs"] for group in document["groups"]] == [["one"], ["three"]]
    assert [panel["metric"] for panel in document["panels"]] == ["loss", "held_out"]


def test_hours_and_a_run_of_another_folder(folder: Path) -> None:
    done = prime_train("compare", "one", "elsewhere/bare", "--x", "hours", "--json", cwd=folder)
    document = json.loads(done.stdout)
    assert document["panels"][0]["lines"][0]["x"][-1] == pytest.approx(1.0), "a hundred steps of 36 s"
    assert "it has no resolved.json" in document["runs"][1]["notes"]
    beside = json.loads(prime_train("compare", "one", "elsewhere/bare", "--x", "tokens", "--json", cwd=folder).stdout)
    assert "not drawn: its tokens are not known" in beside["runs"][0]["notes"]


def test_the_csv_has_every_point(folder: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(prime_train("compare", "one", "two", "--csv", cwd=folder).stdout)))
    assert sum(row["metric"] == "loss" for row in rows) == 200
    assert rows[0] | {"hours": ""} == {
        "run": "one", "metric": "loss", "step": "1", "tokens": "", "hours": "", "value": "4.975", "low": "4.975",
        "high": "4.975",
    }  # fmt: skip


def test_a_picture_is_drawn_by_a_process_of_its_own(folder: Path) -> None:
    pytest.importorskip("matplotlib")
    named = write_compared(folder / "runs", "_a$x_{", seed=9)
    write_lines(named, [{"step": step, "loss": 3.0} for step in range(1, 40)])
    done = prime_train("compare", *SEEDS, "_a$x_{", "--smooth", "5", "-o", "curves.png", cwd=folder)
    assert (done.returncode, done.stderr) == (0, "the picture is curves.png\n")
    content = (folder / "curves.png").read_bytes()
    assert content.startswith(b"\x89PNG\r\n")
    assert len(content) > 20_000


@pytest.mark.parametrize(
    ("arguments", "code", "where", "what"),
    [
        (("one", "tow"), 2, "RUN = tow", "no run 'tow'"),
        (("one", "one"), 2, "RUN = one", "the run is given twice"),
        (("one", "--json", "--csv"), 2, "prime-train compare", "--json and --csv are given"),
        (("one", "--output", "run.toml"), 2, "--output", "run.toml does not end with .png"),
        (("empty",), 4, "empty", "none of these runs has recorded a step"),
        (("one", "--x", "tokens"), 4, "--x tokens", "the tokens of these runs are not known"),
        (("one", "-o", "nowhere/a.png"), 4, "nowhere/a.png", "it cannot be written"),
    ],
)
def test_bad_input_has_four_parts(folder: Path, arguments: tuple[str, ...], code: int, where: str, what: str) -> None:
    done = prime_train("compare", *arguments, cwd=folder)
    assert (done.returncode, done.stderr.splitlines()[0]) == (code, f"error: {where}"), done.stderr
    assert f"what  {what}" in done.stderr
    assert all(f"  {part}" in done.stderr for part in ("why", "fix"))


def test_without_a_curve_the_document_has_the_rest_and_the_error(folder: Path) -> None:
    done = prime_train("compare", "empty", "--json", cwd=folder)
    document = json.loads(done.stdout)
    assert (document["panels"], document["error"]["exit_code"]) == ([], 4)
    assert document["runs"][0]["notes"] == ["it has no resolved.json", "no step was recorded"]


def test_more_runs_than_letters_are_refused(folder: Path) -> None:
    many = [write_run(folder / "many" / f"run{place}", WHOLE_LIFE) for place in range(27)]
    done = prime_train("compare", *(str(run_dir.path) for run_dir in many), cwd=folder)
    assert (done.returncode, "27 runs are more than 26" in done.stderr) == (2, True)
