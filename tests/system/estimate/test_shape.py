from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_train.config import run_toml
from prime_train.estimate.model.families import FAMILIES
from prime_train.estimate.model.shape import ShapeError, shape_from_config, shape_from_registry, shape_from_run
from prime_train.registry import known

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
_BUFFERS = {"deepseek_v3", "minimax_m2", "glm4_moe"}
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


def test_a_shape_states_whether_it_has_experts() -> None:
    assert shape_from_config(QWEN3_MOE).is_moe
    assert not shape_from_config(QWEN3).is_moe


def test_the_case_of_a_name_does_not_count() -> None:
    plain, other = shape_from_registry("allenai/OLMo-3-7B-Instruct"), shape_from_registry("allenai/Olmo-3-7B-Instruct")
    assert plain is not None
    assert other == plain._replace(name="allenai/Olmo-3-7B-Instruct")
    assert shape_from_registry("allenai/olmo") is None
