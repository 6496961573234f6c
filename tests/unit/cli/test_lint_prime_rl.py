from __future__ import annotations

import json
from pathlib import Path

import pytest

from prime_train.cli.lint.files import check
from prime_train.cli.lint.fix import Repair
from prime_train.core.errors import UserError
from tests.unit.config.prime_rl.files import OVERLAY_2026_08, RL_2026_01, RL_2026_08


def test_two_files_are_judged_as_one_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("base.toml").write_text(RL_2026_08)
    Path("over.toml").write_text(OVERLAY_2026_08.replace("group_size = 16", "group_size = 0"))
    output, ok = check(["base.toml", "+", "over.toml"], output_format="concise")
    assert not ok
    assert "over.toml:5:1: error[CFG004]" in output


def test_files_of_both_kinds_in_one_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rl.toml").write_text(RL_2026_08)
    Path("run.toml").write_text('[run]\nname = "a"\nmax_steps = 10\n[[data.sources]]\nkind = "python-stdlib"\n')
    Path("pyproject.toml").write_text('[project]\nname = "x"\n')
    output, _ = check(["."], output_format="json", prime_rl="2026-08")
    files = json.loads(output)["files"]
    assert [(file["path"], file["dialect"], file["generation"], file["root"]) for file in files] == [
        ("rl.toml", "prime-rl", "2026-08", "rl"),
        ("run.toml", "prime-train", None, "run"),
    ]


def test_a_generation_can_be_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "rl.toml"
    file.write_text(RL_2026_01)
    output, ok = check([str(file)], wanted=("CFG",), output_format="concise", prime_rl="2026-08")
    assert not ok
    assert "renamed in 2026-08: orchestrator.group_size" in output
    with pytest.raises(UserError, match="no generation"):
        check([str(file)], prime_rl="2026-13")


@pytest.mark.parametrize("paths", [["+", "a.toml"], ["a.toml", "+"]])
def test_a_plus_needs_a_file_on_both_sides(paths: list[str]) -> None:
    with pytest.raises(UserError, match="needs a file on each side"):
        check(paths)


def test_merged_files_are_not_fixed(tmp_path: Path) -> None:
    file = tmp_path / "rl.toml"
    file.write_text(RL_2026_08)
    with pytest.raises(UserError, match="cannot fix merged files"):
        check([str(file), "+", str(file)], repair=Repair(write=True))
