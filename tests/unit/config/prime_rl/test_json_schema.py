"""The JSON Schema of prime-rl's generations accepts and refuses what the walk along their tables does."""

from __future__ import annotations

from typing import Any

import pytest
import tomli

from prime_train.config.parsed_config import REFUSED
from prime_train.config.prime_rl.json_schema import json_schema
from prime_train.config.prime_rl.schema import generations, load
from prime_train.config.prime_rl.validate import walk
from prime_train.rules.explain import BASES
from prime_train.toml.document import patched

jsonschema = pytest.importorskip("jsonschema", reason="jsonschema comes with check-jsonschema")

_FILES = {
    "prime-rl 2026-08": ("2026-08", "rl"),
    "prime-rl 2026-08 lora": ("2026-08", "rl"),
    "prime-rl 2026-08 sft": ("2026-08", "sft"),
    "prime-rl 2026-08 inference": ("2026-08", "inference"),
    "prime-rl 2026-05": ("2026-05", "rl"),
    "prime-rl 2026-01": ("2026-01", "rl"),
}
_PATCHES: list[dict[str, Any]] = [
    {},
    {"max_steps": 0},
    {"max_steps": "many"},
    {"max_step": 3},
    {"seq_len": None},
    {"model.name": 3},
    {"trainer": None},
    {"orchestrator": None},
    {"trainer.optim.type": "muon"},
    {"trainer.optim.type": "adamv"},
    {"trainer.optim.mu": 0.9},
    {"trainer.scheduler.type": "linear"},
    {"data.type": "fake"},
    {"data.name": None},
    {"optim.lr": -1},
    {"ckpt": "None"},
    {"ckpt.interval": 0},
    {"inference.parallel.tp": 2},
    {"prime_train.prime_rl": "2026-08"},
    {"orchestrator.train.source": [{"env": {"taskset": {"id": "a", "any": 1}, "id": "mine", "n": "any"}}]},
    {"orchestrator.train.source": [{"env": {"taskset": {"id": "a"}, "id": "best-of-n", "n": 2}}]},
    {"orchestrator.train.source": [{"env": {"taskset": {"id": "a"}, "id": "best-of-n", "n": "any"}}]},
    {"orchestrator.train.source": [{"env": {"taskset": {"id": "a"}, "id": "user-sim", "n": 2}}]},
    {"orchestrator.train.source": [{"env": {"taskset": {"id": "textarena"}}}]},
]


def _accepts(generation: str, root: str, values: dict[str, Any]) -> bool:
    schema = json_schema(load(generation), root)
    return bool(jsonschema.Draft7Validator(schema).is_valid(values))


@pytest.mark.parametrize(("generation", "root"), [(name, root) for name in generations() for root in load(name).roots])
def test_each_schema_is_a_schema(generation: str, root: str) -> None:
    schema = json_schema(load(generation), root)
    jsonschema.Draft7Validator.check_schema(schema)
    assert set(_references(schema)) == {f"#/definitions/{name.replace('/', '~1')}" for name in schema["definitions"]}


def _references(node: Any) -> list[str]:
    if isinstance(node, dict):
        own = [node["$ref"]] if "$ref" in node else []
        return own + [ref for below in node.values() for ref in _references(below)]
    return [ref for below in node for ref in _references(below)] if isinstance(node, list) else []


@pytest.mark.parametrize("base", _FILES)
@pytest.mark.parametrize("patch", _PATCHES, ids=str)
def test_schema_and_walk_agree(base: str, patch: dict[str, Any]) -> None:
    generation, root = _FILES[base]
    values = patched(tomli.loads(BASES[base]), patch)
    theirs = {key: value for key, value in values.items() if key != "prime_train"}
    faults = walk(load(generation), root, theirs, whole=True).faults
    assert not any(fault.code == REFUSED for fault in faults)
    assert _accepts(generation, root, values) is not bool(faults)
