"""The numbers of a model that decide memory and time: read from a config.json's values, or from the registry. Pure."""

from __future__ import annotations

from typing import NamedTuple


class ModelShape(NamedTuple):
    """One decoder. Sizes are counts of numbers, not bytes; 0 where the model has no such thing.

    `layers` counts all blocks, `dense_layers` those with a dense MLP; the others have `experts` experts of
    `expert_mlp_size`, of which a token visits `experts_per_token`, and `shared_expert_mlp_size` (all shared experts
    together) that every token visits. `kv_lora_rank` > 0 is multi-head latent attention (DeepSeek-V2,
    arXiv 2405.04434, s. 2.1): its cache holds kv_lora_rank + rope_head_dim numbers per token and layer.
    `sliding_layers` of the layers see `sliding_window` tokens only. `linear_layers` keep no KV cache.
    `parameters` counts everything that is loaded, `vision_parameters` the part that is no decoder.
    """

    name: str
    vocab_size: int
    layers: int
    hidden_size: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp_size: int
    parameters: int
    tie_embeddings: bool
    source: str
    gated_mlp: bool = True
    qk_norm: bool = False
    dense_layers: int = 0
    experts: int = 0
    experts_per_token: int = 0
    expert_mlp_size: int = 0
    shared_expert_mlp_size: int = 0
    kv_lora_rank: int = 0
    rope_head_dim: int = 0
    sliding_window: int = 0
    sliding_layers: int = 0
    linear_layers: int = 0
    vision_parameters: int = 0
    ctx_tokens: int = 0
    quantization: str = ""
    weight_bytes: float = 2.0  # per parameter as stored

    @property
    def is_moe(self) -> bool:
        return self.experts > 0
