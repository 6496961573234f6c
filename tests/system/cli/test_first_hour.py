"""The first hour of a new user, on terminals of 80 columns: each test is a scene, and goes on from the one before."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from prime_train.core.rundir import RunDir
from prime_train.events import AttemptEnded, read
from prime_train.views.run.status import fold_events
from tests.system.cli.terminal import COLUMNS, Terminal, write_program
from tests.unit.cli import small
from tests.unit.cli.commands import wait_until

pytestmark = [pytest.mark.timeout(1200)]
ROOT = Path(__file__).resolve().parents[3]
ENDLESS = small.CONFIG.replace("max_steps = 12", "max_steps = 1000000").replace(
    "interval_steps = 6", "interval_steps = 500"
)
LONGEST_WORD = 40  # a path or a command beside a label stays whole

Start = Callable[..., Terminal]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the user, with the text to train on."""
    folder = tmp_path_factory.mktemp("h")
    small.write(folder)
    (folder / "run.toml").write_text(ENDLESS, encoding="utf-8")
    write_program(folder)
    return folder


@pytest.fixture
def start(home: Path) -> Iterator[Start]:
    """Starts a command on a terminal of its own."""
    open_terminals: list[Terminal] = []

    def start_one(*arguments: str, program: str = "prime-train", **options: str) -> Terminal:
        terminal = Terminal(home / program, *arguments, cwd=home, **options)
        open_terminals.append(terminal)
        return terminal

    yield start_one
    for terminal in open_terminals:
        terminal.close()


def _shown(terminal: Terminal, code: int = 0) -> str:
    """What a command has printed, once it has ended with this exit code and fitted its terminal."""
    assert terminal.end() == code, terminal.shown
    _check_width(terminal)
    return terminal.shown


def _check_width(terminal: Terminal) -> None:
    assert "Traceback" not in terminal.shown
    rows = [row.removesuffix("^C") for row in terminal.rows]  # the terminal echoes Ctrl-C where the cursor stands
    wide = [row for row in rows if len(row) > COLUMNS and len(row.split()[-1]) <= LONGEST_WORD]
    assert not wide


@pytest.mark.usefixtures("forked_trainers")
def test_scene_0_the_demo_trains_and_shows_its_results(start: Start) -> None:
    small_model = ("model.layers=1", "model.hidden_size=32", "data.ctx_tokens=32", "tokenizer.vocab_size=300")
    shorter = ("run.max_steps=6", "eval.interval_steps=3", "checkpoint.interval_steps=3")
    options = [word for assignment in (*small_model, *shorter) for word in ("--set", assignment)]
    shown = _shown(start("run", "quickstart", "--run-name", "demo", *options))
    assert "demo finished: step 6 of 6" in shown
    for label in ("held-out loss", "checkpoint", "report", "train longer"):
        assert f"\n  {label}  " in shown.replace("\r", "")


@pytest.mark.usefixtures("forked_trainers")
def test_scene_1_a_run_is_checked_killed_followed_and_stopped(home: Path, start: Start) -> None:
    assert "quickstart" in _shown(start("presets", "list"))
    assert "is a copy of the preset quickstart" in _shown(start("presets", "copy", "quickstart", "mine.toml"))
    assert "2 files are clean" in _shown(start("lint", "run.toml", "mine.toml"))

    run = start("run")  # run.toml of this folder
    run.wait_for(r"step \d+ of 1,000,000")
    follower = start("logs", "small", "--follow")
    follower.wait_for(r"step \d+")
    killer = subprocess.run([sys.executable, ROOT / "docs" / "kill_once.py", "small", "8"], cwd=home, check=False)
    assert killer.returncode == 0
    run.wait_for(r"attempt 2, 1 restart")
    run_dir = RunDir(home / "runs" / "small")
    wait_until(lambda: fold_events(run_dir).state == "running" and fold_events(run_dir).attempt_number == 2)
    planned = next(row for row in run.rows if "on purpose" in row)
    assert planned.startswith(tuple("0123456789"))  # a line of its own, with its time
    assert "signal 9" in run.shown

    assert "attempt 1 failed" in run.shown
    shown = _shown(start("status"))
    assert "small  running" in shown
    assert "1 restart" in _shown(start("status", "small"))
    run.wait_for(r"checkpoint step \d+")
    stopped = _shown(start("stop", "small"))
    assert "small stopped at step" in stopped
    assert run.end() == 75
    assert "continue" in run.shown
    _check_width(run)
    assert follower.end() == 0
    _check_width(follower)
    assert "killed by signal 9" in follower.shown


