"""A session on a GPU loses nothing of the other steps, whatever one does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.requirements import Requirement

from tests.unit.bench.modules import BENCH, imported

ROOT = BENCH.parent
# A session whose steps are modules of the test's folder.
SESSION = f"""
import sys
from pathlib import Path
sys.path[:0] = [{str(BENCH)!r}]
from gpu.session import Session, run_part
from gpu.steps import Step

folder, device, limit_s = Path(sys.argv[1]), sys.argv[2], float(sys.argv[3])
steps = [Step(name, "A", 0.0, limit_s, name, ()) for name in sys.argv[4:]]
path = f"{{folder}}:{BENCH}:{ROOT}/src"
sys.exit(run_part(steps, Session(device, False, folder / "results", folder, {{"PYTHONPATH": path}}, "abc"), 600.0))
"""
MODULES = {
    "good": 'bench.emit("good", value=1)',
    "raising": 'bench.emit("raising", value=1)\n    raise ValueError("not this time")',
    "failing": """
    with bench.case("first"):
        raise ValueError("not this time")
    with bench.case("second"):
        bench.emit("second", value=float("nan"))""",
    "killed": """
    bench.emit("killed", value=1)
    with open(bench.rows, "ab", buffering=0) as file:
        file.write(b'{"what": "to')
    os.kill(os.getpid(), 9)""",
    "hanging": """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    daemon = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"], start_new_session=True)
    bench.emit("hanging", pids=[os.getpid(), daemon.pid])
    signal.pause()""",
    "without_gpu": "sys.exit(4)",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, body in MODULES.items():
        head = "import os, signal, subprocess, sys\n\ndef measure(bench):\n"
        (tmp_path / f"{name}.py").write_text(f"{head}    {body.lstrip()}\n", encoding="utf-8")
    return tmp_path


@pytest.fixture(scope="module")
def modules() -> Iterator[list[ModuleType]]:
    with imported("gpu.steps", "gpu.wheels", "gpu.child", "gpu_session") as found:
        yield found


def start(folder: Path, *steps: str, limit_s: float = 120.0) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", SESSION, str(folder), "cpu", str(limit_s), *steps]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def results(folder: Path) -> dict[str, dict[str, Any]]:
    entries = json.loads((folder / "results" / "gpu_a.json").read_text(encoding="utf-8"))
    return {entry["step"]: entry for entry in entries}


def is_alive(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


# --- one step fails -------------------------------------------------------------------------------


def test_a_step_that_raises_or_is_killed_loses_nothing(folder: Path) -> None:
    session = start(folder, "raising", "killed", "failing", "good")
    output, _ = session.communicate()
    entries = results(folder)
    assert session.returncode == 1, output
    assert [(name, entry["ended"], entry["rc"]) for name, entry in entries.items()] == [
        ("raising", "exit code 1", 1),
        ("killed", "signal 9", -9),
        ("failing", "exit code 1", 1),
        ("good", "ok", 0),
    ]
    for name in ("raising", "killed", "good"):
        assert [row["value"] for row in entries[name]["rows"]] == [1], name
    assert "ValueError: not this time" in entries["raising"]["tail"]
    first, second = entries["failing"]["rows"]
    assert first["failed"] == "ValueError: not this time"
    assert second["value"] == "nan"
    assert all(entry["commit"] == "abc" and entry["date"] and entry["machine"] for entry in entries.values())
    assert all(entry["torch"] and entry["card"] == "CPU" for entry in entries.values())


def test_a_step_that_hangs_is_ended_with_what_it_started(folder: Path) -> None:
    session = start(folder, "hanging", "good", limit_s=20.0)
    output, _ = session.communicate()
    entries = results(folder)
    assert session.returncode == 1, output
    assert entries["hanging"]["ended"] == "killed at its limit of 20 s"
    assert entries["hanging"]["rc"] is None
    (row,) = entries["hanging"]["rows"]
    assert not [pid for pid in row["pids"] if is_alive(pid)]
    assert entries["good"]["ended"] == "ok"


def test_a_session_that_is_ended_leaves_its_results_and_no_process(folder: Path) -> None:
    with start(folder, "good", "hanging") as session:
        rows = folder / "gpu_a.rows.jsonl"
        while not rows.exists() or b"pids" not in rows.read_bytes():
            assert session.poll() is None
            time.sleep(0.02)
        os.kill(session.pid, signal.SIGINT)
        session.communicate()
    pids = json.loads(rows.read_text(encoding="utf-8").splitlines()[-1])["pids"]
    assert not [pid for pid in pids if is_alive(pid)]
    assert [*results(folder)] == ["good"]


def test_without_a_gpu_nothing_is_written(folder: Path) -> None:
    session = start(folder, "without_gpu", "good")
    session.communicate()
    assert session.returncode == 4
    assert not (folder / "results").exists()


def test_a_child_without_a_gpu_is_out_of_reach(
    modules: list[ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    child = modules[2]
    assert child.main(["env", "gpu.environment", "--rows", str(tmp_path / "rows")]) == 4
    assert "there is no GPU" in capsys.readouterr().out
    assert not (tmp_path / "rows").exists()


def test_a_step_without_its_packages_is_skipped_with_the_reason(modules: list[ModuleType], tmp_path: Path) -> None:
    child, rows = modules[2], tmp_path / "rows"
    options = ["--device", "cpu", "--modules", "json,no_such.thing", "--rows", str(rows)]
    assert child.main(["fp8", "gpu.fp8", *options]) == 0
    assert json.loads(rows.read_text(encoding="utf-8")) == {"skipped": "not installed here: no_such.thing"}


# --- time -----------------------------------------------------------------------------------------


def test_the_shares_of_a_part_fit_beside_its_installation(modules: list[ModuleType]) -> None:
    steps = modules[0]
    for part, seconds in steps.PART_S.items():
        own = [step for step in steps.STEPS if step.part == part]
        assert sum(step.share_s for step in own) <= seconds - 15
        assert all(step.share_s <= step.limit_s for step in own)
    assert sum(steps.PART_S.values()) <= 15 * 60 - 2 * 60


@given(left_s=st.floats(-10, 600), taken=st.lists(st.floats(0, 1), min_size=20, max_size=20))
def test_no_step_takes_the_share_of_a_later_one(modules: list[ModuleType], left_s: float, taken: list[float]) -> None:
    steps = modules[0]
    own = [step for step in steps.STEPS if step.part == "A"]
    until_s = left_s + sum(step.share_s for step in own)
    for number, (step, part) in enumerate(zip(own, taken, strict=False), 1):
        limit_s = steps.find_limit(step, tuple(own[number:]), until_s)
        assert limit_s <= step.limit_s
        if left_s >= 0:
            assert limit_s >= step.share_s - 1e-6
        until_s -= part * max(0.0, limit_s)


# --- packages -------------------------------------------------------------------------------------


def test_the_listed_wheels_are_requirements_that_the_project_allows(
    modules: list[ModuleType], capsys: pytest.CaptureFixture[str]
) -> None:
    assert modules[3].main(["--list-wheels"]) == 0
    listed = [Requirement(line.partition("#")[0]) for line in capsys.readouterr().out.splitlines()]
    assert len(listed) == len({one.name for one in listed}) == len(modules[1].WHEELS)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    asked = [
        Requirement(text) for text in (*project["dependencies"], *extras["train"], *extras["fp8"], *extras["compress"])
    ]
    allowed = {one.name.replace(".", "-"): one.specifier for one in asked}
    for one in listed:
        (version,) = (part.version for part in one.specifier)
        assert version in allowed.get(one.name.replace(".", "-"), one.specifier), one


def test_the_listed_modules_are_those_of_the_packages_that_the_project_installs(modules: list[ModuleType]) -> None:
    needed = modules[1].list_modules(("base", "train", "fp8"))
    needed = [name for name in needed if name != "backports.zstd" or sys.version_info < (3, 14)]
    script = "import sys\nfrom gpu.child import is_installed\nprint([x for x in sys.argv[1:] if not is_installed(x)])"
    command = [sys.executable, "-c", script, *needed]
    done = subprocess.run(command, cwd=BENCH, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_wheels_that_cannot_be_installed_are_reported(modules: list[ModuleType], tmp_path: Path) -> None:
    wheels = modules[1]
    assert wheels.install(tmp_path, tmp_path / "site") == ""
    (tmp_path / "broken-1.0-py3-none-any.whl").write_bytes(b"no archive")
    assert "broken" in wheels.install(tmp_path, tmp_path / "site")
    with pytest.raises(SystemExit, match="already has wheels"):
        wheels.download(tmp_path, "3.12")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ([], "name a part"),
        (["A", "--device", "cpu"], "add --tiny"),
        (["B", "--step", "varlen"], "part B has no step varlen: run, rl, memory, fp8"),
    ],
)
def test_a_wrong_command_is_refused(
    modules: list[ModuleType], words: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as refused:
        modules[3].main(words)
    assert refused.value.code == 2
    assert reason in capsys.readouterr().err


# --- one step on a CPU; tests/drills runs all of them ----------------------------------------------


def run_tiny(out: Path, *words: str) -> list[dict[str, Any]]:
    command = [sys.executable, str(BENCH / "gpu_session.py"), *words, "--device", "cpu", "--tiny"]
    done = subprocess.run(command, env=os.environ | {"OUT": str(out)}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    entries: list[dict[str, Any]] = json.loads((out / f"gpu_{words[0].lower()}.json").read_text(encoding="utf-8"))
    return entries


def test_one_step_replaces_itself_alone(tmp_path: Path) -> None:
    earlier: list[dict[str, Any]] = [
        {"step": name, "ended": "ok", "seconds": 1, "rows": [], "date": "", "commit": ""} for name in ("env", "moe")
    ]
    (tmp_path / "gpu_a.json").write_text(json.dumps(earlier), encoding="utf-8")
    entries = {entry["step"]: entry for entry in run_tiny(tmp_path, "A", "--step", "env")}
    assert entries["moe"] == earlier[1]
    assert entries["env"]["rows"][0]["what"] == "machine"
