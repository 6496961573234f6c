"""The skeletons of docs/adding.md work: each is put into a copy of the repository and used there.

The row of a program is tested by tests/system/programs/test_new_program.py, that of a scheduler by
tests/unit/away/test_new_scheduler.py, and that of a prime-rl generation by tests/tables/rules/test_new_generation.py.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from prime_train.rules.explain import BASE
from tests.unit.cli.commands import clean_environment

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "adding.md").read_text(encoding="utf-8")
ELSEWHERE = {
    "a program that trains or serves": (
        "tests/system/programs/torchtitan/program.py",
        "tests/system/programs/test_new_program.py",
    ),
    "a scheduler of other machines": ("tests/unit/away/spool/__init__.py", "tests/unit/away/test_new_scheduler.py"),
    "a prime-rl generation": ("tests/tables/rules/test_new_generation.py",),
}
_ROW = re.compile(r"^\| (an? [^|]+) \| (`[^|]+`) \| \[below\]\(#([\w-]+)\) \|$", re.MULTILINE)
_BLOCK = re.compile(r"^```(\w+) (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_KEEP = shutil.ignore_patterns("__pycache__")


class Block(NamedTuple):
    """A code block that names its file."""

    language: str
    path: str
    text: str


class Row(NamedTuple):
    """One row of the table, and the blocks of its section."""

    files: tuple[str, ...]
    blocks: tuple[Block, ...]


def _section(anchor: str) -> str:
    """The text below the heading with this anchor."""
    for part in PAGE.split("\n## ")[1:]:
        heading, _, text = part.partition("\n")
        if re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") == anchor:
            return text
    raise AssertionError(f"no section {anchor}")


def _row(files: str, anchor: str) -> Row:
    blocks = tuple(Block(*found) for found in _BLOCK.findall(_section(anchor)))
    return Row(tuple(re.findall(r"`([^`]+)`", files)), blocks)


ROWS = {thing: _row(files, anchor) for thing, files, anchor in _ROW.findall(PAGE)}


class Copy:
    """A copy of the repository with the skeleton of one row."""

    def __init__(self, root: Path, row: Row) -> None:
        self.root = root
        for name in ("src", "registry", "presets"):
            shutil.copytree(ROOT / name, root / name, ignore=_KEEP)
        shutil.copy(ROOT / "pyproject.toml", root)
        before = self._content()
        for block in row.blocks:
            _put(root / block.path, block)
        after = self._content()
        assert {path for path in after if after[path] != before.get(path)} == set(row.files)
        self._ruff(*(file for file in row.files if file.endswith(".py")))

    def _content(self) -> dict[str, bytes]:
        return {str(path.relative_to(self.root)): path.read_bytes() for path in self.root.rglob("*") if path.is_file()}

    def _ruff(self, *files: str) -> None:
        ruff = Path(sys.executable).with_name("ruff")
        for command in (("check",), ("format", "--check", "--diff")) if files else ():
            done = subprocess.run([ruff, *command, "--no-cache", *files], cwd=self.root, capture_output=True, text=True)
            assert done.returncode == 0, done.stdout + done.stderr

    def python(self, program: str, *arguments: str) -> str:
        """The output of a Python program that uses the package in the copy."""
        done = self.run("-c", program, *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def prime_train(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.run("-c", "from prime_train.cli.entry import main; main()", *arguments)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        environment = clean_environment() | {"PYTHONPATH": str(self.root / "src")}
        command = [sys.executable, *arguments]
        return subprocess.run(command, cwd=self.root, env=environment, capture_output=True, text=True, timeout=900)

    def codes(self, config: str) -> set[str]:
        """The codes of the findings of a lint."""
        (self.root / "run.toml").write_text(config, encoding="utf-8")
        done = self.prime_train("lint", "run.toml", "--output-format", "json")
        assert done.returncode in (0, 1), done.stderr
        (file,) = json.loads(done.stdout)["files"]
        return {finding["code"] for finding in file["findings"]}


def _put(path: Path, block: Block) -> None:
    """Change the file of a block, add to it, or create it."""
    if block.language != "diff":
        blank_lines = "\n\n" if path.suffix == ".py" else "\n"
        before = path.read_text(encoding="utf-8") + blank_lines if path.exists() else ""
        path.write_text(before + block.text, encoding="utf-8")
        return
    text = path.read_text(encoding="utf-8")
    for hunk in block.text.split("@@\n"):
        lines = hunk.splitlines(keepends=True)
        old = "".join(line[1:] for line in lines if line[0] in " -")
        assert text.count(old) == 1, f"{path}: {old}"
        text = text.replace(old, "".join(line[1:] for line in lines if line[0] in " +"))
    path.write_text(text, encoding="utf-8")


def _copy(tmp_path: Path, thing: str) -> Copy:
    return Copy(tmp_path, ROWS[thing])


def test_every_row_has_a_skeleton_or_names_its_test() -> None:
    assert len(ROWS) == PAGE.count("[below](#") == 14
    for thing, row in ROWS.items():
        if thing in ELSEWHERE:
            assert all((ROOT / path).is_file() for path in ELSEWHERE[thing])
            assert any(Path(path).name in PAGE for path in ELSEWHERE[thing])
        else:
            assert {block.path for block in row.blocks} == set(row.files)


@pytest.mark.parametrize(
    ("thing", "code"), [("a rule in a known family", "SCH900"), ("a rule in a new family", "DEC001")]
)
def test_a_rule_fires_on_its_bad_example_alone(tmp_path: Path, thing: str, code: str) -> None:
    copy = _copy(tmp_path, thing)
    program = (
        "import json; from prime_train.rules.families import load_all; from prime_train.rules.explain import explain; "
        f"page = explain(load_all()['{code}']); print(json.dumps([page.bad, page.good]))"
    )
    (bad,), (good,) = json.loads(copy.python(program))
    assert code in copy.codes(BASE + bad)
    assert copy.codes(BASE + good) == set()
    assert copy.prime_train("rule", code).returncode == 0


def test_a_watch_raises_its_alarm(tmp_path: Path) -> None:
    copy = _copy(tmp_path, "a watch")
    off = "\n".join(f'{key} = "off"' for key in ("gpu", "engine", "hang", "disk", "host", "preemption", "cost"))
    (tmp_path / "run.toml").write_text(f'{BASE}\n[prime_train.watch]\nload = "alert"\n{off}\n', encoding="utf-8")
    program = """
