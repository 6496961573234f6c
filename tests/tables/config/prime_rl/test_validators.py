from __future__ import annotations

import json
import re
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from prime_train.config.parsed_config import REFUSED, Fault
from prime_train.config.prime_rl.resolve import ResolvedView, fill
from prime_train.config.prime_rl.schema import load
from prime_train.config.prime_rl.validate import walk
from prime_train.config.prime_rl.validators import judge, load_validators

GENERATIONS = ("2026-01", "2026-05", "2026-08")
CASES = Path(__file__).parent / "validator_cases"
# What a run needs to be accepted, by root; each case adds to it.
BASES: dict[str, dict[str, Any]] = {
    "rl": {"trainer": {}, "orchestrator": {}},
    "sft": {},
    "eval": {"env": [{"id": "a"}]},
    "evals": {"eval": {"source": [{"env": {"taskset": {"id": "a"}}}]}},
}


def values(root: str, settings: dict[str, Any]) -> dict[str, Any]:
    made = deepcopy(BASES[root])
    for key, value in settings.items():
        *around, last = key.split(".")
        node = made
        for part in around:
            node = node.setdefault(part, {})
        if isinstance(value, dict) and isinstance(node.get(last), dict):
            node[last] |= deepcopy(value)
        else:
            node[last] = deepcopy(value)
    return made


def refusals(generation: str, root: str, settings: dict[str, Any]) -> list[Fault]:
    return list(judge(walk(load(generation), root, values(root, settings), whole=True)))


def cases() -> Iterator[Any]:
    for generation in GENERATIONS:
        written = json.loads((CASES / f"{generation}.json").read_text(encoding="utf-8"))
        for entry in load_validators(generation).validators:
            yield pytest.param(generation, entry, written[entry["id"]], id=f"{generation}-{entry['id']}")


@pytest.mark.parametrize(("generation", "entry", "case"), cases())
def test_a_validator_fires_on_its_case_and_not_on_the_twin(
    generation: str, entry: dict[str, Any], case: dict[str, Any]
) -> None:
    fired = refusals(generation, case["root"], case["fires"])
    assert [fault for fault in fired if fault.code == REFUSED and entry["source"] in fault.why]
    assert [f"{fault.what}: {fault.why}" for fault in refusals(generation, case["root"], case["twin"])] == []


@pytest.mark.parametrize(("generation", "_entry", "case"), cases())
def test_the_case_and_the_twin_of_a_validator_have_legal_keys(
    generation: str, _entry: dict[str, Any], case: dict[str, Any]
) -> None:
    for settings in (case["fires"], case["twin"]):
        found = walk(load(generation), case["root"], values(case["root"], settings), whole=True)
        assert [fault.what for fault in found.faults if fault.severity is None] == []


@pytest.mark.parametrize("generation", GENERATIONS)
def test_each_key_of_a_validator_is_one_of_its_generation(generation: str) -> None:
    data = load_validators(generation)
    schema = load(generation)
    for entry in data.validators:
        for root, tables in data.scopes[entry["at"]].items():
            found = [schema.find(root, tuple(table.replace("[]", ".0").split("."))) for table in tables if table]
            assert all(row is not None for row in found), (entry["id"], root)
            for table in tables:
                front = table.replace("[]", ".0").split(".") if table else []
                for key in _keys(entry):
                    path = tuple(int(part) if part.isdigit() else part for part in (*front, *key.split(".")))
                    ResolvedView(schema, root, fill({}, {})).check(path)


def _keys(entry: dict[str, Any]) -> Iterator[str]:
    for condition in (*entry.get("if", ()), *entry.get("need", ())):
        left, operator, *right = condition.split()
        operands = [left]
        if operator in ("==", "!=", "<", "<=", ">", ">=", "divides", "inside", "port"):
            operands += right
        for operand in operands:
            if not operand.startswith("'"):
                parts = re.split(r"[+*|&]", operand)
                named = (part for part in parts if not part.isdigit() and part not in ("true", "false"))
                yield from (part.lstrip("#").removesuffix("@") for part in named)


