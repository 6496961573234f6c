from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import typer

from prime_train import registry
from prime_train.cli.validate import validate
from prime_train.errors import UserError
from prime_train.rules.explain import BASE
from prime_train.rules.judge import needs


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def outcome(config: str, capsys: pytest.CaptureFixture[str], *, as_json: bool = False) -> tuple[int, str]:
    code = 0
    try:
        validate(config, as_json=as_json)
    except typer.Exit as end:
        code = end.exit_code
    return code, capsys.readouterr().out


@pytest.mark.parametrize("preset", registry.presets())
def test_presets_can_run_here(preset: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = outcome(preset, capsys)
    assert code == 0
    assert "rules passed" in out
    assert list(Path.cwd().iterdir()) == []


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    code, out = outcome("quickstart", capsys, as_json=True)
    document = json.loads(out)
    assert code == 0
    assert document["version"] == 1
    assert set(document["facts"]) >= needs()
    assert {"skipped", "passed", "facts", "files", "summary"} <= document.keys()


def test_what_the_machine_does_not_have_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    Path("blocked").write_text("a file where the run directory should be")
    Path("run.toml").write_text(
        BASE.replace('name = "example"', 'name = "example"\ndir = "blocked"').replace(
            'kind = "python-stdlib"', 'kind = "files"\npath = "corpus/*.txt"'
        )
        + '[model]\npath = "models/gone"\n[tokenizer]\npath = "tokenizers/gone"\n'
    )
    code, out = outcome("run.toml", capsys, as_json=True)
    found = {finding["code"]: finding for finding in json.loads(out)["files"][0]["findings"]}
    assert code == 1
    assert {"DSK002", "DAT003", "MOD002", "TOK001"} <= set(found)
    assert found["DAT003"]["key"] == "data.sources.0.path"
    assert "blocked is not a folder" in found["DSK002"]["what"]


def test_empty_data_and_the_wrong_architecture(capsys: pytest.CaptureFixture[str]) -> None:
    Path("corpus").mkdir()
    Path("corpus/a.txt").write_text("")
    Path("model").mkdir()
    Path("model/config.json").write_text('{"model_type": "gpt2"}')
    Path("run.toml").write_text(
        BASE.replace('kind = "python-stdlib"', 'kind = "files"\npath = "corpus"')
        + '[model]\npath = "model"\ninit = "random"\n'
    )
    code, out = outcome("run.toml", capsys)
    assert code == 1
    assert "corpus: the file is empty" in out
    assert 'model_type is "gpt2", not llama or qwen3' in out


def test_more_processes_than_can_run(capsys: pytest.CaptureFixture[str]) -> None:
    Path("run.toml").write_text(BASE + "[parallel]\nprocesses = 1000000\n")
    code, out = outcome("run.toml", capsys)
    assert code == 1
    assert "[PAR002]" in out


def test_a_config_without_a_run_is_linted_only(capsys: pytest.CaptureFixture[str]) -> None:
    Path("run.toml").write_text("[run]\nseed = 1\n")
    code, out = outcome("run.toml", capsys, as_json=True)
    document = json.loads(out)
    assert code == 1
    assert document["skipped"] == []
    assert {finding["code"] for finding in document["files"][0]["findings"]} == {"CFG006"}


def test_a_missing_file_is_a_user_error() -> None:
    with pytest.raises(UserError, match="no such file"):
        validate("gone.toml")


def test_a_little_disk_is_too_little(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    free_bytes = shutil.disk_usage(tmp_path).free
    hidden_size = 65536  # 12 bytes x 32 layers x 12 x width^2: twenty terabytes a checkpoint
    assert 12 * 32 * 12 * hidden_size**2 > free_bytes
    Path("run.toml").write_text(BASE + f"[model]\nlayers = 32\nhidden_size = {hidden_size}\nheads = 512\n")
    code, out = outcome("run.toml", capsys)
    assert code == 1
    assert "[DSK001]" in out
    assert "[HST002]" in out
