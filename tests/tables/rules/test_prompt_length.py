"""The source of a prompt's length decides the severity of a completion that does not fit."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from prime_train.core.findings import Finding, Severity
from prime_train.facts.facts import DataLengths, Facts, ModelContext
from prime_train.rules.data.prompt_length import Prompt, find_longest
from prime_train.rules.explain import BASES
from prime_train.rules.judge import lint
from prime_train.spec.answers import replace_parts
from tests.unit.rules.examples import facts_of, validate

RL = BASES["prime-rl 2026-08"]
LONG = RL.replace("max_completion_tokens = 1024", "max_completion_tokens = 3900")


def measured(tokens: int, rows: int = 200) -> DataLengths:
    return DataLengths("environments.train.0.args.dataset_path", "tasks.jsonl", rows, rows, tokens, 100.0)


def judged(text: str, *lengths: DataLengths) -> list[Finding]:
    run = lint(text, "rl.toml").run
    assert run is not None
    facts: Facts = replace(facts_of({}, run), data_lengths=lengths)
    return [item for item in validate(text, "rl.toml", facts).findings if item.code == "LEN001"]


@pytest.mark.parametrize(
    ("text", "lengths", "severity", "what"),
    [
        (LONG, (), Severity.WARNING, "3900 completion tokens leave 196"),
        (
            LONG.replace('"reverse-text"', '"gsm8k"'),
            (),
            Severity.WARNING,
            "a prompt of 512, as gsm8k may have (registry/env",
        ),
        (LONG.replace('"reverse-text"', '"owner/gsm8k@0.1"'), (), Severity.WARNING, "as owner/gsm8k@0.1 may have"),
        (
            LONG,
            (measured(300),),
            Severity.ERROR,
            "a prompt of 300, the longest of 200 rows in tasks.jsonl leave no room",
        ),
        (LONG, (measured(100, 1),), Severity.WARNING, "a prompt of 100, the longest of 1 row in tasks.jsonl leave 96"),
        (
            LONG + "[prime_train]\nexpected_prompt_tokens = 300\n",
            (measured(10),),
            Severity.ERROR,
            "prompt of 300 leave no",
        ),
    ],
)
def test_the_source_of_the_length_decides_the_severity(
    text: str, lengths: tuple[DataLengths, ...], severity: Severity, what: str
) -> None:
    (finding,) = judged(text, *lengths)
    assert finding.severity is severity
    assert what in finding.what


def test_a_short_prompt_is_no_finding() -> None:
    assert judged(RL, measured(100)) == []


def test_the_longest_prompt_of_several_environments() -> None:
    text = RL.replace('id = "reverse-text"', 'id = "gsm8k"').replace(
        "[inference.vllm]",
        '[[orchestrator.train.source]]\nname = "m"\n[orchestrator.train.source.env.taskset]\nid = "math500"\n'
        "[inference.vllm]",
    )
    run = lint(text, "rl.toml").run
    assert run is not None
    both = find_longest(run, None)
    assert both is not None
    assert (both.tokens, both.is_bound) == (1024, True)
    first = find_longest(run, None, 0)
    assert first is not None
    assert first.tokens == 512
    assert find_longest(replace_parts(run, environments=None), None) is None
    expected = replace(run, prime_train=replace(run.prime_train, expected_prompt_tokens=7))
    assert find_longest(expected, None, 0) == Prompt(7, "")


def test_a_models_own_positions_count_more_than_the_registrys(tmp_path: Path) -> None:
    text = RL.replace("max_model_len = 4096", "max_model_len = 65536")
    (by_registry,) = [item for item in lint(text, "rl.toml").findings if item.code == "LEN006"]
    assert by_registry.severity is Severity.WARNING
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"max_position_embeddings": 40960}))
    run = lint(text, "rl.toml").run
    assert run is not None
    for tokens, is_scaled, severity in ((40960, False, Severity.ERROR), (40960, True, None), (131072, False, None)):
        context = ModelContext("Qwen/Qwen3-1.7B", tokens, is_scaled, config)
        facts = replace(facts_of({}, run), model_contexts=(context,))
        found = [item for item in validate(text, "rl.toml", facts).findings if item.code == "LEN006"]
        assert [item.severity for item in found] == ([severity] if severity is not None else [])
