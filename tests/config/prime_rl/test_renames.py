"""What the value of a moved key becomes."""

from __future__ import annotations

from typing import Any

import pytest
import tomli

from prime_train.config.prime_rl.renames import convert_moved, parse_renames, renames
from prime_train.core.paths import shipped
from prime_train.rules.fix import fix_text
from prime_train.rules.judge import lint


@pytest.mark.parametrize(
    ("environment", "rest"),
    [
        ({"id": "aime"}, {}),
        ({"id": "aime", "rollouts_per_example": 32}, {"group_size": 32}),
        (
            {"id": "aime", "group_size": 8, "num_examples": 4, "ratio": 0.5},
            {"group_size": 8, "num_examples": 4, "ratio": 0.5},
        ),
    ],
)
def test_an_environment_becomes_a_source(environment: dict[str, Any], rest: dict[str, Any]) -> None:
    made = {"name": "aime", **rest, "env": {"taskset": {"id": "aime"}}}
    assert convert_moved("sources", [environment]) == [made]


@pytest.mark.parametrize(
    "environment",
    [
        {"id": "aime", "args": {"dataset": "x"}},  # a taskset calls them as it likes
        {"id": "aime", "rollouts_per_example": 8, "group_size": 4},  # which of the two counts
        {"name": "aime"},
        "aime",
    ],
)
def test_an_environment_that_a_person_has_to_look_at(environment: Any) -> None:
    assert convert_moved("sources", [environment]) is None


def test_an_evaluation_of_january_is_taken_to_august() -> None:
    january = '[[env]]\nid = "aime2024"\nrollouts_per_example = 32 # 960 rollouts\n'
    done = fix_text(january, lambda text: lint(text, "evals/aime.toml", "2026-08"))
    assert done.verdict.ok
    assert done.verdict.root == "evals"


def test_what_is_left_to_a_person_says_how() -> None:
    text = '[orchestrator]\n[[orchestrator.env]]\nid = "aime"\nargs = {dataset = "x"}\n[trainer]\n'
    (finding,) = [item for item in lint(text, "rl.toml", "2026-08").findings if item.key == "orchestrator.env"]
    assert finding.patch == {}
    assert finding.fix.startswith("[[orchestrator.train.source]] with env.taskset.id, and its args")


SECTION = {
    "generation": "2026-09",
    "why": "gone",
    "keys": [
        ["orchestrator.group_size", "orchestrator.group"],
        ["inference.vllm", "server.vllm"],
        ["inference.vllm.max_model_len", "server.context"],
        ["trainer.optim.lr", "trainer.optimizer.lr"],
        ["orchestrator.model.lora", ""],
    ],
}


@pytest.mark.parametrize(
    ("january", "august", "september"),
    [
        ("orchestrator.rollouts_per_example", "orchestrator.group_size", "orchestrator.group"),
        ("inference.parallel.tp", "inference.vllm.tensor_parallel_size", "server.vllm.tensor_parallel_size"),
        ("inference.model.name", "inference.vllm.model", "server.vllm.model"),
        ("max_model_len", "inference.vllm.max_model_len", "server.context"),
        ("trainer.optim.lr", "trainer.optim.lr", "trainer.optimizer.lr"),
        ("", "orchestrator.model.lora", ""),
    ],
)
def test_a_section_takes_every_older_key_to_a_newer_generation(january: str, august: str, september: str) -> None:
    with open(shipped("prime_rl", "renames.toml"), "rb") as file:
        rows = parse_renames(tomli.load(file) | {"section": [SECTION]})
    assert rows.columns == (*renames().columns, "2026-09")
    names = [dict(zip(rows.columns, entry.names, strict=True)) for entry in rows.entries]
    assert {"2026-01": january, "2026-08": august, "2026-09": september} in [
        {generation: name[generation] for generation in ("2026-01", "2026-08", "2026-09")} for name in names
    ]
