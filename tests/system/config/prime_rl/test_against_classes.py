"""Mutants of prime-rl files, judged by its own classes and by us; docs/prime_rl.md describes how to get the classes."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from prime_train.config.parsed_config import REFUSED, UNKNOWN_KEY, Fault

ROOT = Path(__file__).parents[4]
STANDIN = ROOT / "tests" / "fakes" / "prime_rl_standin"
FOLDER = os.environ.get("PRIME_RL_CLASSES", "")
EXAMPLES = os.environ.get("PRIME_RL_EXAMPLES", "")
PYTHON = os.environ.get("PRIME_RL_PYTHON", sys.executable)


@pytest.fixture(scope="module")
def bench() -> Any:
    sys.path.insert(0, str(ROOT / "bench"))
    try:
        import lint_differential
    finally:
        sys.path.pop(0)
    return lint_differential


@pytest.mark.skipif(not (FOLDER and EXAMPLES), reason="PRIME_RL_CLASSES and PRIME_RL_EXAMPLES: docs/prime_rl.md")
@pytest.mark.parametrize("generation", ["2026-01", "2026-05", "2026-08"])
def test_mutants_are_judged_as_the_classes_judge_them(bench: Any, generation: str) -> None:
    judge = bench.ClassJudge(sys.executable, Path(FOLDER) / generation)
    verdicts = list(bench.compare(judge, generation, Path(EXAMPLES) / generation, 3000, 1))
    judge.close()
    refused = [one for one in verdicts if one.theirs]
    accepted = [one for one in verdicts if not one.theirs]
    combinations = [one for one in refused if one.kind == "validator"]
    assert sum(bool(one.ours) for one in refused) >= 0.98 * len(refused)
    assert sum(bool(one.ours) for one in combinations) >= 0.9 * len(combinations)
    assert sum(bool(one.ours) and not one.because for one in accepted) <= 0.003 * len(accepted)


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


CLASSES = """
from pydantic import BaseModel, Field, model_validator

class Optim(BaseModel):
    lr: float = 1.0

class RLTrainerConfig(BaseModel):
    optim: Optim = Optim()
    max_async_level: int = Field(default=1, le=1)

class RLConfig(BaseModel):
    trainer: RLTrainerConfig
    max_async_level: int | None = None

    @model_validator(mode="after")
    def share(self):
        self.trainer.max_async_level = self.max_async_level or self.trainer.max_async_level
        return self

OfflineEvalConfig = SynthesizeConfig = Optim
"""


@pytest.fixture
def early(bench: Any, tmp_path: Path) -> Any:
    """Classes at the places of 2026-01, where a part drops keys and a shared value reaches it unvalidated."""
    for place in ("rl.py", "trainer/rl/config.py", "eval/config.py", "synthesize/config.py"):
        (tmp_path / "prime_rl" / place).parent.mkdir(parents=True, exist_ok=True)
        text = CLASSES if place.startswith("trainer") else "from prime_rl.trainer.rl.config import *\n"
        (tmp_path / "prime_rl" / place).write_text(text, encoding="utf-8")
    judge = bench.ClassJudge(sys.executable, tmp_path)
    yield judge
    judge.close()


@pytest.mark.parametrize("root", ["rl", "trainer", "eval", "synthesize"])
def test_the_class_of_each_root_of_2026_01_is_asked(early: Any, root: str) -> None:
    assert early.refusals(root, {"trainer": {}}) == []
    assert early.refusals(root, {"trainer": {}, "lr": "high", "max_async_level": "high"})


@pytest.mark.parametrize(
    ("changed", "code", "key", "because"),
    [
        ({"trainer": {"optim": {"lrr": 2.0}}}, UNKNOWN_KEY, ("trainer", "optim", "lrr"), "dropped"),
        ({"trainer": {"optim": {"lr": 2.0}}}, UNKNOWN_KEY, ("trainer", "optim", "lr"), ""),
        ({"trainer": {}, "max_async_level": 3}, REFUSED, ("max_async_level",), "later"),
        ({"trainer": {}, "max_async_level": 1}, REFUSED, ("max_async_level",), ""),
    ],
)
def test_a_fault_in_a_file_that_the_classes_accept_is_confirmed(
    early: Any, changed: dict[str, Any], code: str, key: tuple[str, ...], because: str
) -> None:
    assert early.refusals("rl", changed) == []
    assert early.confirms("rl", changed, {"trainer": {}}, [Fault(code, key, "", "")]) == because


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
