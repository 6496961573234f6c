"""Values of a config.json that transformers refuses or that make outputs NaN."""

from __future__ import annotations

import json
from typing import Any

import pytest

from prime_train.models.checks.config_checks import find_config_faults
from prime_train.models.read.config import ModelConfigFile, read_config
from prime_train.models.verdict.verdicts import Outcome
from tests.fakes.model_folder import QWEN3
from tests.unit.models.known_models import check, evidence


def faults_of(**changed: Any) -> list[str]:
    found = read_config(json.dumps(QWEN3 | changed), "mine")
    assert isinstance(found, ModelConfigFile)
    return [fault.key for fault in find_config_faults(found)]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rms_norm_eps", float("nan")),
        ("rms_norm_eps", {"__float__": "NaN"}),
        ("layer_norm_epsilon", {"__float__": "Infinity"}),
        ("rms_norm_eps", "1e-6"),
        ("rms_norm_eps", -1e-6),
        ("rope_theta", 0),
        ("use_cache", "yes"),
        ("attention_dropout", 1.5),
        ("hidden_act", "swiglu"),
        ("torch_dtype", "bf16"),
        ("pad_token_id", 384),
        ("layer_types", ["full_attention"]),
        ("rope_scaling", []),
        ("num_experts_per_tok", 0),
    ],
)
def test_a_bad_value_is_named_by_its_key(key: str, value: Any) -> None:
    assert faults_of(**{key: value}) == [key]


@pytest.mark.parametrize(
    ("scaling", "key"),
    [
        ({"rope_type": "linear"}, "rope_scaling.factor"),
        ({"type": "dynamic", "factor": -1.0}, "rope_scaling.factor"),
        ({"rope_type": "ntk", "factor": 2.0}, "rope_scaling.rope_type"),
    ],
)
def test_a_scaling_that_cannot_be_computed(scaling: dict[str, Any], key: str) -> None:
    assert faults_of(rope_scaling=scaling) == [key]


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"rms_norm_eps": 1e-6, "rope_theta": 1_000_000, "pad_token_id": -1, "sliding_window": 0, "rope_scaling": None},
        {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}},
        {
            "rope_parameters": {
                "full_attention": {"rope_type": "default"},
                "sliding_attention": {"rope_type": "default"},
            }
        },
        {"time_step_limit": [0.0, float("inf")]},
        {"hidden_act": "mine", "auto_map": {"AutoModel": "modeling.Mine"}},
        {"torch_dtype": "torch.bfloat16"},
    ],
)
def test_legal_values_pass(changed: dict[str, Any]) -> None:
    assert faults_of(**changed) == []


def test_the_message_has_the_value_the_reason_and_a_fix() -> None:
    found = check(evidence(QWEN3 | {"rms_norm_eps": {"__float__": "NaN"}}), "config")
    assert found.outcome is Outcome.FAILURE
    assert "rms_norm_eps is NaN" in found.what
    assert found.why
    assert "1e-6" in found.fix


def test_two_kinds_of_rope_scaling_are_refused_as_vllm_does() -> None:
    llama3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    assert faults_of(rope_scaling={"rope_type": "llama3", **llama3}) == []
    assert faults_of(rope_scaling={"rope_type": "llama3", "type": "llama3", **llama3}) == []
    assert faults_of(rope_scaling={"rope_type": "llama3", "type": "yarn", **llama3}) == ["rope_scaling.type"]
    assert faults_of(rope_scaling={"rope_type": "default", "type": "mrope"}) == []


def test_blocks_that_are_not_counted_are_no_fault_in_the_file() -> None:
    hybrid = QWEN3 | {"model_type": "unheard_of", "hybrid_override_pattern": "M*M-"}
    found = check(evidence(config=hybrid), "config")
    assert found.outcome is Outcome.NOT_KNOWN
    assert "hybrid_override_pattern" in found.what