import os
from pathlib import Path
from prime_train.config import run_toml
from prime_train.core.rundir import RunDir
from prime_train.programs import program_of
from prime_train.supervise.core.state import State
from prime_train.supervise.services.watch_runner import WatchRunner
from prime_train.supervise.services.watch_runner import create_watches

run, run_dir = run_toml.read(Path("run.toml").read_text(), "run.toml").run, RunDir(Path.cwd())
runner = WatchRunner(tuple(create_watches(run, run_dir, program_of(run))), run_dir)
runner.begin()
for load in (0.0, 100_000.0):
    os.getloadavg = lambda: (load, load, load)
    print([(alarm.watch, alarm.name) for alarm in runner.look(State(), load + 10.0)])
runner.end()
"""
    assert copy.python(program).splitlines() == ["[]", "[('load', 'overloaded')]"]


def test_an_event_is_written_read_and_described(tmp_path: Path) -> None:
    copy = _copy(tmp_path, "an event kind")
    program = """
from pathlib import Path
from prime_train.events import EventLog, NoteAdded, read
from prime_train.supervise.core.event_text import describe

EventLog(Path("events"), "person").append(NoteAdded("the loss looks odd"))
print(*(describe(record.event) for record in read(Path("events"))), sep="\\n")
"""
    assert copy.python(program) == "note: the loss looks odd\n"


def test_an_environment_poses_tasks(tmp_path: Path) -> None:
    copy = _copy(tmp_path, "an environment")
    program = """
from prime_train.environments.load import open_environment
from prime_train.spec.rl import TaskSource

