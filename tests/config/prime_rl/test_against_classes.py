"""Mutants of prime-rl files, judged by its own classes and by us; docs/prime_rl.md describes how to get the classes."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
STANDIN = ROOT / "tests" / "fakes" / "prime_rl_standin"
CLASSES = os.environ.get("PRIME_RL_CLASSES", "")
EXAMPLES = os.environ.get("PRIME_RL_EXAMPLES", "")


@pytest.fixture(scope="module")
def bench() -> Any:
    sys.path.insert(0, str(ROOT / "bench"))
    try:
        import lint_differential
    finally:
        sys.path.pop(0)
    return lint_differential


@pytest.mark.slow
@pytest.mark.skipif(not (CLASSES and EXAMPLES), reason="PRIME_RL_CLASSES and PRIME_RL_EXAMPLES: docs/prime_rl.md")
@pytest.mark.parametrize("generation", ["2026-01", "2026-05", "2026-08"])
def test_mutants_are_judged_as_the_classes_judge_them(bench: Any, generation: str) -> None:
    judge = bench.ClassJudge(sys.executable, Path(CLASSES) / generation)
    verdicts = list(bench.compare(judge, generation, Path(EXAMPLES) / generation, 3000, 1))
    judge.close()
    refused = [one for one in verdicts if one.theirs]
    accepted = [one for one in verdicts if not one.theirs]
    combinations = [one for one in refused if one.kind == "validator"]
    assert sum(bool(one.ours) for one in refused) >= 0.98 * len(refused)
    assert sum(bool(one.ours) for one in combinations) >= 0.9 * len(combinations)
    assert sum(bool(one.ours) and not one.stricter for one in accepted) <= 0.003 * len(accepted)


def test_the_classes_of_a_folder_are_asked(bench: Any) -> None:
    judge = bench.ClassJudge(sys.executable, STANDIN)
    assert judge.refusals("trainer", {"max_steps": 10}) == []
    assert judge.refusals("trainer", {"max_steps": "many"})[0].startswith("max_steps:")
    judge.close()


def test_classes_that_are_not_there_are_an_error(bench: Any, tmp_path: Path) -> None:
    judge = bench.ClassJudge(sys.executable, tmp_path)
    with pytest.raises(RuntimeError, match="no config class"):
        judge.refusals("trainer", {})
    judge.close()


UNION = {"section": True, "type": "Constant | Linear", "discriminator": "type", "default": {"__class__": "Constant"}}
ROWS: list[dict[str, Any]] = [
    {"path": "steps", "type": "int | None", "constraints": "ge=1", "aliases": ["max_steps"]},
    {"path": "scheduler", **UNION},
    {
        "path": "scheduler.type",
        "type": "Literal['constant'] | Literal['linear']",
        "default": "constant",
        "only_when": ["scheduler.type=constant", "scheduler.type=linear"],
        "in_class": ["Constant", "Linear"],
    },
    {"path": "scheduler.warmup", "type": "int", "only_when": ["scheduler.type=linear"], "in_class": ["Linear"]},
    {"path": "env", "type": "list[Env]", "section": True},
    {"path": "env[].id", "type": "str", "required": True},
]


@pytest.mark.parametrize(
    ("values", "refused"),
    [
        ({"steps": "100.0", "env": [{"id": "a"}]}, None),
        ({"max_steps": 3, "scheduler": {}}, None),
        ({"steps": "None"}, None),
        ({"scheduler": {"type": "linear", "warmup": 3}}, None),
        ({"steps": 0}, "steps"),
        ({"steps": 1.5}, "steps"),
        ({"stepps": 1}, "stepps"),
        ({"scheduler": {"warmup": 3}}, "warmup"),
        ({"scheduler": {"type": "square"}}, "scheduler"),
        ({"env": [{}]}, "id"),
    ],
)
def test_models_made_from_field_rows_judge_as_pydantic(bench: Any, values: dict[str, Any], refused: str | None) -> None:
    judge = bench.FieldJudge([{"root": "sft", **row} for row in ROWS])
    messages = judge.refusals("sft", values)
    assert any(refused in one for one in messages) if refused else messages == []
