"""The values that a prime-rl file may have, with pydantic's lax mode as the judge."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from prime_train.config.parsed_config import MISSING_KEY, WRONG_TYPE
from prime_train.config.prime_rl.schema import Row, load
from prime_train.config.prime_rl.validate import value_fault, walk
from prime_train.core.findings import Severity

TYPES: dict[str, type[Any]] = {"whole": int, "number": float, "flag": bool, "text": str}
NUMBERS_AS_TEXT = st.from_regex(r"\A ?[+-]?[1-9][0-9]{0,2}(_[0-9]{1,2})?(\.0{0,2}[0-9]?)?(e[0-9])? ?\Z")
VALUES = st.one_of(
    NUMBERS_AS_TEXT,
    st.text(max_size=5),
    st.sampled_from(["true", "T", "yes", "ON", "off", "100.0", "1_000", "7."]),
    st.integers(-1000, 1000),
    st.floats(-1e6, 1e6),
    st.booleans(),
)


def accepts(word: str, value: Any) -> bool:
    fault = value_fault(Row(words=(word,)), value, ("key",))
    return fault is None or fault.severity is Severity.WARNING


def reads(kind: type[Any], value: Any) -> bool:
    try:
        read = TypeAdapter(kind).validate_python(value)
    except ValidationError:
        return False
    return not (isinstance(read, float) and not math.isfinite(read))  # no key has an infinite value


@pytest.mark.parametrize("word", TYPES)
@given(value=VALUES)
def test_a_value_is_legal_where_pydantic_reads_it(word: str, value: Any) -> None:
    if value != "None":  # prime-rl reads it as no value
        assert accepts(word, value) == reads(TYPES[word], value)


def test_a_whole_number_with_a_decimal_point_is_read_as_a_number() -> None:
    fault = value_fault(Row(words=("whole",)), "100.0", ("max_steps",))
    assert fault is not None
    assert (fault.severity, fault.patch) == (Severity.WARNING, {"max_steps": 100})


def test_none_is_no_text_where_a_key_needs_one() -> None:
    assert value_fault(Row(words=("text", "none")), "None", ("name",)) is None
    fault = value_fault(Row(words=("text",)), "None", ("name",))
    assert fault is not None
    assert fault.severity is None


def faults(generation: str, root: str, values: dict[str, Any], *, whole: bool = True) -> list[tuple[str, str]]:
    found = walk(load(generation), root, values, whole=whole).faults
    return [(fault.code, ".".join(map(str, fault.key))) for fault in found if fault.severity is None]


@pytest.mark.parametrize(
    ("generation", "root", "values", "missing"),
    [
        ("2026-08", "rl", {"weight_broadcast": {}}, "weight_broadcast.type"),
        ("2026-08", "inference", {"kv_cache_offload": {"cpu": {"num_bytes": 1}}}, "kv_cache_offload.type"),
        ("2026-08", "trainer", {"model": {"quantization": {}}}, "model.quantization.type"),
        ("2026-08", "orchestrator", {"renderer": {"thinking_retention": "all"}}, "renderer.name"),
        ("2026-05", "sft", {"renderer": {}}, "renderer.name"),
        ("2026-05", "orchestrator", {"advantage": {"length_penalty": {}}}, "advantage.length_penalty.type"),
    ],
)
def test_a_union_without_a_default_needs_its_tag(
    generation: str, root: str, values: dict[str, Any], missing: str
) -> None:
    values = ({"trainer": {}, "orchestrator": {}} if root == "rl" else {}) | values
    assert faults(generation, root, values) == [(MISSING_KEY, missing)]
    assert faults(generation, root, values, whole=False) == []  # another file may set it


def test_a_union_with_a_default_does_not_need_its_tag() -> None:
    assert faults("2026-08", "trainer", {"optim": {"lr": 1e-3}, "weight_broadcast": {}}) == []


@pytest.mark.parametrize("generation", ["2026-05", "2026-08"])
def test_a_renderer_that_takes_any_key_takes_those_of_other_renderers(generation: str) -> None:
    wanted = {"enable_thinking": True, "anything": 1}
    assert faults(generation, "orchestrator", {"renderer": {"name": "default", **wanted}}) == []
    assert faults(generation, "orchestrator", {"renderer": {"name": "llama-3", **wanted}})


def test_a_choice_for_the_elements_of_a_list_is_no_list() -> None:
    assert faults("2026-08", "orchestrator", {"inference_metrics_roles": ["decode"]}) == []
    wrong = [(WRONG_TYPE, "inference_metrics_roles")]
    assert faults("2026-08", "orchestrator", {"inference_metrics_roles": "decode"}) == wrong


def environment_faults(environment: dict[str, Any]) -> list[str]:
    values = {"orchestrator": {"train": {"source": [{"env": {"taskset": {"id": "a"}} | environment}]}}, "trainer": {}}
    found = walk(load("2026-08"), "rl", values, whole=True)
    return [str(fault.key[-1]) for fault in found.faults if fault.severity is None]


@pytest.mark.parametrize(
    ("environment", "wrong"),
    [
        ({"agent": {"runtime": {"type": "dokcer"}}}, "type"),
        ({"agent": {"runtime": {"type": "docker", "cpu": "lots"}}}, "cpu"),
        ({"agent": {"runtime": {"type": "subprocess", "labels": ["a"]}}}, "labels"),
        ({"agent": {"runtime": {"type": "prime", "lables": ["a"]}}}, "lables"),
        ({"agent": {"harness": {"tool_timeout": 0}}}, "tool_timeout"),
        ({"agent": {"harness": "bash"}}, "harness"),
        ({"agent": {"timeout": {"rolout": 3600}}}, "rolout"),
        ({"agent": {"retries": {"max_retries": -1}}}, "max_retries"),
        ({"agent": {"max_turn": 4}}, "max_turn"),
        ({"taskset": {"id": "a", "task": {"judges": [{"weight": "heavy"}]}}}, "weight"),
    ],
)
def test_the_agent_of_the_default_environment_is_judged(environment: dict[str, Any], wrong: str) -> None:
    assert environment_faults(environment) == [wrong]


@pytest.mark.parametrize(
    "environment",
    [
        {"agent": {"harness": {"id": "rlm", "summarize_at_tokens": [1, 2]}, "runtime": {"type": "subprocess"}}},
        {"agent": {"runtime": {"labels": ["a"]}, "timeout": {"rollout": 3600}, "max_turns": "None"}},
        {"agent": {"sampling": {"top_k": 4}, "client": {"renderer": {"name": "qwen3"}}}},
        {
            "taskset": {
                "id": "a",
                "split": "train",
                "task": {"tools": {"root": "x"}, "judges": [{"id": "j", "rubric": "x"}]},
            }
        },
        {"id": "duel", "player0": {"runtime": {"type": "subprocess"}}, "rounds": 3},
    ],
)
def test_what_a_plugin_of_an_environment_owns_is_not_judged(environment: dict[str, Any]) -> None:
    assert environment_faults(environment) == []
