from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from prime_train.cli.validate import validate
from prime_train.core.errors import UserError
from prime_train.registry import gpus
from prime_train.rules.explain import BASE, BASES
from prime_train.rules.judge import needs


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def outcome(config: str, capsys: pytest.CaptureFixture[str], **options: Any) -> tuple[int, str]:
    code = 0
    try:
        validate([config], **options)
    except typer.Exit as end:
        code = end.exit_code
    return code, capsys.readouterr().out


def test_the_quickstart_can_run_here(capsys: pytest.CaptureFixture[str]) -> None:
    code, out = outcome("quickstart", capsys)
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


def test_a_home_directory_is_meant_by_a_tilde(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    config = gpus.presets()["quickstart"].read_text().replace("[run]\n", '[run]\ndir = "~/here"\n')
    Path("run.toml").write_text(config)
    facts = json.loads(outcome("run.toml", capsys, as_json=True)[1])["facts"]
    assert facts["save_dir"]["path"] == str(tmp_path / "here" / "quickstart")


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
    Path("model/config.json").write_text('{"model_type": "mamba"}')
    Path("run.toml").write_text(
        BASE.replace('kind = "python-stdlib"', 'kind = "files"\npath = "corpus"')
        + '[model]\npath = "model"\ninit = "random"\n'
    )
    code, out = outcome("run.toml", capsys)
    assert code == 1
    assert "corpus: the file is empty" in out
    assert 'model_type is "mamba", not llama, qwen3, qwen2, mistral, gpt2, qwen3_moe or glm4_moe' in out


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
        validate(["gone.toml"])


def test_a_little_disk_is_too_little(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    free_bytes = shutil.disk_usage(tmp_path).free
    hidden_size = 65536  # 12 bytes x 32 layers x 12 x width^2: twenty terabytes a checkpoint
    assert 12 * 32 * 12 * hidden_size**2 > free_bytes
    Path("run.toml").write_text(BASE + f"[model]\nlayers = 32\nhidden_size = {hidden_size}\nheads = 512\n")
    code, out = outcome("run.toml", capsys)
    assert code == 1
    assert "[DSK001]" in out
    assert "[HST002]" in out


# --- files of prime-rl ---------------------------------------------------------------------------

PRIME_RL = BASES["prime-rl 2026-08"]


def reported(out: str) -> dict[str, dict[str, Any]]:
    return {finding["code"]: finding for finding in json.loads(out)["files"][0]["findings"]}


def test_a_run_of_prime_rl_on_a_machine_without_gpus(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    Path("rl.toml").write_text(PRIME_RL)
    code, out = outcome("rl.toml", capsys, as_json=True, offline=True)
    assert code == 1
    assert reported(out)["GPU002"]["key"] == "deployment.num_train_gpus"
    assert reported(out)["GPU002"]["line"] == PRIME_RL.split("\n").index("num_train_gpus = 2") + 1
    skipped = {skip["code"]: skip["reason"] for skip in json.loads(out)["skipped"]}
    assert "--python PATH" in skipped["PKG003"]
    assert "not in the local cache" in skipped["SRV002"]


def test_a_run_is_judged_for_another_machine(capsys: pytest.CaptureFixture[str]) -> None:
    Path("rl.toml").write_text(PRIME_RL)
    code, out = outcome("rl.toml", capsys, as_json=True, offline=True, gpus="8xh100-80gb")
    assert code == 0, out
    assert {"GPU002", "GPU005"} <= set(json.loads(out)["passed"])
    code, out = outcome("rl.toml", capsys, as_json=True, offline=True, gpus="2xh100-80gb")
    assert code == 1
    assert "the run takes 4 GPUs, and there are 2 visible" in reported(out)["GPU002"]["what"]


def test_the_interpreter_that_is_named_is_asked(capsys: pytest.CaptureFixture[str]) -> None:
    Path("rl.toml").write_text(f'{PRIME_RL}\n[prime_train]\npython = "{sys.executable}"\n')
    _, out = outcome("rl.toml", capsys, as_json=True, offline=True)
    assert "cannot import reverse_text" in reported(out)["PKG003"]["what"]
    assert reported(out)["PKG003"]["key"] == "orchestrator.train.source.0.env.taskset.id"
    _, out = outcome("rl.toml", capsys, as_json=True, offline=True, python="/no/such/python")
    assert "PKG003" in {skip["code"] for skip in json.loads(out)["skipped"]}


def test_unknown_gpus_are_a_user_error() -> None:
    with pytest.raises(UserError, match="9xabacus"):
        validate(["quickstart"], gpus="9xabacus")


OFFLINE = """
import os
import sys

def no_socket(event, arguments):
    if event.startswith("socket."):
        os.write(2, f"a socket: {event} {arguments}".encode())
        os._exit(99)

sys.addaudithook(no_socket)
"""


def audited(tmp_path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """`validate rl.toml --json` where an audit hook, which children load too, ends who opens a socket."""
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    (hooks / "sitecustomize.py").write_text(OFFLINE)
    Path("rl.toml").write_text(PRIME_RL + '\n[monitors.wandb]\nproject = "mine"\n')
    path = os.pathsep.join([str(hooks), *sys.path])
    program = "from prime_train.cli.app import main; main()"
    command = [sys.executable, "-c", program, "validate", "rl.toml", "--json", *options]
    return subprocess.run(command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=False)


def test_the_hook_ends_who_opens_a_socket(tmp_path: Path) -> None:
    done = audited(tmp_path)
    assert done.returncode == 99
    assert "a socket" in done.stderr


@pytest.mark.parametrize("options", [[], ["--gpus", "8xh100-80gb"], ["--python", sys.executable]])
def test_offline_opens_no_socket_in_any_process(tmp_path: Path, options: list[str]) -> None:
    done = audited(tmp_path, "--offline", *options)
    assert done.returncode in (0, 1), done.stderr
    document = json.loads(done.stdout)
    assert "a socket" not in done.stdout + done.stderr
    assert document["facts"]["hub"]["not_known"]
