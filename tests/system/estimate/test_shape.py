from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_train.config import run_toml
from prime_train.estimate.memory.sharding import groups_of
from prime_train.estimate.model.families import FAMILIES
from prime_train.estimate.model.shape import (
    ShapeError,
    UnknownBlocksError,
    shape_from_config,
    shape_from_registry,
    shape_from_run,
)
from prime_train.estimate.time.token_flops import active_expert_parameters, linear_parameters
from prime_train.registry import known
from prime_train.registry.tensor_names import tensor_names

_MEASURED = Path(__file__).parents[4] / "shared" / "facts" / "model_configs.json"  # a public clone has none

QWEN3: dict[str, Any] = {
    "model_type": "qwen3",
    "architectures": ["Qwen3ForCausalLM"],
    "vocab_size": 151936,
    "hidden_size": 1024,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 3072,
    "tie_word_embeddings": True,
    "max_position_embeddings": 40960,
    "sliding_window": None,
    "torch_dtype": "bfloat16",
}
QWEN3_MOE: dict[str, Any] = {
    **QWEN3,
    "model_type": "qwen3_moe",
    "architectures": ["Qwen3MoeForCausalLM"],
    "hidden_size": 2048,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "intermediate_size": 6144,
    "tie_word_embeddings": False,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
}

# Parameters as transformers 5 builds them, with the biases that balance experts, which the weights hold too.
KNOWN: list[tuple[str, dict[str, Any], int]] = [
    ("Qwen/Qwen3-0.6B", QWEN3, 596_049_920),
    ("Qwen/Qwen3-30B-A3B", QWEN3_MOE, 30_532_122_624),
    (
        "openai/gpt-oss-120b",
        {
            "model_type": "gpt_oss",
            "vocab_size": 201088,
            "hidden_size": 2880,
            "num_hidden_layers": 36,
            "num_attention_heads": 64,
            "num_key_value_heads": 8,
            "head_dim": 64,
            "intermediate_size": 2880,
            "num_local_experts": 128,
            "num_experts_per_tok": 4,
            "attention_bias": True,
            "sliding_window": 128,
            "quantization_config": {"quant_method": "mxfp4"},
        },
        116_829_156_672,
    ),
    (
        "deepseek-ai/DeepSeek-V3",
        {
            "model_type": "deepseek_v3",
            "vocab_size": 129280,
            "hidden_size": 7168,
            "num_hidden_layers": 61,
            "num_attention_heads": 128,
            "num_key_value_heads": 128,
            "intermediate_size": 18432,
            "moe_intermediate_size": 2048,
            "n_routed_experts": 256,
            "n_shared_experts": 1,
            "num_experts_per_tok": 8,
            "first_k_dense_replace": 3,
            "kv_lora_rank": 512,
            "q_lora_rank": 1536,
            "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64,
            "v_head_dim": 128,
        },
        671_026_419_200,
    ),
]