@pytest.mark.usefixtures("forked_trainers")
def test_scene_2_the_config_is_changed_and_the_run_resumed_to_its_end(home: Path, start: Start) -> None:
    before = fold_events(RunDir(home / "runs" / "small")).step
    run = start("run", "run.toml")
    run.wait_for(rf"step (?!{before:,} )\d+ of 1,000,000")
    run.press(b"\x03")
    assert "continue" in _shown(run, 75)

    reached = fold_events(RunDir(home / "runs" / "small")).step
    assert reached > before
    refused = start("run", "run.toml", "--set", "model.layers=2")
    assert "model.layers" in _shown(refused, 2)
    assert "nothing" in _shown(start("run", "run.toml", "--set", "run.max_steps=1"), 2)

    (home / "longer.toml").write_text(f"[run]\nmax_steps = {reached + 12}\n", encoding="utf-8")
    shown = _shown(start("run", "run.toml", "+", "longer.toml", "--set", "optim.lr=1e-4"))
    assert f"small finished: step {reached + 12:,} of {reached + 12:,}" in shown
    assert "restart 1" in shown
    ended = [record.event for record in read(RunDir(home / "runs" / "small").events)]
    assert [event.outcome for event in ended if isinstance(event, AttemptEnded)] == [
        "failed",
        "stopped",
        "stopped",
        "finished",
    ]


def test_scene_3_the_results_are_read_and_the_disk_is_cleaned(home: Path, start: Start) -> None:
    report = home / "runs" / "small" / "report.md"
    report.unlink()
    assert "report.md" in _shown(start("report", "small"))
    assert "killed by signal 9" in report.read_text(encoding="utf-8")
    assert "used by a resume" in _shown(start("ckpt", "list", "small"))
    assert "delete" in _shown(start("ckpt", "prune", "small", "--keep-last", "1", "--dry-run"))
    assert "DID" in _shown(start("ckpt", "prune", "small", "--keep-last", "1"))
    assert "SMALLER BY" in _shown(start("ckpt", "compress", "small"))
    assert "verified" in _shown(start("ckpt", "verify", "small"))


@pytest.mark.usefixtures("forked_trainers")
def test_scene_4_it_goes_on_in_the_background_from_the_packed_checkpoint(home: Path, start: Start) -> None:
    longer = fold_events(RunDir(home / "runs" / "small")).step + 12
    (home / "longer.toml").write_text(f"[run]\nmax_steps = {longer}\n", encoding="utf-8")
    shown = _shown(start("run", "run.toml", "+", "longer.toml", "--detach"))
    assert "small runs in the background as process" in shown
    follower = start("logs", "small", "--follow")
    assert f"step {longer}" in _shown(follower).replace(",", "")
    assert "finished" in _shown(start("status", "small"))


def test_scene_5_without_torch_everything_but_training_runs(home: Path, start: Start) -> None:
    python = _write_environment_without_torch(home / "base")
    assert "clean" in _shown(start("lint", "run.toml", python=python))
    shown = _shown(start("run", "run.toml", "--run-name", "other", python=python), 1)
    assert "torch" in shown
    assert "pip install" in " ".join(shown.split())
    assert not (home / "runs" / "other").exists()


def test_scene_6_a_server_without_vllm_is_refused_with_the_command_that_installs_it(start: Start) -> None:
    shown = _shown(start("run", "serve"), 1)
    assert "vllm" in shown
    assert "pip install" in " ".join(shown.split())


def _write_environment_without_torch(folder: Path) -> str:
    """An environment like that of these tests, without torch: the interpreter, and links to every other package."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if not path.name.startswith(("torch", "nvidia_", "triton")):
            (packages / path.name).symlink_to(path)
    source = Path(os.fspath(sys.modules["prime_train"].__path__[0])).parent
    (packages / "source.pth").write_text(f"{source}\n", encoding="utf-8")
    return str(folder / "bin" / "python")