environment = open_environment(TaskSource(kind="upper-case"), 1)
task = environment.task("held_out", 3)
print(environment.name, environment.score(task, environment.demonstrate(task)))
"""
    assert copy.python(program) == "upper-case 1.0\n"


def test_a_key_is_accepted_and_is_in_the_schema(tmp_path: Path) -> None:
    copy = _copy(tmp_path, "a run.toml key")
    assert copy.codes(f"{BASE}[schedule]\ncooldown_steps = 10\n") == set()
    assert copy.codes(f"{BASE}[schedule]\ncooldown_steps = -1\n") != set()
    schema = copy.prime_train("schema", "export").stdout
    assert '"cooldown_steps"' in schema


def test_a_signature_is_found(tmp_path: Path) -> None:
    copy = _copy(tmp_path, "an error signature")
    line = "ValueError: tokenizer has 128256 tokens, but the embedding only has 32000 rows"
    (tmp_path / "trainer.log").write_text(f"step 1\n{line}\n", encoding="utf-8")
    cause = json.loads(copy.prime_train("diagnose", "trainer.log", "--json").stdout)["cause"]
    assert (cause["id"], cause["class"]) == ("EXAMPLE001", "config")
    assert cause["what"] == "the tokenizer has 128256 tokens, and the model embeds 32000"


def test_a_format_of_another_trainer_is_judged(tmp_path: Path) -> None:
    copy = _copy(tmp_path, "a format of another trainer")
    text = "example_trainer:\n  model: m\n  steps: 100\n  micro_batch: 3  # small\n"
    (tmp_path / "example.yaml").write_text(text, encoding="utf-8")
    finding = json.loads(copy.prime_train("lint", "example.yaml", "--json").stdout)["files"][0]["findings"][0]
    assert (finding["code"], finding["line"]) == ("EXA001", 4)
    assert finding["what"] == "micro_batch 3 does not divide batch 8"
    assert copy.prime_train("lint", "example.yaml", "--fix", "--unsafe-fixes").returncode == 0
    assert (tmp_path / "example.yaml").read_text(encoding="utf-8") == text.replace("3", "4")


def test_a_trainer_is_recognised_by_its_lines(tmp_path: Path) -> None:
    copy = _copy(tmp_path, "a profile of a trainer that this package did not write")
    log = "".join(f"update {step} of 30, cross-entropy {3 - step / 100}\n" for step in range(10, 40, 10))
    (tmp_path / "train.log").write_text(f"{log}All updates done\n", encoding="utf-8")
    document = json.loads(copy.prime_train("trainers", "check", "train.log", "--json").stdout)
    assert (document["trainer"], document["steps"]["last"], document["steps"]["total"]) == ("example", 30, 30)
    assert document["end"] == "finished: 30 of 30 optimizer steps"


def test_a_gpu_is_accepted(tmp_path: Path) -> None:
    copy = _copy(tmp_path, "a GPU")
    done = copy.prime_train("estimate", "presets/quickstart.toml", "--gpus", "2xexample-96gb", "--offline", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["memory"]["gpu"] == "example-96gb"


def test_a_command_answers(tmp_path: Path) -> None:
    copy = _copy(tmp_path, "a command")
    assert "List the GPUs that estimate --gpus accepts." in copy.prime_train("gpus", "--help").stdout
    assert "List the GPUs that estimate --gpus accepts." in copy.prime_train("--help").stdout
    assert "h100-80gb\n" in copy.prime_train("gpus").stdout


def test_the_types_of_all_skeletons_together_are_right(tmp_path: Path) -> None:
    blocks = tuple(block for row in ROWS.values() for block in row.blocks)
    copy = Copy(tmp_path, Row(tuple({block.path for block in blocks}), blocks))
    checked = ROOT / ".mypy_cache"  # of `make check`: what the skeletons do not touch is not checked once more
    if checked.is_dir():
        shutil.copytree(checked, tmp_path / ".mypy_cache")
    done = copy.run("-m", "mypy", "src")
    assert done.returncode == 0, done.stdout
