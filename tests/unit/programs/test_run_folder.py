from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest

from prime_train.checkpoints.layout import write_manifest
from prime_train.facts.facts import RunFolder
from prime_train.programs import program_of
from prime_train.rules.explain import BASE, BASES
from prime_train.rules.judge import lint
from prime_train.spec import RunSpec
from prime_train.spec.answers import prime_rl_of, replace_parts
from prime_train.spec.prime_rl_parts import Resume, Saving
from tests.fakes.prime_rl_launcher.standin import metadata


def run_of(text: str) -> RunSpec:
    run = lint(text, "run.toml").run
    assert run is not None
    return run


NATIVE, RL = run_of(BASE), run_of(BASES["prime-rl 2026-08"])


def run_folder(run: RunSpec, folder: Path) -> RunFolder:
    return program_of(run).run_folder(run, folder)


def saved(folder: Path, *files: str, at: float = 0.0) -> Path:
    for name in files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(metadata({}) if name.endswith(".metadata") else b"x")
    os.utime(folder, (at, at))
    return folder


def test_nothing_is_there(tmp_path: Path) -> None:
    found = run_folder(NATIVE, tmp_path / "mine")
    assert (found.holder, found.checkpoints, found.target, found.step_s) == ("", (), None, None)
    assert list(tmp_path.iterdir()) == []


def test_a_live_holder_is_named_and_a_dead_one_is_not(tmp_path: Path) -> None:
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    lock = tmp_path / "lock"
    with open(lock, "w", buffering=1) as held:
        held.write(f"{os.getpid()}:{ticks} {socket.gethostname()}\n")
        assert run_folder(NATIVE, tmp_path).holder == f"process {os.getpid()} on {socket.gethostname()}"
    assert run_folder(NATIVE, tmp_path).holder == ""  # a process that does not hold the file has no part in the run
    lock.write_text(f"{os.getpid()}:{ticks + 1} {socket.gethostname()}\n")  # the number went to another process
    assert run_folder(NATIVE, tmp_path).holder == ""
    lock.write_text("4194304:1 elsewhere.example.org\n")
    assert run_folder(NATIVE, tmp_path).holder == "process 4194304 on elsewhere.example.org"
    lock.write_text("")
    assert run_folder(NATIVE, tmp_path).holder == ""


def test_checkpoints_and_steps_of_our_own(tmp_path: Path) -> None:
    write_manifest(saved(tmp_path / "checkpoints" / "step_10", "weights", ".metadata"), 10)
    saved(tmp_path / "checkpoints" / "step_20", "weights")
    lines = [json.dumps({"step": step, "step_s": seconds}) for step, seconds in enumerate((9.0, 2.0, 3.0), 1)]
    (tmp_path / "metrics.jsonl").write_text("\n".join([*lines, '{"step": 4, "ste']))
    found = run_folder(NATIVE, tmp_path)
    assert [(item.step, bool(item.problem)) for item in found.checkpoints] == [(20, True), (10, False)]
    assert (found.step_s, found.timed_steps) == (3.0, 3)


def test_checkpoints_of_prime_rl(tmp_path: Path) -> None:
    steps = tmp_path / "checkpoints"
    whole = ("trainer/.metadata", "orchestrator/progress.pt")
    saved(steps / "step_50", *whole, at=1000.0)
    saved(steps / "step_100", *whole, at=1500.0)
    saved(steps / "step_150", "trainer/.metadata", at=9000.0)
    saved(steps / "step_200", "trainer/__0_0.distcp", at=9900.0)
    found = run_folder(RL, tmp_path)
    assert [item.step for item in found.checkpoints] == [200, 150, 100, 50]
    assert "the trainer's save" in found.checkpoints[0].problem
    assert "the orchestrator's save" in found.checkpoints[1].problem
    assert [item.problem for item in found.checkpoints[2:]] == ["", ""]
    assert (found.step_s, found.timed_steps) == (10.0, 1)  # 500 s for 50 steps; the incomplete ones do not count


def test_checkpoints_that_are_kept_elsewhere(tmp_path: Path) -> None:
    saved(tmp_path / "kept" / "step_50", "trainer/.metadata", "orchestrator/progress.pt")
    run = replace_parts(RL, saving=Saving(output_dir=str(tmp_path / "kept")))
    assert [item.step for item in run_folder(run, tmp_path / "mine").checkpoints] == [50]


@pytest.mark.parametrize(
    ("name", "files", "problem"),
    [
        ("step_50", ("trainer/.metadata", "orchestrator/progress.pt"), ""),
        ("step_50", ("trainer/.metadata",), "no orchestrator/progress.pt"),
        ("best", ("trainer/.metadata",), "its name is not step_N"),
        ("step_70", (), "there is no such folder"),
    ],
)
def test_the_folder_to_go_on_from(tmp_path: Path, name: str, files: tuple[str, ...], problem: str) -> None:
    if files:
        saved(tmp_path / name, *files)
    found = run_folder(replace_parts(RL, resume=Resume(dir=str(tmp_path / name))), tmp_path / "mine").target
    assert found is not None
    assert found.problem.startswith(problem)
    assert bool(found.problem) == bool(problem)


def test_what_an_earlier_run_left(tmp_path: Path) -> None:
    parts = prime_rl_of(RL)
    saved(tmp_path, "configs/rl.toml", "rl.sbatch", "job_12.log", "logs/rl.log", "metrics.jsonl")
    assert run_folder(RL, tmp_path).leftovers == ("logs", "metrics.jsonl")
    assert parts.launch is not None
    unnamed = replace_parts(RL, launch=parts.launch._replace(run_name=None, run_dir=None))
    assert run_folder(unnamed, tmp_path).leftovers == ()


def test_files_that_no_run_of_ours_wrote(tmp_path: Path) -> None:
    saved(tmp_path, "checkpoints/step_5/model.pt", "lock")
    assert run_folder(NATIVE, tmp_path).leftovers == ("checkpoints",)
    saved(tmp_path, "events/supervisor.jsonl")
    assert run_folder(NATIVE, tmp_path).leftovers == ()
