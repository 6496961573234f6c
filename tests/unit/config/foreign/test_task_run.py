"""The commands of a SkyPilot task are judged as those of a script, each at its line in the file of the task."""

from __future__ import annotations

from pathlib import Path

import pytest

from prime_train.config import detect
from prime_train.rules.judge import judge

HEAD = "name: a\nnum_nodes: 1\nresources: {accelerators: H100:8}\n"
COMMAND = "torchrun --standalone --nnodes 2 --nproc_per_node 8 train.py"
BLOCK = f"{HEAD}run: |\n  # first\n\n  {COMMAND}\n"
SECOND = f"name: b\nresources: {{cpus: 4}}\nrun: echo\n---\n{BLOCK}"


def _lines(tmp_path: Path, text: str) -> list[int]:
    path = tmp_path / "task.yaml"
    path.write_text(text, encoding="utf-8")
    found = judge(detect.read(text, str(path))).findings
    return [one.span.line for one in found if one.code == "TRU002"]


@pytest.mark.parametrize(
    ("text", "line"),
    [(f"{HEAD}run: {COMMAND}\n", 4), (BLOCK, 7), (SECOND, 11), (f"{HEAD}run: |-\n  X=$Y\n  {COMMAND}\n", 6)],
    ids=["one line", "a block", "the second task", "with a variable"],
)
def test_a_finding_is_at_its_line(tmp_path: Path, text: str, line: int) -> None:
    assert _lines(tmp_path, text) == [line]


def test_a_text_that_yaml_folds_is_left_alone(tmp_path: Path) -> None:
    assert _lines(tmp_path, f"{HEAD}run: >\n  cd code;\n  {COMMAND}\n") == []


def test_a_task_without_commands_has_no_other_part(tmp_path: Path) -> None:
    path = tmp_path / "task.yaml"
    reading = detect.read(f"{HEAD}setup: pip install a\nrun: ''\n", str(path))
    assert [part.format for part in reading.foreign or ()] == ["skypilot"]


@pytest.mark.parametrize(
    ("workdir", "run", "found"),
    [
        ("workdir: .\n", "bash train.sh", True),
        ("workdir: .\n", "cd code; bash train.sh", False),
        ("workdir: .\n", "bash other.sh", False),
        ("workdir: elsewhere\n", "bash train.sh", False),
        ("workdir: {url: https://example.org/a.git}\n", "bash train.sh", False),
        ("", "bash train.sh", False),
    ],
)
def test_a_script_that_a_task_starts_is_read_if_it_is_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workdir: str, run: str, found: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "train.sh").write_text(f"# first\n{COMMAND}\n", encoding="utf-8")
    text = f"{HEAD}{workdir}run: {run}\n"
    findings = judge(detect.read(text, "task.yaml")).findings
    assert [(one.path, one.span.line) for one in findings if one.code == "TRU002"] == [("train.sh", 2)] * found
