"""The content of a Hugging Face config.json for a decoder. Pure, without torch."""

from __future__ import annotations

from typing import Any

from prime_train.spec.decoder_size import Architecture

# The decoder's name of a size -> the key in config.json.
SIZE_KEYS = {
    "vocab_size": "vocab_size",
    "layers": "num_hidden_layers",
    "hidden_size": "hidden_size",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "mlp_size": "intermediate_size",
}


def describe_decoder(
    sizes: Architecture,
    *,
    rope_theta: float,
    norm_eps: float,
    ctx_tokens: int,
    stop_token: int | None = None,
    dtype: str = "float32",
) -> dict[str, Any]:
    """The content of config.json. The rotary base is written for transformers 4 and for 5."""
    return {
        "architectures": ["Qwen3ForCausalLM" if sizes.qk_norm else "LlamaForCausalLM"],
        "model_type": "qwen3" if sizes.qk_norm else "llama",
        **{key: getattr(sizes, name) for name, key in SIZE_KEYS.items()},
        "hidden_act": "silu",
        "rope_theta": rope_theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": rope_theta},
        "rms_norm_eps": norm_eps,
        "tie_word_embeddings": sizes.tie_embeddings,
        "attention_bias": False,
        "max_position_embeddings": ctx_tokens,
        "bos_token_id": None,
        "eos_token_id": stop_token,
        "dtype": dtype,
    }