NEMOTRON_H: dict[str, Any] = {
    "model_type": "nemotron_h",
    "architectures": ["NemotronHForCausalLM"],
    "vocab_size": 131072,
    "hidden_size": 2688,
    "num_hidden_layers": 52,
    "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
    "num_attention_heads": 32,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "intermediate_size": 1856,
    "mamba_num_heads": 64,
    "mamba_head_dim": 64,
    "ssm_state_size": 128,
    "n_groups": 8,
    "conv_kernel": 4,
    "use_conv_bias": True,
    "n_routed_experts": 128,
    "num_experts_per_tok": 6,
    "moe_intermediate_size": 1856,
    "moe_shared_expert_intermediate_size": 3712,
    "time_step_limit": [0.0, float("inf")],
    "tie_word_embeddings": False,
}
LLAMA4: dict[str, Any] = {
    "model_type": "llama4",
    "architectures": ["Llama4ForConditionalGeneration"],
    "text_config": {
        "model_type": "llama4_text",
        "vocab_size": 202048,
        "hidden_size": 5120,
        "num_hidden_layers": 48,
        "num_attention_heads": 40,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size": 8192,
        "intermediate_size_mlp": 16384,
        "num_local_experts": 16,
        "num_experts_per_tok": 1,
        "interleave_moe_layer_step": 1,
        "attention_chunk_size": 8192,
    },
}
KIMI_LINEAR: dict[str, Any] = {
    "model_type": "kimi_linear",
    "architectures": ["KimiLinearForCausalLM"],
    "auto_map": {"AutoConfig": "configuration_kimi.KimiLinearConfig"},
    "vocab_size": 163840,
    "hidden_size": 2304,
    "head_dim": 72,
    "num_hidden_layers": 27,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "intermediate_size": 9216,
    "moe_intermediate_size": 1024,
    "num_experts": 256,
    "num_experts_per_token": 8,
    "num_shared_experts": 1,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 512,
    "q_lora_rank": None,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "linear_attn_config": {
        "full_attn_layers": [4, 8, 12, 16, 20, 24, 27],
        "kda_layers": [layer for layer in range(1, 27) if layer % 4],
        "head_dim": 128,
        "num_heads": 32,
        "short_conv_kernel_size": 4,
    },
}
GEMMA3N: dict[str, Any] = {
    "model_type": "gemma3n",
    "architectures": ["Gemma3nForConditionalGeneration"],
    "text_config": {
        "model_type": "gemma3n_text",
        "vocab_size": 262400,
        "hidden_size": 2048,
        "num_hidden_layers": 35,
        "intermediate_size": [16384] * 35,
        "num_kv_shared_layers": 15,
        "sliding_window": 512,
    },
    "vision_config": {"model_type": "gemma3n_vision", "architecture": "mobilenetv5_300m_enc", "hidden_size": 2048},
    "audio_config": {"model_type": "gemma3n_audio", "hidden_size": 1536, "conf_num_hidden_layers": 12},
}
GEMMA4: dict[str, Any] = {
    "model_type": "gemma4_text",
    "architectures": ["Gemma4ForCausalLM"],
    "vocab_size": 262144,
    "hidden_size": 2816,
    "num_hidden_layers": 30,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "num_global_key_value_heads": 2,
    "attention_k_eq_v": True,
    "intermediate_size": 2112,
    "enable_moe_block": True,
    "num_experts": 128,
    "top_k_experts": 8,
    "moe_intermediate_size": 704,
    "hidden_size_per_layer_input": 0,
}


@pytest.mark.parametrize(
    ("config", "billions"),
    [
        (NEMOTRON_H, 31.6),  # huggingface.co/nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16; arXiv 2512.20848, s. 2
        (LLAMA4, 107.8),  # huggingface.co/meta-llama/Llama-4-Scout-17B-16E: 109 B with its vision encoder
        (KIMI_LINEAR, 49.1),  # huggingface.co/moonshotai/Kimi-Linear-48B-A3B-Instruct
        (GEMMA3N, 7.85),  # huggingface.co/google/gemma-3n-E4B-it
        (GEMMA4, 25.2),  # ai.google.dev/gemma/docs/core: 26B A4B, of which a vision encoder has 0.5
    ],
)
def test_blocks_that_differ_are_counted_one_by_one(config: dict[str, Any], billions: float) -> None:
    assert shape_from_config(config).parameters / 1e9 == pytest.approx(billions, rel=0.01)


def test_a_hybrid_has_a_cache_only_where_it_has_attention() -> None:
    nemotron, kimi = shape_from_config(NEMOTRON_H), shape_from_config(KIMI_LINEAR)
    assert (nemotron.layers - nemotron.linear_layers, nemotron.linear_layers) == (6, 23)
    assert (nemotron.layers - nemotron.dense_layers, nemotron.experts_per_token) == (23, 6)
    assert (kimi.layers - kimi.linear_layers, kimi.experts_per_token) == (7, 8)
    assert min(nemotron.linear_state_bytes, kimi.linear_state_bytes) > 2**20
    # what a token is multiplied with: 3.2 B active parameters with embedding and head, arXiv 2512.20848, s. 2
    active = linear_parameters(nemotron) + active_expert_parameters(nemotron) + 2 * 131072 * 2688
    assert active / 1e9 == pytest.approx(3.5, rel=0.1)


def test_embeddings_of_single_blocks_are_no_part_of_a_block() -> None:
    shape = shape_from_config(GEMMA3N)
    assert shape.lookup_parameters == 262144 * 35 * 256
    assert groups_of(shape).block * shape.layers < shape.parameters - shape.lookup_parameters
    assert linear_parameters(shape) < shape.parameters - shape.lookup_parameters


