from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from prime_train.cli.schema import import_
from prime_train.config.prime_rl.schema import SchemaGeneration
from prime_train.core.errors import UserError
from tests.system.facts.test_prime_rl_schema import STANDIN, interpreter


def test_the_table_goes_to_standard_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import_(interpreter(tmp_path, STANDIN), None, "2026-11")
    written = capsys.readouterr()
    table = json.loads(written.out)
    assert f"features: those of {table['inherits']}" in written.err
    generation = SchemaGeneration.of(table)
    assert generation.name == "2026-11"
    assert "max_steps" in generation.roots["trainer"].fields


def test_the_table_goes_to_a_file(tmp_path: Path) -> None:
    import_(interpreter(tmp_path, STANDIN), tmp_path / "table.json", None)
    assert json.loads((tmp_path / "table.json").read_text())["source"] == "prime-rl 0.9.0"


def test_a_file_that_cannot_be_written_is_a_user_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be written"):
        import_(interpreter(tmp_path, STANDIN), tmp_path / "gone" / "table.json", None)


def test_a_kept_table_is_one_that_lint_judges_by(tmp_path: Path) -> None:
    environment = os.environ | {"PRIME_TRAIN_CACHE": str(tmp_path / "kept")}

    def prime_train(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [str(Path(sys.executable).with_name("prime-train")), *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    python = interpreter(tmp_path, STANDIN)
    config = tmp_path / "train.toml"
    config.write_text("max_stepz = 4\n")
    asked = prime_train("lint", str(config), "--prime-rl", "2031-01")
    assert (asked.returncode, "no generation of prime-rl is called 2031-01" in asked.stderr) == (2, True)
    imported = prime_train("schema", "import", "--python", python, "--generation", "2031-01", "--keep")
    assert (imported.returncode, imported.stdout) == (0, "")
    assert "prime-train lint --prime-rl 2031-01" in imported.stderr
    asked = prime_train("lint", str(config), "--prime-rl", "2031-01", "--output-format", "concise")
    assert "max_stepz is not a key of the file in prime-rl 2031-01" in asked.stdout
    (tmp_path / "kept" / "prime_rl" / "2031-01.json").write_text("{")
    asked = prime_train("lint", str(config), "--prime-rl", "2031-01")
    assert (asked.returncode, "Traceback" in asked.stderr, "the table of prime-rl cannot be read" in asked.stderr) == (
        2,
        False,
        True,
    )


def test_a_generation_is_named_by_year_and_month(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not a name for a generation"):
        import_(interpreter(tmp_path, STANDIN), None, "../elsewhere", keep=True)


def test_a_root_that_does_not_import_is_an_error(tmp_path: Path) -> None:
    packages = tmp_path / "packages"
    shutil.copytree(STANDIN, packages)
    (packages / "prime_rl" / "configs" / "sft.py").write_text("raise ImportError('no such name')\n")
    with pytest.raises(UserError, match=r"root sft cannot be read: prime_rl\.configs\.sft: ImportError: no such name"):
        import_(interpreter(tmp_path, packages), None, "2026-11")
