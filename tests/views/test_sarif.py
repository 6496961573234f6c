from __future__ import annotations

import json
from pathlib import Path

import pytest

from prime_train.rules.explain import BASE
from prime_train.rules.judge import lint
from prime_train.views.sarif import sarif

jsonschema = pytest.importorskip("jsonschema", reason="jsonschema comes with check-jsonschema")

SCHEMA = json.loads((Path(__file__).parent / "schemas" / "sarif_subset.json").read_text(encoding="utf-8"))
UNEVEN = BASE.replace("micro_batch = 8", "micro_batch = 8\nglobal_batch = 20") + "[checkpoint]\ninterval_steps = 5000\n"
TEXTS = {
    "clean.toml": BASE,
    "uneven.toml": UNEVEN,
    "a folder/é.toml": BASE + "[optim]\nlr = ]\n",
    "/tmp/absolute.toml": "",
    "<stdin>": "a = 1\n",
}


def test_sarif_fits_its_schema() -> None:
    log = json.loads(json.dumps(sarif([lint(text, path) for path, text in TEXTS.items()]), allow_nan=False))
    jsonschema.Draft202012Validator(SCHEMA).validate(log)
    jsonschema.Draft202012Validator(SCHEMA).validate(sarif([]))


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
