"""A disk that takes parts of writes, and one that is full for a moment: the weights are those of an undisturbed run."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from pathlib import Path

import pytest

from prime_train.core.rundir import RunDir
from tests.unit.cli import small
from tests.unit.cli.commands import prime_train

_SETTINGS = ("checkpoint.final=hf", "prime_train.restart.backoff_s=0.1", "prime_train.watch.gpu=off")
pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler"),
]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("short") / "short_writes.so"
    source = Path(__file__).with_name("short_writes.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", made, source, "-ldl"], check=True)
    return made


def run(folder: Path, variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """The small run in `folder`, which is made if it is not there, with a cache of its own."""
    if not folder.exists():
        folder.mkdir()
        small.write(folder)
    options = [word for setting in _SETTINGS for word in ("--set", setting)]
    own = {"PRIME_TRAIN_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
    return prime_train("run", "run.toml", "--no-validate", *options, cwd=folder, **own, **variables)


def result(folder: Path) -> tuple[str, list[int]]:
    """The hash of the exported weights, and the steps of the metrics, each line of which is whole."""
    run_dir = RunDir(folder / "runs" / "small")
    weights = (run_dir.final / "model.safetensors").read_bytes()
    steps = [json.loads(line)["step"] for line in run_dir.metrics.read_text().splitlines()]
    return hashlib.sha256(weights).hexdigest(), steps


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[int]]:
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    ended = run(folder, {})
    assert ended.returncode == 0, ended.stderr
    found = result(folder)
    assert found[1] == list(range(1, 13))
    return found


def test_short_and_interrupted_writes_change_nothing(
    tmp_path: Path, library: Path, undisturbed: tuple[str, list[int]]
) -> None:
    folder = tmp_path / "run"
    ended = run(folder, {"LD_PRELOAD": str(library), "SHORT_BELOW": str(folder)})
    assert ended.returncode == 0, ended.stderr
    assert "attempt 2" not in ended.stderr
    assert result(folder) == undisturbed


@pytest.mark.parametrize(
    ("file", "first_code"),
    [
        ("events/supervisor.jsonl", 0),
        ("-rank0.jsonl", 0),
        ("metrics.jsonl", 0),
        (".distcp", 0),
        ("model.safetensors", 0),
        (".tokens", 0),
        ("/.COMPLETE.json.", 0),
        ("/lock", 2),  # before the run begins: the same command starts it
    ],
)
def test_a_disk_that_is_full_for_one_write_costs_an_attempt_at_most(
    tmp_path: Path, library: Path, undisturbed: tuple[str, list[int]], file: str, first_code: int
) -> None:
    folder = tmp_path / "run"
    done = tmp_path / "was-full"
    variables = {"LD_PRELOAD": str(library), "SHORT_BELOW": str(folder), "SHORT_DONE": str(done), "SHORT_FULL": file}
    ended = run(folder, variables)
    assert ended.returncode == first_code, ended.stderr
    if first_code:
        ended = run(folder, variables)
    assert ended.returncode == 0, ended.stderr
    assert done.exists()
    assert result(folder) == undisturbed
