from __future__ import annotations

import json
from pathlib import Path

import pytest

from prime_train.cli.schema import import_
from prime_train.dialects.prime_rl.schema import Generation
from prime_train.errors import UserError
from tests.facts.test_prime_rl_schema import STANDIN, interpreter


def test_the_table_goes_to_standard_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import_(interpreter(tmp_path, STANDIN), None, "2026-11")
    generation = Generation.of(json.loads(capsys.readouterr().out))
    assert generation.name == "2026-11"
    assert generation.root("trainer").row("max_steps") is not None


def test_the_table_goes_to_a_file(tmp_path: Path) -> None:
    import_(interpreter(tmp_path, STANDIN), tmp_path / "table.json", None)
    assert json.loads((tmp_path / "table.json").read_text())["source"] == "prime-rl 0.9.0"


def test_a_file_that_cannot_be_written_is_a_user_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be written"):
        import_(interpreter(tmp_path, STANDIN), tmp_path / "gone" / "table.json", None)
