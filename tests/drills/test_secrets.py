"""A secret of the environment reaches the child, and no file of a run but that child's own log."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.drills.drill import Row, carry_out
from tests.drills.rows_silence import LIMIT_S
from tests.drills.scene import PROGRAM

SECRETS = {
    "HF_TOKEN": "hf-not-of-the-usual-shape-1",
    "WANDB_API_KEY": 'quo"ted\\and back',
    "DB_PASSWORD": "pässwörd mit Leerzeichen",
    "MY_SECRET": "per%cent&amp=1",
    "AWS_SECRET_ACCESS_KEY": "zZ/9+aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "https_proxy": "http://anna:hunter22hunter@127.0.0.1:1",
}
HIDDEN = [value for name, value in SECRETS.items() if name != "https_proxy"] + ["hunter22hunter"]
_CHILDS_OWN = "trainer.log"


def _forms(secret: str) -> list[bytes]:
    return [form.encode() for form in (secret, json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1])]


def _holds(text: bytes) -> list[str]:
    return [secret for secret in HIDDEN if any(form in text for form in _forms(secret))]


@pytest.mark.parametrize("victim", ["prints_secrets", "sleeps_on_secrets"])
def test_no_file_of_a_run_holds_a_secret(victim: str, tmp_path: Path) -> None:
    row = Row(
        "a secret",
        victim,
        "",
        victim=victim,
        options={"secrets": ",".join(SECRETS), "times": "always"},
        policy={"step_limit_s": LIMIT_S, "max_fruitless_attempts": 1},
        variables=SECRETS,
    )
    carry_out(row, tmp_path / "here", tmp_path / "cache")
    run_dir = tmp_path / "here" / "runs" / "drill"
    written = [path for path in run_dir.rglob("*") if path.is_file() and path.name != _CHILDS_OWN]
    assert {"launch-trainer.json", "report.md", "supervisor.jsonl", "resolved.json"} <= {path.name for path in written}
    assert not {str(path): _holds(path.read_bytes()) for path in written if _holds(path.read_bytes())}
    log = run_dir / "attempts" / "001" / _CHILDS_OWN
    assert _holds(log.read_bytes()) == HIDDEN, "the child has them"
    shown = (
        ("status", str(run_dir)),
        ("status", str(run_dir), "--json"),
        ("report", str(run_dir)),
        ("diagnose", str(log)),
    )
    for arguments in shown:
        assert not _holds(_shown(arguments, run_dir.parents[1]))


def test_the_plan_names_secrets_and_shows_none(tmp_path: Path) -> None:
    shown = _shown(("run", "quickstart", "--dry-run", "--no-validate"), tmp_path)
    assert not _holds(shown)
    for name in SECRETS:
        assert f"{name}=•••".encode() in shown


def _shown(arguments: tuple[str, ...], folder: Path) -> bytes:
    done = subprocess.run([PROGRAM, *arguments], cwd=folder, env=os.environ | SECRETS, capture_output=True, check=False)
    assert done.returncode in (0, 1), done  # 1 = a cause was found
    return done.stdout + done.stderr
