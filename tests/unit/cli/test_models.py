"""`prime-train models`: the registry, listed and shown."""

from __future__ import annotations

import json
from pathlib import Path

from prime_train.registry import models
from tests.unit.cli.commands import prime_train


def test_every_model_is_listed(tmp_path: Path) -> None:
    lines = prime_train("models", "list", cwd=tmp_path).stdout.splitlines()
    assert [line.split()[0] for line in lines[1:]] == list(models.tested_models())


def test_the_list_as_json(tmp_path: Path) -> None:
    said = json.loads(prime_train("models", "list", "--json", cwd=tmp_path).stdout)
    assert said["version"] == 1
    assert len(said["models"]) == len(models.tested_models())
    (one,) = [model for model in said["models"] if model["name"] == "Qwen/Qwen3-4B-Instruct-2507"]
    assert one["prime_rl"] == ["2026-01", "2026-05", "2026-08"]
    assert one["tool_parser"] == "hermes"


def test_one_model_with_its_issues_and_their_sources(tmp_path: Path) -> None:
    done = prime_train("models", "show", "openai/gpt-oss-20b", cwd=tmp_path)
    assert done.returncode == 0
    assert "MXFP4" in done.stdout
    assert "source: PrimeIntellect-ai/prime-rl pull request 3424" in done.stdout
    said = json.loads(prime_train("models", "show", "openai/gpt-oss-20b", "--json", cwd=tmp_path).stdout)
    assert said["models"][0]["vllm_known"] == "0.10.2+"


def test_a_name_that_is_nearly_one(tmp_path: Path) -> None:
    done = prime_train("models", "show", "Qwen/Qwen3-4B-Instruct-2506", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "did you mean Qwen/Qwen3-4B-Instruct-2507?" in done.stderr
