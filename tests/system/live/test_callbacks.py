"""The callbacks that a supervised command gets without a change of its script, in the real trainers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.system.live.trainers import HUGGING_FACE, LIGHTNING, find_interpreter, live_environment

NAMES = ("transformers", "lightning")
TRAINERS = (("accelerate", HUGGING_FACE), ("lightning", LIGHTNING))  # a module without which the script ends at once


def run(python: str, script: str, folder: Path, live: Path) -> list[dict[str, Any]]:
    """Run a script in `folder`, and return the lines that it wrote for its supervisor."""
    folder.mkdir(exist_ok=True)
    (folder / "train.py").write_text(script)
    done = subprocess.run(
        [python, "train.py"], cwd=folder, env=live_environment(live), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for file in sorted(live.glob("*.jsonl")) for line in file.read_text().splitlines()]


def steps(lines: list[dict[str, Any]]) -> list[int]:
    return [line["step"] for line in lines if "loss" in line or line.keys() == {"t", "step"}]


@pytest.mark.trainers
@pytest.mark.parametrize(("module", "script"), TRAINERS, ids=NAMES)
def test_a_trainer_reports_its_steps_its_total_and_its_end(module: str, script: str, tmp_path: Path) -> None:
    lines = run(find_interpreter(module), script, tmp_path / "work", tmp_path / "live")
    assert {"total": 12}.items() <= next(line for line in lines if "total" in line).items()
    assert steps(lines)[-1] == 12
    assert lines[-1]["finished"] is True
    assert not any("note" in line for line in lines)


@pytest.mark.trainers
@pytest.mark.parametrize(("module", "script"), TRAINERS, ids=NAMES)
def test_a_trainer_saves_on_a_stop_request_and_reports_no_end(module: str, script: str, tmp_path: Path) -> None:
    live = tmp_path / "live"
    live.mkdir()
    (live / "stop").touch()
    lines = run(find_interpreter(module), script, tmp_path / "work", live)
    assert steps(lines)[-1] == 1
    assert not any("finished" in line for line in lines)
    saved = [path.name for path in (tmp_path / "work" / "out").iterdir()]
    assert saved == (["checkpoint-1"] if module == "accelerate" else ["epoch=0-step=1.ckpt"])


@pytest.mark.trainers
@pytest.mark.parametrize(
    ("module", "script", "name"),
    [(*TRAINERS[0], "checkpoint-8"), (*TRAINERS[1], "epoch=0-step=8.ckpt")],
    ids=NAMES,
)
def test_a_trainer_continues_from_the_chosen_checkpoint(module: str, script: str, name: str, tmp_path: Path) -> None:
    python, work = find_interpreter(module), tmp_path / "work"
    run(python, script, work, tmp_path / "first")
    weights = work / "weights.pt"
    whole = weights.read_bytes() if weights.exists() else b""
    second = tmp_path / "second"
    second.mkdir()
    (second / "resume").write_text(str(work / "out" / name))
    lines = run(python, script, work, second)
    assert 8 <= steps(lines)[0] <= 9
    assert steps(lines)[-1] == 12
    assert whole == (weights.read_bytes() if weights.exists() else b"")  # transformers on one process is exact


def test_a_fault_in_a_callback_is_a_note_and_ends_nothing(tmp_path: Path) -> None:
    package = tmp_path / "work" / "transformers"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "trainer.py").write_text("value = 1\n")
    lines = run(
        sys.executable, "import transformers.trainer as t; print(t.value)", tmp_path / "work", tmp_path / "live"
    )
    assert "transformers.trainer got no callback: " in lines[-1]["note"]


def test_the_other_sitecustomize_still_runs(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "sitecustomize.py").write_text("import os; os.environ['OTHER'] = 'ran'\n")
    environment = live_environment(tmp_path / "live")
    environment["PYTHONPATH"] += f":{other}"
    program = "import os, prime_train.live as live; print(os.environ['OTHER'], live.is_supervised())"
    done = subprocess.run(
        [sys.executable, "-S", "-c", "import site; site.main(); " + program],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "ran True\n"


@pytest.mark.parametrize("options", [("-I",), ("-S",), ("-E",), ("-I", "-S")])
def test_an_isolated_interpreter_runs_unharmed(options: tuple[str, ...], tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, *options, "-c", "print('ran')"],
        env=live_environment(tmp_path / "live"),
        capture_output=True,
        text=True,
        check=True,
    )
    assert (done.stdout, done.stderr) == ("ran\n", "")