@pytest.mark.parametrize(
    "change",
    [
        {"hybrid_override_pattern": "M*M-"},
        {"layers_block_type": ["mamba", "attention"]},
        {"layer_types": ["mamba"] * 28},
        {"layer_types": ["full_attention", "conv"] * 14},
        {"layer_types": ["linear_attention"] * 28, "linear_num_key_heads": 16},
        {"mamba_d_state": 128},
        {"attn_layer_period": 8},
        {"attn_layer_indices": [3]},
        {"conv_L_cache": 3},
        {"hidden_size_per_layer_input": 256},
        {"num_kv_shared_layers": 10},
        {"linear_attn_config": {"num_heads": 4}},
        {"o_lora_rank": 512},
        {"hidden_act": "relu2"},
        {"moe_num_shared_experts": 2, "num_experts": 8, "num_experts_per_tok": 2},
        {"memory_num_slots": 4096},
    ],
)
def test_an_unknown_type_with_other_blocks_is_refused_and_never_counted_as_a_llama(change: dict[str, Any]) -> None:
    plain = {**QWEN3, "model_type": "unheard_of", "architectures": ["UnheardOfForCausalLM"]}
    assert "read as a Llama" in shape_from_config(plain).source
    with pytest.raises(UnknownBlocksError, match="not known"):
        shape_from_config({**plain, **change})


@pytest.mark.parametrize("change", [{"hybrid_override_pattern": "MEX"}, {"layers_block_type": ["mamba", "rwkv"]}])
def test_a_kind_of_block_that_is_not_known_is_no_fault_of_the_file(change: dict[str, Any]) -> None:
    with pytest.raises(UnknownBlocksError, match="not known"):
        shape_from_config({**NEMOTRON_H, **change})


def test_weights_decide_whether_an_unknown_type_is_a_llama() -> None:
    plain = {**QWEN3, "model_type": "unheard_of", "hidden_act": "gelu"}
    with pytest.raises(ShapeError, match="hidden_act"):
        shape_from_config(plain)
    assert shape_from_config(plain, loaded=596_049_920).parameters == 596_049_920
    with pytest.raises(ShapeError, match=r"its weights have 0\.45 B"):
        shape_from_config(plain, loaded=450_000_000)


@pytest.mark.parametrize(
    ("config", "field"),
    [
        ({**NEMOTRON_H, "hybrid_override_pattern": None}, "hybrid_override_pattern"),
        ({**NEMOTRON_H, "mamba_num_heads": None}, "mamba_num_heads"),
        ({**GEMMA4, "num_kv_shared_layers": 30}, "num_kv_shared_layers"),
        ({**GEMMA4, "layer_types": ["full_attention"]}, "layer_types"),
        ({**GEMMA3N, "text_config": {**GEMMA3N["text_config"], "intermediate_size": [1]}}, "intermediate_size"),
    ],
)
def test_a_fault_in_a_block_is_refused_with_its_field(config: dict[str, Any], field: str) -> None:
    with pytest.raises(ShapeError) as refused:
        shape_from_config(config)
    assert refused.value.field == field


@pytest.mark.parametrize(("name", "config", "parameters"), KNOWN, ids=[row[0] for row in KNOWN])
def test_parameters_are_those_of_the_weights(name: str, config: dict[str, Any], parameters: int) -> None:
    assert shape_from_config(config, name).parameters == parameters


