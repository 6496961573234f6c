"""Small architectures of every family that the trainer knows."""

from __future__ import annotations

from dataclasses import replace

import torch

from prime_train.spec.decoder_size import RopeScaling
from prime_train.trainer.model.decoder import Decoder, ModelConfig, build
from tests.unit.trainer import tiny

ROUTED = replace(tiny.CONFIG, experts=4, experts_per_token=2, expert_mlp_size=24)
ARCHITECTURES: dict[str, ModelConfig] = {
    "llama": tiny.CONFIG,
    "llama3": replace(tiny.CONFIG, rope_scaling=RopeScaling(8.0, 1.0, 4.0, 16)),
    "qwen2": replace(tiny.CONFIG, biases="qkv", tie_embeddings=False),
    "qwen3": replace(tiny.CONFIG, qk_norm=True),
    "mistral": replace(tiny.CONFIG, sliding_window=64),
    "gpt2": replace(
        tiny.CONFIG, kv_heads=2, biases="all", layer_norm=True, gated_mlp=False, learned_positions=50, norm_eps=1e-5
    ),
    "qwen3_moe": replace(ROUTED, qk_norm=True, norm_expert_weights=True),
    "glm4_moe": replace(ROUTED, router="sigmoid", shared_experts=1, expert_scale=1.5),
}


def loud(config: ModelConfig, seed: int = 1) -> Decoder:
    """A decoder whose biases and routers matter: `build` gives 0 to biases and almost equal scores to experts."""
    model = build(config, seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.state_dict().items():
            centre = 1.0 if weight.ndim < 2 and not name.endswith((".bias", ".balance")) else 0.0
            weight.normal_(centre, 0.2, generator=generator)
    return model
