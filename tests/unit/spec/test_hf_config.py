"""The judge of a config.json: published models are read and counted, and what is not computed is refused by name."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_train.core.errors import UserError
from prime_train.spec.decoder_size import RopeScaling
from prime_train.spec.hf_config import MODEL_TYPES, describe_decoder, find_context_limit, read_architecture
from tests.unit.spec.architectures import architecture

LLAMA3_SCALING = {
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
    "rope_type": "llama3",
}
# config.json of the models, as published, without keys that change nothing here.
LLAMA_3_2_1B: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 128256,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "attention_bias": False,
    "mlp_bias": False,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-05,
    "rope_theta": 500000.0,
    "rope_scaling": LLAMA3_SCALING,
    "tie_word_embeddings": True,
}
QWEN2_5_0_5B: dict[str, Any] = {
    "model_type": "qwen2",
    "vocab_size": 151936,
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "hidden_act": "silu",
    "max_window_layers": 24,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "sliding_window": 32768,
    "use_sliding_window": False,
    "tie_word_embeddings": True,
}
MISTRAL_7B_V0_1: dict[str, Any] = {
    "model_type": "mistral",
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0,
    "sliding_window": 4096,
    "tie_word_embeddings": False,
}
GPT2: dict[str, Any] = {
    "model_type": "gpt2",
    "activation_function": "gelu_new",
    "vocab_size": 50257,
    "n_embd": 768,
    "n_head": 12,
    "n_layer": 12,
    "n_positions": 1024,
    "layer_norm_epsilon": 1e-05,
}
QWEN3_30B_A3B: dict[str, Any] = {
    "model_type": "qwen3_moe",
    "vocab_size": 151936,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "hidden_act": "silu",
    "attention_bias": False,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "moe_intermediate_size": 768,
    "norm_topk_prob": True,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
}
GLM4_MOE: dict[str, Any] = {
    "model_type": "glm4_moe",
    "vocab_size": 1000,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "hidden_act": "silu",
    "first_k_dense_replace": 0,
    "moe_intermediate_size": 32,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "routed_scaling_factor": 2.5,
    "use_qk_norm": True,
    "partial_rotary_factor": 1.0,
}


@pytest.mark.parametrize(
    ("config", "parameters", "active"),
    [
        (LLAMA_3_2_1B, 1_235_814_400, 1_235_814_400),
        (QWEN2_5_0_5B, 494_032_768, 494_032_768),
        (MISTRAL_7B_V0_1, 7_241_732_096, 7_241_732_096),
        (GPT2, 124_439_808, 124_439_808),
        (QWEN3_30B_A3B, 30_532_122_624, 3_353_032_704),
    ],
    ids=lambda value: value["model_type"] if isinstance(value, dict) else "",
)
def test_published_models_have_their_published_size(config: dict[str, Any], parameters: int, active: int) -> None:
    architecture = read_architecture(config, "config.json")
    assert architecture.parameters == parameters
    assert architecture.active_parameters == active


@pytest.mark.parametrize("config", [LLAMA_3_2_1B, QWEN2_5_0_5B, MISTRAL_7B_V0_1, GPT2, QWEN3_30B_A3B, GLM4_MOE])
def test_what_is_written_is_read_as_the_same_architecture(config: dict[str, Any]) -> None:
    architecture = read_architecture(config, "config.json")
    written = describe_decoder(architecture, ctx_tokens=64, stop_token=2)
    assert read_architecture(written, "config.json") == architecture
    assert written["model_type"] == config["model_type"]
    assert written["eos_token_id"] == 2


def test_features_of_the_families() -> None:
    scaling = RopeScaling(factor=32.0, low_freq_factor=1.0, high_freq_factor=4.0, original_positions=8192)
    assert read_architecture(LLAMA_3_2_1B, "").rope_scaling == scaling
    assert read_architecture(QWEN2_5_0_5B, "").biases == "qkv"
    assert read_architecture(GPT2, "").biases == "all"
    assert read_architecture(GPT2, "").mlp_size == 3072
    assert read_architecture(GLM4_MOE, "").router == "sigmoid"
    assert read_architecture(GLM4_MOE, "").qk_norm


def test_a_family_is_kept_where_the_sizes_are_also_those_of_another() -> None:
    architecture = read_architecture(MISTRAL_7B_V0_1 | {"sliding_window": None}, "config.json")
    assert architecture.sliding_window is None
    assert describe_decoder(architecture, ctx_tokens=64)["model_type"] == "mistral"


def test_both_spellings_of_the_number_of_experts_are_read() -> None:
    renamed = {("num_local_experts" if key == "num_experts" else key): value for key, value in QWEN3_30B_A3B.items()}
    assert read_architecture(renamed, "") == read_architecture(QWEN3_30B_A3B, "")


@pytest.mark.parametrize(
    ("config", "limit"), [(GPT2, 1024), (MISTRAL_7B_V0_1, 4096), (LLAMA_3_2_1B, None), (QWEN3_30B_A3B, None)]
)
def test_the_longest_context(config: dict[str, Any], limit: int | None) -> None:
    found = find_context_limit(read_architecture(config, ""))
    assert (found and found[0]) == limit


@pytest.mark.parametrize(
    ("config", "changes", "named"),
    [
        (QWEN2_5_0_5B, {"use_sliding_window": True}, "use_sliding_window = true"),
        (QWEN2_5_0_5B, {"layer_types": ["full_attention", "sliding_attention"]}, 'layer_types has "sliding_attention"'),
        (QWEN2_5_0_5B, {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, 'rope_type = "yarn"'),
        (LLAMA_3_2_1B, {"rope_scaling": LLAMA3_SCALING | {"factor": "8"}}, 'factor = "8"'),
        (LLAMA_3_2_1B, {"rope_scaling": LLAMA3_SCALING | {"factor": None}}, 'rope_type = "llama3" without factor'),
        (LLAMA_3_2_1B, {"rope_scaling": LLAMA3_SCALING | {"low_freq_factor": 4.0}}, "low_freq_factor = 4"),
        (
            LLAMA_3_2_1B,
            {"rope_scaling": LLAMA3_SCALING | {"original_max_position_embeddings": 0}},
            "original_max_position_embeddings = 0",
        ),
        (MISTRAL_7B_V0_1, {"sliding_window": 0}, "sliding_window = 0"),
        (GPT2, {"n_head": 7}, "n_head = 7 does not divide n_embd = 768"),
        (GPT2, {"n_positions": None}, "n_positions = null"),
        (GPT2, {"activation_function": "relu"}, 'activation_function = "relu"'),
        (GPT2, {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx = true"),
        (GPT2, {"tie_word_embeddings": "false"}, 'tie_word_embeddings = "false"'),
        (QWEN3_30B_A3B, {"num_experts_per_tok": 129}, "num_experts_per_tok = 129 is more than the 128 experts"),
        (QWEN3_30B_A3B, {"num_experts": 0}, "num_experts = 0"),
        (QWEN3_30B_A3B, {"decoder_sparse_step": 2}, "decoder_sparse_step = 2"),
        (QWEN3_30B_A3B, {"mlp_only_layers": [0]}, "mlp_only_layers = [0]"),
        (QWEN3_30B_A3B, {"norm_topk_prob": 1}, "norm_topk_prob = 1"),
        (GLM4_MOE, {"first_k_dense_replace": 1}, "first_k_dense_replace = 1"),
        (GLM4_MOE, {"n_group": 4}, "n_group = 4"),
        (GLM4_MOE, {"partial_rotary_factor": None}, "partial_rotary_factor below 1"),
        (GLM4_MOE, {"n_shared_experts": -1}, "n_shared_experts = -1"),
        (GLM4_MOE, {"model_type": "deepseek_v3"}, 'model_type = "deepseek_v3"'),
    ],
)
def test_what_is_not_computed_is_refused_by_name(config: dict[str, Any], changes: dict[str, Any], named: str) -> None:
    with pytest.raises(UserError) as refused:
        read_architecture(config | changes, "models/mine/config.json")
    assert named in refused.value.what
    assert refused.value.where == "models/mine/config.json"
    assert refused.value.why
    assert refused.value.fix


def test_an_unknown_type_is_refused_with_those_that_can_be_trained() -> None:
    with pytest.raises(UserError) as refused:
        read_architecture({"model_type": "mamba"}, "config.json")
    assert all(name in refused.value.why for name in MODEL_TYPES)


def test_softmax_routing_of_no_family_is_not_written() -> None:
    sizes = architecture(experts=4, experts_per_token=2)
    with pytest.raises(UserError, match="no model type"):
        describe_decoder(sizes, ctx_tokens=64)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 2**70) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@given(st.data())
def test_any_value_of_any_key_is_read_or_refused(data: st.DataObject) -> None:
    config = data.draw(st.sampled_from([LLAMA_3_2_1B, MISTRAL_7B_V0_1, GPT2, QWEN3_30B_A3B, GLM4_MOE]))
    key = data.draw(st.sampled_from([*config, "rope_parameters", "layer_types", "quantization_config"]))
    with suppress(UserError):
        assert read_architecture(config | {key: data.draw(JSON)}, "config.json").parameters > 0
