from __future__ import annotations

import json
from pathlib import Path

import pytest

from prime_train import spec
from prime_train.config import run_toml
from prime_train.core.errors import UserError
from prime_train.facts.previous_run import read_previous_run

_RUN = '[run]\nname = "r"\nmax_steps = 1\n[data]\n[[data.sources]]\nkind = "python-stdlib"\n'


def test_a_run_directory_keeps_the_config_that_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_toml.read(_RUN, "run.toml").run
    assert run is not None
    folder = tmp_path / "runs" / "first"
    folder.mkdir(parents=True)
    (folder / "resolved.json").write_text(spec.to_json(run))
    (folder / "metrics.jsonl").write_text('{"step": 1, "step_s": 2.0}\n{"step": 2, "step_s": 3.0}\n{"step": 3, "st')
    monkeypatch.chdir(tmp_path)
    for named in ("first", "runs/first", str(folder)):
        before = read_previous_run(named)
        assert before.run == run
        assert [line["step"] for line in before.lines] == [1, 2]
        assert before.source == named


@pytest.mark.parametrize(
    "text", ['{"step_s": 2}', '[{"step_s": 2}]', '{"step_s": 2}\n', "\n{'x'}\n" + '{"step_s": 2}\n']
)
def test_a_file_of_objects(tmp_path: Path, text: str) -> None:
    path = tmp_path / "m.json"
    path.write_text(text)
    before = read_previous_run(str(path))
    assert before.lines == ({"step_s": 2},)
    assert before.run is None


def test_a_run_of_prime_rl_keeps_no_config_of_ours(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"perf/peak_memory": 3.0}))
    assert read_previous_run(str(tmp_path)).run is None


@pytest.mark.parametrize("text", ["", "3", "[1, 2]", "loss 3"])
def test_a_file_without_an_object(tmp_path: Path, text: str) -> None:
    path = tmp_path / "m.json"
    path.write_text(text)
    with pytest.raises(UserError, match="no JSON object"):
        read_previous_run(str(path))


def test_a_run_of_another_version(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step_s": 2}')
    (tmp_path / "resolved.json").write_text("{}")
    with pytest.raises(UserError, match="another version"):
        read_previous_run(str(tmp_path))