@pytest.mark.parametrize("generation", GENERATIONS)
def test_a_shared_value_that_one_side_contradicts_is_refused_except_where_it_wins(generation: str) -> None:
    found = refusals(generation, "rl", {"max_steps": 10, "trainer.max_steps": 20})
    assert [fault.key for fault in found] == ([] if generation == "2026-01" else [("trainer", "max_steps")])


# The parts of a run of 2026-01 are validated with their own values, before a shared value overrules these.
@pytest.mark.parametrize(
    ("settings", "refused"),
    [
        ({"trainer.trace_path": "/tmp/trace", "max_steps": 5}, "trainer.max_steps is not set"),
        ({"trainer.trace_path": "/tmp/trace", "trainer.max_steps": 5, "max_steps": 20}, "trainer.max_steps = 20"),
        ({"trainer.trace_path": "/tmp/trace", "trainer.max_steps": 5, "max_steps": 6}, ""),
    ],
)
def test_a_part_is_judged_before_and_after_a_shared_value_wins(settings: dict[str, Any], refused: str) -> None:
    found = refusals("2026-01", "rl", settings)
    assert [fault.what.rpartition(", ")[2] for fault in found] == ([refused] if refused else [])
    assert all(("before it gives it the shared keys" in fault.why) is ("not set" in refused) for fault in found)


def test_a_shared_value_of_2026_08_reaches_a_part_before_its_validators() -> None:
    assert refusals("2026-08", "rl", {"max_steps": 5, "trainer.trace_path": "/tmp/trace"}) == []


def test_a_validator_is_silent_where_another_file_may_set_the_key() -> None:
    settings = values("rl", {"trainer.max_steps": 10})
    assert list(judge(walk(load("2026-08"), "rl", settings, whole=True)))
    assert not list(judge(walk(load("2026-08"), "rl", settings, whole=False)))


def test_a_validator_is_silent_on_a_faulty_value() -> None:
    settings = {"trainer.max_steps": "many", "orchestrator.max_steps": 3}
    assert refusals("2026-08", "rl", settings) == []


@pytest.mark.parametrize(
    "settings",
    [
        {"tokenizer.name": ["a"]},  # reaches the tokenizers of both sides
        {"orchestrator.train.source": [{"name": {}, "env": {"taskset": {"id": "a"}}}]},
    ],
)
def test_a_validator_is_silent_on_a_faulty_value_that_it_reads_elsewhere(settings: dict[str, Any]) -> None:
    assert refusals("2026-08", "rl", settings) == []


def test_an_empty_name_counts_as_none() -> None:
    assert refusals("2026-08", "rl", {"orchestrator.tokenizer.name": ""}) == []


def test_a_value_of_one_side_that_prime_rl_replaces_is_not_refused() -> None:
    assert refusals("2026-08", "rl", {"resume.step": 3, "trainer.resume.step": 4}) == []
    assert refusals("2026-08", "rl", {"inference": {}, "inference.weight_broadcast.type": "nixl"}) == []


def test_a_shared_value_does_not_change_the_values_of_the_file() -> None:
    settings = values("rl", {"max_steps": 10})
    before = deepcopy(settings)
    fill(settings, load_validators("2026-08").shared["rl"])
    assert settings == before


@pytest.mark.parametrize("generation", GENERATIONS)
def test_each_validator_that_a_file_cannot_decide_has_its_reason(generation: str) -> None:
    listed = load_validators(generation).not_judged
    assert listed
    assert all(entry["source"] and len(entry["reason"]) > 20 for entry in listed)
    judged = {entry["source"] for entry in load_validators(generation).validators}
    assert judged.isdisjoint(entry["source"] for entry in listed)


@pytest.mark.parametrize("generation", GENERATIONS)
def test_each_list_of_names_has_its_source(generation: str) -> None:
    for listed in load_validators(generation).lists.values():
        assert listed.names
        assert re.search(r"\d+\.\d+\.\d+|configs/", listed.source), listed.source
        assert re.fullmatch(r"2026-\d\d-\d\d", listed.as_of)


