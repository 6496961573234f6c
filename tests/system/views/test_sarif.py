from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from prime_train.rules.explain import BASE, explain
from prime_train.rules.families import load_all
from prime_train.rules.judge import lint, lint_merged
from prime_train.views.findings import sarif
from tests.unit.rules.examples import parse

jsonschema = pytest.importorskip("jsonschema", reason="jsonschema comes with check-jsonschema")

SCHEMAS = Path(__file__).parent / "schemas"
STANDARD = json.loads((SCHEMAS / "sarif-2.1.0-rtm.5.json").read_text(encoding="utf-8"))
SUBSET = json.loads((SCHEMAS / "sarif_subset.json").read_text(encoding="utf-8"))
UNEVEN = BASE.replace("micro_batch = 8", "micro_batch = 8\nglobal_batch = 20") + "[checkpoint]\ninterval_steps = 5000\n"
TEXTS = {
    "clean.toml": BASE,
    "uneven.toml": UNEVEN,
    "a folder/é.toml": BASE + "[optim]\nlr = ]\n",
    "/tmp/absolute.toml": "",
    "<stdin>": "a = 1\n",
}


def _logs() -> list[dict[str, Any]]:
    merged = lint_merged(
        (("max_steps = 1\n[trainer]\n[orchestrator]\n", "a.toml"), ("sed_len = 2\n", "b.toml")), "2026-08"
    )
    logs = [sarif([lint(text, path) for path, text in TEXTS.items()]), sarif([]), sarif([merged])]
    logs.extend(sarif([lint(parse(bad)[0], "rl.toml")]) for rule in load_all().values() for bad in explain(rule).bad)
    return [json.loads(json.dumps(log, allow_nan=False)) for log in logs]


def test_sarif_fits_the_standard_and_the_part_of_it_that_is_ours() -> None:
    standard = jsonschema.Draft4Validator(STANDARD, format_checker=jsonschema.FormatChecker())
    ours = jsonschema.Draft202012Validator(SUBSET)
    for log in _logs():
        standard.validate(log)
        ours.validate(log)


def test_the_standard_schema_refuses_what_is_not_sarif() -> None:
    log = sarif([lint(UNEVEN, "run.toml")])
    log["runs"][0]["results"][0]["level"] = "fatal"
    with pytest.raises(jsonschema.ValidationError, match="fatal"):
        jsonschema.Draft4Validator(STANDARD).validate(log)


def test_a_result_names_its_rule_and_place() -> None:
    (run,) = sarif([lint(UNEVEN, "run.toml")])["runs"]
    assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == ["BAT001", "CKP001"]
    first = run["results"][0]
    assert (first["ruleId"], first["ruleIndex"], first["level"]) == ("BAT001", 0, "error")
    assert first["message"]["text"].startswith("20 sequences")
    assert first["locations"][0]["physicalLocation"] == {
        "artifactLocation": {"uri": "run.toml"},
        "region": {"startLine": 13, "startColumn": 1, "endLine": 13, "endColumn": 18},
    }
    assert first["locations"][0]["logicalLocations"] == [{"fullyQualifiedName": "batch.global_batch"}]


@pytest.mark.parametrize(
    ("path", "uri"),
    [("a/b.toml", "a/b.toml"), ("a b/é.toml", "a%20b/%C3%A9.toml"), ("/x/y z.toml", "file:///x/y%20z.toml")],
)
def test_paths_are_uris(path: str, uri: str) -> None:
    (run,) = sarif([lint(BASE, path)])["runs"]
    assert run["artifacts"] == [{"location": {"uri": uri}}]
