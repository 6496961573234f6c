"""The hook that this repository offers, as pre-commit itself installs and runs it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from prime_train.rules.explain import BASE

ROOT = Path(__file__).parents[3]
HOOK = "prime-train-lint"
BAD = BASE.replace("micro_batch = 8", "micro_batch = 8\nglobal_batch = 20")


def _pre_commit() -> str:
    beside = Path(sys.executable).with_name("pre-commit")
    if not beside.exists():
        pytest.skip("pre-commit is not installed (pip install pre-commit)")
    return str(beside)


def _git(*arguments: str, cwd: Path) -> str:
    identity = ["-c", "user.name=test", "-c", "user.email=test@example.com", "-c", "commit.gpgsign=false"]
    command = ["git", *identity, *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=True, timeout=60).stdout.strip()


def _repository_of_hooks(folder: Path) -> str:
    """A repository that holds what the package is built from, and the commit that a user would name."""
    for name in ("src", "registry", "presets"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE", ".pre-commit-hooks.yaml"):
        shutil.copy(ROOT / name, folder / name)
    _git("init", "--quiet", cwd=folder)
    _git("add", ".", cwd=folder)
    _git("commit", "--quiet", "--message", "hooks", cwd=folder)
    return _git("rev-parse", "HEAD", cwd=folder)


def _run(pre_commit: str, folder: Path, home: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PRE_COMMIT_HOME": str(home), "PRE_COMMIT_COLOR": "never"}
    environment.pop("PYTHONPATH", None)  # the hook runs what was installed, not this checkout
    command = [pre_commit, "run", "--all-files", "--verbose"]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=240
    )


def test_the_hook_passes_good_configs_and_stops_bad_ones(tmp_path: Path) -> None:
    pre_commit = _pre_commit()
    hooks, user = tmp_path / "hooks", tmp_path / "user"
    hooks.mkdir()
    user.mkdir()
    commit = _repository_of_hooks(hooks)
    _git("init", "--quiet", cwd=user)
    (user / ".pre-commit-config.yaml").write_text(
        f"repos:\n- repo: {hooks}\n  rev: {commit}\n  hooks:\n  - id: {HOOK}\n", encoding="utf-8"
    )
    (user / "run.toml").write_text(BASE, encoding="utf-8")
    (user / "pyproject.toml").write_text('[project]\nname = "x"\n', encoding="utf-8")
    (user / "compose.yaml").write_text("services: {}\n", encoding="utf-8")
    (user / "package.json").write_text("{}\n", encoding="utf-8")
    _git("add", ".", cwd=user)
    good = _run(pre_commit, user, tmp_path / "home")
    if good.returncode == 3 and "pip" in good.stdout:
        pytest.skip("pre-commit could not install the hook: no package index in reach")
    assert good.returncode == 0, good.stdout + good.stderr
    assert "1 file is clean" in good.stdout
    (user / "bad.toml").write_text(BAD, encoding="utf-8")
    _git("add", ".", cwd=user)
    bad = _run(pre_commit, user, tmp_path / "home")
    assert bad.returncode == 1, bad.stdout + bad.stderr
    assert "error[BAT001] bad.toml:13:1  batch.global_batch = 20" in bad.stdout
    assert "1 error in 2 files" in bad.stdout