# Names that the renderers of each generation have: 0.1.8.dev41 in 2026-05, 0.1.12 in 2026-08.
@pytest.mark.parametrize(("generation", "known"), [("2026-05", "zai-org/GLM-5.1"), ("2026-08", "zai-org/GLM-5.3")])
def test_auto_finds_the_renderer_of_a_model_that_a_release_knows(generation: str, known: str) -> None:
    def unresolved(name: str) -> list[Fault]:
        faults = refusals(generation, "rl", {"model.name": name})
        return [fault for fault in faults if "auto finds a renderer" in fault.why]

    assert unresolved(known) == []
    assert unresolved("my/fine-tune")


def judged(root: str, settings: dict[str, Any]) -> list[str]:
    """The keys of the errors in a file of 2026-05."""
    found = walk(load("2026-05"), root, values(root, settings), whole=True)
    return [".".join(map(str, fault.key)) for fault in (*found.faults, *judge(found)) if fault.severity is None]


@pytest.mark.parametrize(
    "settings",
    [
        {"orchestrator.train.env": [{"id": "a", "name": {"b": 1}}, {"id": "c"}]},
        {"orchestrator.model.name": ["a"], "trainer.model.name": "b"},
        {"model.name": ["a"]},
    ],
)
def test_a_table_or_an_array_in_place_of_a_name_is_one_error(settings: dict[str, Any]) -> None:
    assert len(judged("rl", settings)) == 1


@pytest.mark.parametrize(
    "settings",
    [
        {"orchestrator.model.name": "Qwen/Qwen3-4B", "trainer.model.name": "Qwen/Qwen3-4B"},
        {"orchestrator.model.name": "Qwen/Qwen3-0.6B", "orchestrator.student.client.timeout": 60},
        {"orchestrator.model.lora.rank": 8, "trainer.model.lora.rank": 8},
        {"orchestrator.client.base_url": ["http://a:8000/v1"]},
        {"orchestrator.model": {"name": "Qwen/Qwen3-0.6B", "model": {"name": ["a"]}}},
        {"trainer.model.ac.mode": "selective"},
        {"trainer.trace_path": "a", "trainer.bench": {}, "orchestrator.bench": True},
        {"slurm.job_name": "a", "inference.slurm.job_name": "b"},
        {"inference.deployment.type": "disaggregated"},
        {"output_dir": "a", "orchestrator.output_dir": "a/run_default"},
    ],
)
def test_prime_rl_accepts_and_lint_does(settings: dict[str, Any]) -> None:
    assert judged("rl", settings) == []


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"orchestrator.model.name": "Qwen/Qwen3-4B"}, "orchestrator.model.name"),
        ({"orchestrator.model.lora.rank": 8, "trainer.model.lora.rank": 16}, "trainer.model.lora.rank"),
        ({"orchestrator.model.lora.name": 1}, "orchestrator.model.lora.name"),
        ({"orchestrator.client.no_such_key": 1}, "orchestrator.client.no_such_key"),
        ({"orchestrator.filters": [{}]}, "orchestrator.filters.0.type"),
        ({"output_dir": "a", "orchestrator.output_dir": "a"}, "orchestrator.output_dir"),
        ({"wandb.project": "None"}, "wandb.project"),
        ({"ckpt.resume_step": -5}, "ckpt.resume_step"),
    ],
)
def test_prime_rl_refuses_and_lint_names_the_key_of_the_file(settings: dict[str, Any], key: str) -> None:
    assert judged("rl", settings) == [key]


def test_fine_tuning_has_no_validator_of_vision_and_drops_gpus_of_several_nodes() -> None:
    vision = {"vision_encoder_attr": "a", "language_model_attr": "b"}
    nodes = {"deployment.type": "multi_node", "deployment.num_gpus": 8, "slurm": {}}
    assert judged("sft", {"model.vlm": vision} | nodes) == []
