"""The whole verdict: what a model can be used for, and that nothing makes it fall over."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prime_train.facts.facts import NotKnown
from prime_train.models.read.evidence import Tokenized
from prime_train.models.read.model_files import ReadFault, RefusedRead, Unread
from prime_train.models.verdict.judge import judge_unreached
from prime_train.models.verdict.support import Stack
from prime_train.models.verdict.verdicts import Outcome
from tests.fakes.model_folder import FORGETFUL, QWEN3, WITHOUT_TOOLS
from tests.unit.models.known_models import FILES, H100, NOWHERE, WEIGHTS, check, evidence, outcomes, verdict

GOOD = {"rl": "ok", "sft": "ok", "pretraining": "ok"}


def test_a_model_that_is_well() -> None:
    found = verdict(evidence())
    assert {each.id: each.outcome for each in found.checks if each.outcome is not Outcome.OK} == {}
    assert outcomes(evidence()) == GOOD
    assert found.usable
    assert found.numbers["parameters"] == 30_912
    assert found.numbers["ctx_tokens"] == 32768


@pytest.mark.parametrize(
    ("changed", "uses"),
    [
        ({"template": FORGETFUL}, GOOD | {"rl": "warning"}),
        ({"template": WITHOUT_TOOLS}, GOOD | {"rl": "warning"}),
        ({"template": None}, GOOD | {"rl": "failure", "sft": "warning"}),
        ({"tokenized": None}, dict.fromkeys(GOOD, "failure")),
        ({"tokenized": NotKnown("no tokenizers there")}, dict.fromkeys(GOOD, "not known")),
        ({"tokenized": Tokenized(400, 399, True, {})}, dict.fromkeys(GOOD, "failure")),
        (
            {"config": QWEN3 | {"quantization_config": {"quant_method": "fp8"}}},
            GOOD | {"rl": "failure", "sft": "failure"},
        ),
        ({"config": QWEN3 | {"model_type": "nemotron"}}, {"rl": "warning", "sft": "warning", "pretraining": "failure"}),
        ({"config": {"model_type": "bert", "architectures": ["BertModel"]}}, dict.fromkeys(GOOD, "failure")),
        ({"files": FILES._replace(weights=None)}, GOOD | {"rl": "failure", "sft": "failure"}),
        ({"files": FILES._replace(weights=None, origin="cache")}, GOOD | {"rl": "not known", "sft": "not known"}),
    ],
)
def test_what_each_fault_leaves_it_good_for(changed: dict[str, Any], uses: dict[str, str]) -> None:
    assert outcomes(evidence(**changed)) == uses


def test_each_use_states_what_to_do_first() -> None:
    (rl, *_) = verdict(evidence(template=FORGETFUL)).uses
    assert rl.because == ("multi-turn",)
    assert "keeps history" in rl.fix
    (rl, *_) = verdict(evidence(config=QWEN3 | {"quantization_config": {"quant_method": "awq"}})).uses
    assert rl.because == ("quantisation",)
    (*_, pretraining) = verdict(evidence(config=QWEN3 | {"model_type": "nemotron"})).uses
    assert "Qwen3 shape" in pretraining.fix
    assert "full-precision" in rl.fix


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ("not json", "is not JSON"),
        ("[1]", "not a JSON object"),
        ("{}", "neither model_type nor num_hidden_layers"),
        (json.dumps(QWEN3 | {"hidden_size": -4}), "hidden_size"),
        (json.dumps(QWEN3 | {"num_hidden_layers": 10**12}), "num_hidden_layers"),
        (json.dumps(QWEN3 | {"vocab_size": "many"}), "vocab_size"),
        (json.dumps(QWEN3 | {"num_attention_heads": None}), "num_attention_heads"),
        (json.dumps({"is_encoder_decoder": True, "model_type": "t5"}), "is_encoder_decoder"),
        (json.dumps(QWEN3 | {"model_type": "qwen3_moe", "num_experts": 8}), "moe_intermediate_size"),
    ],
)
def test_a_config_that_gives_no_language_model_is_reported_in_four_parts(config: str, said: str) -> None:
    found = check(evidence()._replace(config=config), "config")
    assert found.outcome is Outcome.FAILURE
    assert said in found.what
    assert found.why
    assert found.fix
    assert not verdict(evidence()._replace(config=config)).usable


def test_an_adapter_is_no_model() -> None:
    files = FILES._replace(sizes={"adapter_config.json": 10})
    found = check(evidence(files=files)._replace(config=None), "config")
    assert "LoRA adapter" in found.what
    assert "base model" in found.fix


def test_a_config_that_did_not_come_whole_is_not_called_missing() -> None:
    files = FILES._replace(unread=(Unread("config.json", ReadFault.TRUNCATED, "10 of 300 bytes came"),))
    assert "10 of 300 bytes" in check(evidence(files=files)._replace(config=None), "config").what


def test_config_and_weights_of_two_models() -> None:
    for changed, said in (
        ({"layers": 1}, "num_hidden_layers"),
        ({"embedding": (384, 64)}, "hidden_size"),
        ({"embedding": (300, 32)}, "vocab_size"),
        ({"faults": ("model-2.safetensors is missing",)}, "is missing"),
    ):
        files = FILES._replace(weights=WEIGHTS._replace(**changed))
        found = check(evidence(files=files), "weights")
        assert found.outcome is Outcome.FAILURE
        assert said in found.what


def test_extra_blocks_that_predict_further_tokens_are_no_mismatch() -> None:
    files = FILES._replace(weights=WEIGHTS._replace(layers=3))
    assert check(evidence(files=files), "weights").outcome is Outcome.OK


@pytest.mark.parametrize(
    ("changed", "outcome", "tokens"),
    [
        ({}, "ok", "32,768"),
        ({"max_position_embeddings": 4096}, "warning", "4,096"),
        ({"max_position_embeddings": None}, "warning", "no context length"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 4.0}}, "ok", "131,072"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "ok", "32,768 tokens with yarn"),
        ({"rope_parameters": {"rope_type": "llama3", "factor": 8.0}}, "ok", "32,768 tokens with llama3"),
        ({"rope_scaling": {"type": "dynamic", "factor": -1}}, "ok", "32,768"),
    ],
)
def test_the_context_is_what_vllm_derives(changed: dict[str, Any], outcome: str, tokens: str) -> None:
    found = check(evidence(config=QWEN3 | changed), "context")
    assert (str(found.outcome), tokens in found.what) == (outcome, True), found


def test_a_tokenizer_that_cuts_earlier() -> None:
    found = check(evidence(tokenizer_config={"model_max_length": 2048}), "context")
    assert found.outcome is Outcome.WARNING
    assert "2,048" in found.what


@pytest.mark.parametrize(
    ("licence", "outcome"),
    [("apache-2.0", "ok"), ("MIT", "ok"), ("llama3.2", "warning"), ("cc-by-nc-4.0", "warning"), ("", "not known")],
)
def test_licences(licence: str, outcome: str) -> None:
    files = FILES._replace(card={"license": licence} if licence else {})
    assert str(check(evidence(files=files), "licence").outcome) == outcome


def test_known_issues_are_reported_by_name() -> None:
    found = check(evidence(files=FILES._replace(name="Qwen/Qwen3-0.6B")), "known-issues")
    assert found.outcome is Outcome.WARNING
    assert "issues 947 and 1334" in found.why
    assert check(evidence(files=FILES._replace(name="Qwen/Qwen3-0.6")), "known-issues").what.endswith("Qwen3-0.6B is")


def test_a_turn_that_vllm_does_not_stop_at() -> None:
    found = check(evidence(config=QWEN3 | {"eos_token_id": [0, 1]}), "turn-end")
    assert found.outcome is Outcome.WARNING
    assert "258" in found.what
    well = evidence(config=QWEN3 | {"eos_token_id": 0}, generation={"eos_token_id": [0, 258]})
    assert check(well, "turn-end").outcome is Outcome.OK


def test_code_that_a_model_brings() -> None:
    found = check(evidence(config=QWEN3 | {"auto_map": {"AutoConfig": "configuration.Mine"}}), "remote-code")
    assert "AutoConfig" in found.what


_VALUES = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.lists(st.integers(), max_size=2)
)
_KEYS = st.sampled_from(
    [*QWEN3, "text_config", "rope_scaling", "quantization_config", "auto_map", "vision_config", "num_experts"]
)


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(_KEYS, _VALUES | st.dictionaries(_KEYS, _VALUES, max_size=3), max_size=6))
def test_no_config_makes_the_verdict_fall_over(changed: dict[str, Any]) -> None:
    found = verdict(evidence(config=QWEN3 | changed))
    assert [use.id for use in found.uses] == ["rl", "sft", "pretraining"]
    assert all(each.what for each in found.checks)
    assert all(each.fix for each in found.checks if each.outcome in (Outcome.WARNING, Outcome.FAILURE))


def test_of_a_model_that_cannot_be_read_the_registry_is_reported() -> None:
    refused = RefusedRead(ReadFault.UNREACHABLE, "no route")
    found = judge_unreached("Qwen/Qwen2.5-7B-Instruct", refused, Stack(NOWHERE), H100)
    assert found is not None
    by_id = {each.id: each for each in found.checks}
    assert by_id["access"].outcome is Outcome.NOT_KNOWN
    assert "7.6 B parameters" in by_id["config"].what
    assert by_id["vllm"].outcome is Outcome.OK
    assert "hermes" in by_id["tool-parser"].what
    assert {"memory-to-serve", "memory-to-train", "known-issues"} <= set(by_id)
    assert {use.outcome for use in found.uses} == {Outcome.NOT_KNOWN}


def test_of_a_model_that_nothing_is_known_of_nothing_is_reported() -> None:
    assert judge_unreached("lab/unheard-of", RefusedRead(ReadFault.UNREACHABLE, ""), Stack(NOWHERE), H100) is None


def test_sft_needs_a_trainer_that_supports_the_model() -> None:
    found = evidence(QWEN3 | {"model_type": "llamma", "architectures": ["LlamaForCausalLM"]})
    assert outcomes(found)["sft"] == "failure"
