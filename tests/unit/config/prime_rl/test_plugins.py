"""The plug-ins that come with verifiers have known keys; those of other packages may have any."""

from __future__ import annotations

import json
from typing import Any

import pytest

from prime_train.config.prime_rl.plugins import add_plugins
from prime_train.config.prime_rl.schema import load
from prime_train.config.prime_rl.table import to_json
from prime_train.config.prime_rl.validate import walk
from prime_train.core.installation import shipped

GAME = {"id": "textarena", "game": "Wordle-v0"}


def errors(env: dict[str, Any]) -> list[tuple[str, str]]:
    """(code, key below the environment) of each error."""
    values = {"trainer": {}, "orchestrator": {"train": {"source": [{"env": {"taskset": {"id": "a"}} | env}]}}}
    found = walk(load("2026-08"), "rl", values, whole=True)
    return [(fault.code, ".".join(map(str, fault.key[4:]))) for fault in found.faults if fault.severity is None]


@pytest.mark.parametrize(
    "env",
    [
        {"id": "best-of-n", "n": 2, "threshold": 0.5, "agent": {"max_turns": 3}},
        {"id": "best_of_n", "n": 2},
        {"id": "user-sim", "user": {"max_turns": 8, "harness": {"id": "null"}}, "persona": "{scenario}"},
        {"id": "agentic-judge", "solver": {"runtime": {"type": "docker"}}, "task": {"rubric": "a.toml"}},
        {"id": "mine", "n": "any", "agent": {"max_turns": 1}},
        {"seats": 2},  # the package of the task set may have an environment of its own
        {"agent": {"harness": {"edit": False, "search": True}}},  # bash is the default
        {"agent": {"harness": {"id": "rlm", "summarize_at_tokens": [1000, 2000], "builtin_skills": ["edit"]}}},
        {"agent": {"harness": {"id": "kimi-code", "transport": "responses", "version": "0.36.0"}}},
        {"agent": {"harness": {"id": "mine", "edit": 3, "any": 1}}},
        {"agent": {"client": {"type": "train", "multiplex": 4, "renderer": {"name": "qwen3"}}}},
        {"taskset": GAME, "player": {"max_turns": 3}},
        {"taskset": {"id": "harbor", "dataset": "a/b", "timeout_multiplier": 2}},
        {"taskset": {"id": "reverse-text", "any": 1}},
        {"taskset": {"id": "a", "task": {"judges": [{"id": "rubric", "path": "r.toml", "max_criteria": 1}]}}},
    ],
    ids=json.dumps,
)
def test_what_verifiers_accepts(env: dict[str, Any]) -> None:
    assert errors(env) == []


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({"id": "best-of-n", "m": 2}, ("CFG002", "env.m")),
        ({"id": "best-of-n", "n": 0}, ("CFG004", "env.n")),
        ({"id": "single-agent", "n": 2}, ("CFG008", "env.n")),
        ({"id": "user-sim", "user": {"turns": 8}}, ("CFG002", "env.user.turns")),
        ({"agent": {"harness": {"id": "bash", "edits": True}}}, ("CFG002", "env.agent.harness.edits")),
        ({"agent": {"harness": {"id": "null", "search": True}}}, ("CFG008", "env.agent.harness.search")),
        (
            {"agent": {"harness": {"id": "rlm", "builtin_skills": ["bash"]}}},
            ("CFG005", "env.agent.harness.builtin_skills.0"),
        ),
        ({"agent": {"client": {"base_url": "http://a"}}}, ("CFG006", "env.agent.client.type")),
        ({"agent": {"client": {"type": "other"}}}, ("CFG005", "env.agent.client.type")),
        ({"agent": {"client": {"type": "eval", "multiplex": 2}}}, ("CFG008", "env.agent.client.multiplex")),
        ({"taskset": {"id": "textarena"}}, ("CFG006", "env.taskset.game")),
        ({"taskset": {"id": "harbor", "datasett": "a"}}, ("CFG002", "env.taskset.datasett")),
        (
            {"taskset": {"id": "a", "task": {"judges": [{"id": "rubric"}]}}},
            ("CFG006", "env.taskset.task.judges.0.path"),
        ),
    ],
    ids=json.dumps,
)
def test_what_verifiers_refuses(env: dict[str, Any], expected: tuple[str, str]) -> None:
    assert errors(env) == [expected]


def test_a_table_without_plug_ins_and_a_generation_without_them_stay_as_they_are() -> None:
    rows: dict[str, Any] = {"Env": {"id": {"type": "text", "default": ""}}, "Log": {"level": "text"}}
    assert add_plugins(rows, {}) == rows
    found = add_plugins(
        rows, {"Env": {"tag": "id", "members": ["a-b"], "keys": {"n": {"type": "whole", "when": ["a-b"]}}}}
    )
    assert found["Log"] == rows["Log"]
    assert found["Env"]["n"]["when"] == ["a-b", "a_b"]
    assert found["Env"]["id"] == {"type": "text", "default": "", "choices": ["a-b", "a_b"]}


def test_a_table_file_is_written_with_its_plug_ins() -> None:
    with open(shipped("prime_rl/2026-08.json"), encoding="utf-8") as file:
        text = file.read()
    assert to_json(json.loads(text)) == text