def test_what_a_config_leaves_out_is_the_familys_own() -> None:
    gemma = shape_from_config(
        {
            "model_type": "gemma3",
            "architectures": ["Gemma3ForConditionalGeneration"],
            "text_config": {
                "model_type": "gemma3_text",
                "hidden_size": 2560,
                "intermediate_size": 10240,
                "num_hidden_layers": 34,
                "sliding_window": 1024,
            },
            "vision_config": {"hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27},
        }
    )
    assert (gemma.vocab_size, gemma.heads, gemma.kv_heads, gemma.head_dim) == (262208, 8, 4, 256)
    assert (gemma.sliding_window, gemma.sliding_layers) == (1024, 29)
    assert gemma.parameters - gemma.vision_parameters == 3_880_263_168
    assert gemma.vision_parameters == pytest.approx(419_816_304, rel=0.03)


def test_the_headers_of_the_weights_overrule_the_count() -> None:
    assert shape_from_config(QWEN3, loaded=600_000_000).parameters == 600_000_000
    assert shape_from_config(QWEN3, loaded=600_000_000).vision_parameters == 0


def test_hybrid_and_latent_attention() -> None:
    next_ = shape_from_config(
        {
            "model_type": "qwen3_next",
            "vocab_size": 151936,
            "hidden_size": 2048,
            "num_hidden_layers": 48,
            "num_attention_heads": 16,
            "num_key_value_heads": 2,
            "head_dim": 256,
            "intermediate_size": 5120,
            "num_experts": 512,
            "num_experts_per_tok": 10,
            "moe_intermediate_size": 512,
            "shared_expert_intermediate_size": 512,
            "linear_num_key_heads": 16,
            "linear_num_value_heads": 32,
            "linear_key_head_dim": 128,
            "linear_value_head_dim": 128,
        }
    )
    assert (next_.parameters, next_.linear_layers, next_.shared_expert_mlp_size) == (79_674_391_296, 36, 512)
    latent = shape_from_config(KNOWN[3][1])
    assert (latent.kv_lora_rank, latent.rope_head_dim, latent.head_dim, latent.dense_layers) == (512, 64, 192, 3)


@pytest.mark.parametrize(
    ("quantization", "low", "high"),
    [
        ({"quant_method": "fp8"}, 1.0, 1.3),
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, 0.51, 0.95),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, 0.56, 0.95),
        ({"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": {"num_bits": 8}}}}, 1.0, 1.3),
        ({"quant_method": "never heard of"}, 2.0, 2.0),
    ],
)
def test_bytes_of_quantised_weights(quantization: dict[str, Any], low: float, high: float) -> None:
    shape = shape_from_config({**QWEN3, "quantization_config": quantization})
    assert shape.quantization == quantization["quant_method"]
    assert low <= shape.weight_bytes <= high


def _without(config: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in config.items() if name != key}


@pytest.mark.parametrize(
    ("config", "field"),
    [
        ({}, ""),
        ({"model_type": "bert", "hidden_size": 768, "num_hidden_layers": 12}, "model_type"),
        ({**QWEN3, "architectures": ["BertForMaskedLM"]}, "architectures"),
        ({**QWEN3, "is_encoder_decoder": True}, "is_encoder_decoder"),
        (_without(QWEN3, "vocab_size"), "vocab_size"),
        (_without(QWEN3, "intermediate_size"), "intermediate_size"),
        (_without(QWEN3_MOE, "num_experts"), "num_experts"),
        (_without(QWEN3_MOE, "num_experts_per_tok"), "num_experts_per_tok"),
        (_without(QWEN3_MOE, "moe_intermediate_size"), "moe_intermediate_size"),
        ({**QWEN3_MOE, "num_experts_per_tok": 129}, "num_experts_per_tok"),
        ({**QWEN3, "num_hidden_layers": -28}, "num_hidden_layers"),
        ({**QWEN3, "num_hidden_layers": 0}, "num_hidden_layers"),
        ({**QWEN3, "hidden_size": 10**30}, "hidden_size"),
        ({**QWEN3, "hidden_size": 2**30, "intermediate_size": 2**30}, ""),
        ({**QWEN3, "hidden_size": "1024"}, "hidden_size"),
        ({**QWEN3, "hidden_size": True}, "hidden_size"),
        ({**QWEN3, "hidden_size": float("nan")}, "hidden_size"),
        ({**QWEN3, "num_key_value_heads": 3}, "num_key_value_heads"),
        ({**QWEN3, "tie_word_embeddings": "yes"}, "tie_word_embeddings"),
        ({**QWEN3, "layer_types": "full_attention"}, "layer_types"),
        ({**QWEN3, "quantization_config": ["fp8"]}, "quantization_config"),
        ({"text_config": 7}, "text_config"),
        ({**QWEN3, "vision_config": {"hidden_size": 4}}, "vision_config.depth"),
    ],
)
def test_what_is_no_decoder_is_refused_with_its_field(config: dict[str, Any], field: str) -> None:
    with pytest.raises(ShapeError) as refused:
        shape_from_config(config)
    assert refused.value.field == field
    assert refused.value.what


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(st.text(max_size=5), below, max_size=3),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from([*QWEN3_MOE, "vision_config", "text_config", "mlp_only_layers"]), _JSON))
def test_any_json_makes_a_shape_or_a_shape_error(changes: dict[str, Any]) -> None:
    try:
        shape = shape_from_config({**QWEN3_MOE, **changes})
    except ShapeError:
        return
    assert shape.parameters > 0
    assert 0 <= shape.dense_layers <= shape.layers


