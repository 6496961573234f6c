"""resolved.json is read back as it was written, also where an earlier version wrote it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from prime_train.config import detect
from prime_train.spec import RunSpec, from_json, to_json
from prime_train.spec.answers import prime_rl_of, replace_parts

FOLDER = Path(__file__).parent / "run_directories"
NAMES = sorted(path.stem for path in FOLDER.glob("*.json"))


def read_config(name: str) -> RunSpec:
    run = detect.read((FOLDER / f"{name}.toml").read_text(), "run.toml").run
    assert run is not None
    return run


@pytest.mark.parametrize("name", NAMES)
def test_a_run_directory_without_a_format_has_the_run_of_its_config(name: str) -> None:
    text = (FOLDER / f"{name}.json").read_text()
    assert '"format"' not in text
    assert _without_later(from_json(text)) == _without_later(read_config(name))


def _without_later(run: RunSpec) -> RunSpec:
    """The run without the settings that the versions which wrote these files did not keep."""
    trainer = prime_rl_of(run).trainer
    return run if trainer is None else replace_parts(run, trainer=trainer._replace(fp8=None, grouped_experts=None))


@pytest.mark.parametrize("name", NAMES)
def test_what_is_written_is_read_back(name: str) -> None:
    run = read_config(name)
    assert from_json(to_json(run)) == run
    assert from_json(json.dumps(json.loads(to_json(run)))) == run  # as another program writes it, in one line


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"run": 1}', '{"format": "yaml"}', "[" * 100_000])
def test_a_text_that_is_no_run_is_refused(text: str) -> None:
    with pytest.raises(ValidationError):
        from_json(text)
