from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from prime_train.cli.app import app
from prime_train.config import run_toml
from prime_train.config.json_schema import json_schema
from prime_train.core.errors import UserError
from prime_train.registry import gpus
from prime_train.rules.explain import BASE
from prime_train.rules.judge import lint
from prime_train.toml.document import patched

KINDS = (run_toml.serving_schema(), run_toml.command_schema(), run_toml.audio_schema())
SCHEMA = json_schema(run_toml.schema(), *KINDS)


def accepts(values: dict[str, Any]) -> bool:
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema comes with check-jsonschema")
    jsonschema.Draft7Validator.check_schema(SCHEMA)
    return bool(jsonschema.Draft7Validator(SCHEMA).is_valid(values))


@pytest.mark.parametrize("preset", [name for name in gpus.presets() if not name.startswith("rl-")])
def test_presets_fit_the_schema(preset: str) -> None:
    import tomli

    assert accepts(tomli.loads(gpus.presets()[preset].read_text(encoding="utf-8")))


@pytest.mark.parametrize(
    ("patch", "fits"),
    [
        ({"optim.lr": 1}, True),
        ({"optim.lr": 0.0}, False),
        ({"optim.lr": "1e-3"}, False),
        ({"optim.learning_rate": 1e-3}, False),
        ({"schedule.kind": "cosin"}, False),
        ({"data.sources": []}, False),
        ({"run.name": None}, False),
        ({"checkpoint.async": False}, True),
        ({"checkpoint.async_save": False}, False),
        ({"eval.prompts": ["a", 1]}, False),
        ({"prime_train.restart.backoff_s": 2.5}, True),
    ],
)
def test_schema_and_lint_agree(patch: dict[str, Any], fits: bool) -> None:
    import tomli

    from prime_train.toml.edit import edited

    text = edited(BASE, patch)
    assert accepts(tomli.loads(text)) == fits
    assert accepts(patched(tomli.loads(BASE), patch)) == fits
    faults = [finding for finding in lint(text, "t.toml").findings if finding.code.startswith("CFG")]
    assert (not faults) == fits


def test_every_key_is_described() -> None:
    def undescribed(schema: dict[str, Any], at: str) -> list[str]:
        below = schema.get("properties", {})
        found = [f"{at}{key}" for key, item in below.items() if at and "description" not in item]
        return found + [path for key, item in below.items() for path in undescribed(item, f"{at}{key}.")]

    assert undescribed(SCHEMA, "") == []


def test_export_writes_to_standard_output_and_to_a_file(tmp_path: Path) -> None:
    printed = CliRunner().invoke(app, ["schema", "export"])
    assert printed.exit_code == 0
    assert json.loads(printed.stdout) == SCHEMA
    file = tmp_path / "run.schema.json"
    assert CliRunner().invoke(app, ["schema", "export", "-o", str(file)]).exit_code == 0
    assert file.read_text(encoding="utf-8") == printed.stdout
    refused = CliRunner().invoke(app, ["schema", "export", "-o", str(tmp_path / "no" / "where.json")])
    assert isinstance(refused.exception, UserError)


def test_the_schema_line_of_editors_is_a_comment() -> None:
    assert lint("#:schema ./run.schema.json\n" + BASE, "t").findings == ()


def _taplo() -> str:
    beside = Path(sys.executable).with_name("taplo")
    found = str(beside) if beside.exists() else shutil.which("taplo")
    if not found:
        pytest.skip("taplo is not installed (pip install taplo)")
    return found


@pytest.mark.parametrize(
    ("text", "code"),
    [(BASE, 0), (BASE.replace("max_steps", "max_stepz"), 1), (BASE.replace("= 512", '= "512"'), 1)],
    ids=["good", "key", "type"],
)
def test_taplo_reads_the_schema_line(tmp_path: Path, text: str, code: int) -> None:
    (tmp_path / "run.schema.json").write_text(json.dumps(SCHEMA), encoding="utf-8")
    (tmp_path / "run.toml").write_text("#:schema ./run.schema.json\n" + text, encoding="utf-8")
    command = [_taplo(), "lint", "--no-auto-config", "run.toml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == code, done.stderr


def test_export_of_prime_rl_has_the_keys_of_the_named_file(tmp_path: Path) -> None:
    made = tmp_path / "sft.json"
    result = CliRunner().invoke(
        app, ["schema", "export", "--prime-rl", "2026-08", "--root", "sft", "-o", str(made)], catch_exceptions=False
    )
    assert result.exit_code == 0
    schema = json.loads(made.read_text(encoding="utf-8"))
    assert schema["title"] == "sft of prime-rl 2026-08"
    assert {"model", "data", "optim", "prime_train"} <= schema["properties"].keys()


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (["--root", "sft"], "--root needs --prime-rl"),
        (["--prime-rl", "2026-08", "--root", "rx"], "prime-rl 2026-08 has no file rx"),
        (["--prime-rl", "2031-01"], "no generation of prime-rl is called 2031-01"),
    ],
)
def test_export_of_an_unknown_file_or_generation_is_refused(options: list[str], what: str) -> None:
    result = CliRunner().invoke(app, ["schema", "export", *options])
    assert isinstance(result.exception, UserError)
    assert result.exception.what == what