@given(st.sampled_from(["num_hidden_layers", "num_experts", "moe_intermediate_size", "vocab_size"]), st.integers(1, 9))
def test_parameters_grow_with_every_size(key: str, factor: int) -> None:
    larger = {**QWEN3_MOE, key: QWEN3_MOE[key] * factor}
    assert shape_from_config(larger).parameters >= shape_from_config(QWEN3_MOE).parameters


def test_a_run_toml_has_the_shape_of_its_size_fields() -> None:
    text = (
        '[run]\nname = "r"\nmax_steps = 1\n[model]\nlayers = 3\nhidden_size = 256\nheads = 4\n'
        '[data]\nctx_tokens = 128\n[[data.sources]]\nkind = "python-stdlib"\n'
    )
    run = run_toml.read(text, "run.toml").run
    assert run is not None
    shape = shape_from_run(run, 4096)
    llama = shape_from_config(
        {
            "model_type": "llama",
            "vocab_size": 4096,
            "hidden_size": 256,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "intermediate_size": shape.mlp_size,
            "tie_word_embeddings": True,
        }
    )
    assert shape.parameters == llama.parameters


def test_every_row_of_the_registry_is_a_possible_shape() -> None:
    for name in known.shape_rows():
        shape = shape_from_registry(name)
        assert shape is not None
        assert shape.heads % shape.kv_heads == 0
        assert shape.parameters > shape.vocab_size * shape.hidden_size
        assert shape.dense_layers == (0 if shape.is_moe else shape.layers) or shape.dense_layers < shape.layers
        assert shape.sliding_layers + shape.linear_layers <= shape.layers
        assert shape.source
        assert name in shape.source or "llm-foundry" in shape.source or "arXiv" in shape.source
    assert shape_from_registry("no/such-model") is None


def test_the_registry_agrees_with_the_measured_models() -> None:
    if not _MEASURED.is_file():
        pytest.skip(f"{_MEASURED} is not here")
    for name, measured in json.loads(_MEASURED.read_text()).items():
        shape = shape_from_registry(name)
        assert shape is not None, name
        assert shape.parameters == pytest.approx(measured["params"], rel=0.001), name
        assert (shape.layers, shape.hidden_size, shape.vocab_size) == (
            measured["layers"],
            measured["hidden"],
            measured["vocab"],
        )
        assert (shape.heads, shape.kv_heads, shape.head_dim) == (
            measured["heads"],
            measured["kv_heads"],
            measured["head_dim"],
        )
        assert (shape.experts, shape.experts_per_token) == (measured["experts"], measured["top_k"])


# Biases that balance experts are no parameters to transformers, and are stored in the weights.
_BUFFERS = {"deepseek_v3", "minimax_m2", "glm4_moe", "kimi_linear", "nemotron_h"}
_BUFFERS |= {"deepseek_v32", "glm4_moe_lite", "glm_moe_dsa"}
# No class of transformers makes a language model of these alone, or it takes the remote code of the repository.
_NOT_BUILT = {"yi", "baichuan", "internlm2", "qwen", "chatglm", "kimi_k2", "deepseek_v2"}


@pytest.mark.parametrize("model_type", sorted(key for key in FAMILIES if key not in _NOT_BUILT and "_vl" not in key))
def test_a_family_counts_what_transformers_builds(model_type: str) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    mapping = transformers.models.auto.configuration_auto.CONFIG_MAPPING
    if model_type not in mapping:
        pytest.skip(f"this transformers has no {model_type}")
    config = mapping[model_type](**({"head_dim": 128} if model_type == "glm4_moe" else {}))
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    built = sum(parameter.numel() for parameter in model.parameters())
    counted = shape_from_config(config.to_dict()).parameters
    assert counted == (pytest.approx(built, rel=1e-6) if model_type in _BUFFERS | {"apertus"} else built)
    names = tensor_names(model_type)
    modules = {re.sub(r"\.\d+\.", ".*.", name.rpartition(".")[0]) for name in model.state_dict()}
    assert names is None or set(names.modules()) <= modules


def test_a_shape_states_whether_it_has_experts() -> None:
    assert shape_from_config(QWEN3_MOE).is_moe
    assert not shape_from_config(QWEN3).is_moe


def test_the_case_of_a_name_does_not_count() -> None:
    plain, other = shape_from_registry("allenai/OLMo-3-7B-Instruct"), shape_from_registry("allenai/Olmo-3-7B-Instruct")
    assert plain is not None
    assert other == plain._replace(name="allenai/Olmo-3-7B-Instruct")
    assert shape_from_registry("allenai/olmo") is None
