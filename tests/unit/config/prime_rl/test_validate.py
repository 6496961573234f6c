"""The keys that a prime-rl file may have, and those that it needs."""

from __future__ import annotations

from typing import Any

import pytest

from prime_train.config.parsed_config import MISSING_KEY, WRONG_TYPE
from prime_train.config.prime_rl.schema import load
from prime_train.config.prime_rl.validate import walk


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
        ("2026-08", "inference", {"router": {"policy": "round_robin"}}, "router.type"),
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
    shared = {"trainer": {}, "orchestrator": {}, "rollout_transport": {"hwm": 4}}  # the trainer's default is zmq
    assert faults("2026-08", "rl", shared) == []


def test_gpus_that_prime_rl_takes_out_of_a_multi_node_deployment_are_legal() -> None:
    deployment = {"type": "multi_node", "num_train_gpus": 4}
    assert faults("2026-08", "sft", {"deployment": deployment}) == []
    assert faults(
        "2026-08", "rl", {"trainer": {}, "orchestrator": {}, "deployment": deployment | {"num_train_nodes": 1}}
    )


@pytest.mark.parametrize("generation", ["2026-05", "2026-08"])
def test_a_renderer_that_takes_any_key_takes_those_of_other_renderers(generation: str) -> None:
    wanted = {"enable_thinking": True, "anything": 1}
    assert faults(generation, "orchestrator", {"renderer": {"name": "default", **wanted}}) == []
    assert faults(generation, "orchestrator", {"renderer": {"name": "llama-3", **wanted}})


# utils/pydantic_config.py of e794fbe: BaseConfig reads "None" as no value, BaseSettings does not.
@pytest.mark.parametrize(
    ("root", "key", "is_read"),
    [
        ("rl", "ckpt", False),
        ("trainer", "max_steps", False),
        ("orchestrator", "val", False),
        ("inference", "max_lora_rank", False),
        ("trainer", "model.ac", True),
        ("orchestrator", "buffer.easy_threshold", True),
        ("eval", "max_concurrent", True),
    ],
)
def test_only_some_tables_of_2026_01_read_none_as_no_value(root: str, key: str, is_read: bool) -> None:
    around, _, last = key.rpartition(".")
    values: dict[str, Any] = {around: {last: "None"}} if around else {last: "None"}
    assert faults("2026-01", root, values, whole=False) == ([] if is_read else [(WRONG_TYPE, key)])


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
        {"agent": {"sampling": {"top_k": 4}, "client": {"type": "train", "renderer": {"name": "qwen3"}}}},
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


@pytest.mark.parametrize("generation", ["2026-05", "2026-08"])
def test_a_key_that_two_tables_have_is_moved_to_neither_without_being_asked(generation: str) -> None:
    """[model] limits the positions of the model, and [data] the samples: the user may mean either."""
    values = {"seq_len": 8192, "model": {"name": "Qwen/Qwen3-0.6B"}, "data": {"batch_size": 8}}
    state = walk(load(generation), "sft", values, whole=True)
    (fault,) = [fault for fault in state.faults if fault.key == ("seq_len",)]
    assert "[model] or [data]" in fault.what or "[data] or [model]" in fault.what
    assert not fault.safe
