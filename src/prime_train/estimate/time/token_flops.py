"""Counts what one token meets in a model: the weights it is multiplied with, adapters, the FLOPs of attention. Pure."""

from __future__ import annotations

from prime_train.estimate.model.shape import ModelShape

_SLIDING_COST = 1.7  # per FLOP, relative to full attention: block-sparse masks waste tiles; measured: OLMo-3-7B rows


def moe_layers(shape: ModelShape) -> int:
    return max(0, shape.layers - shape.dense_layers) if shape.experts else 0


def linear_parameters(shape: ModelShape) -> float:
    """Weights that every token is multiplied with, over all layers: attention, dense MLP, shared experts, router."""
    if shape.linear_layers or shape.lookup_parameters:  # layers of several kinds: all that no part below describes
        return _counted_linear_parameters(shape)
    width, queries, keys = shape.hidden_size, shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    if shape.kv_lora_rank:  # keys and values come from a low-rank latent: DeepSeek-V2, arXiv 2405.04434, s. 2.1
        latent = shape.kv_lora_rank + shape.rope_head_dim
        attention = 2 * width * queries + width * latent + 2 * shape.kv_lora_rank * queries
    else:
        attention = 2 * width * (queries + keys)
    matrices = 3 if shape.gated_mlp else 2
    sparse = moe_layers(shape)
    mlp = (shape.layers - sparse) * shape.mlp_size + sparse * shape.shared_expert_mlp_size
    return float(shape.layers * attention + matrices * width * mlp + sparse * width * shape.experts)


def _counted_linear_parameters(shape: ModelShape) -> float:
    ends = shape.vocab_size * shape.hidden_size * (1 if shape.tie_embeddings else 2)
    routed = (
        moe_layers(shape) * (3 if shape.gated_mlp else 2) * shape.hidden_size * shape.expert_mlp_size * shape.experts
    )
    outside = shape.vision_parameters + shape.lookup_parameters
    return float(max(0, shape.parameters - outside - ends - routed))


def active_expert_parameters(shape: ModelShape) -> float:
    """Weights of the routed experts that one token visits, over all layers."""
    matrices = 3 if shape.gated_mlp else 2
    return float(moe_layers(shape) * matrices * shape.hidden_size * shape.expert_mlp_size * shape.experts_per_token)


def adapter_features(shape: ModelShape) -> float:
    """Input and output features of every linear layer with an adapter, over all layers, per token."""
    width, queries, keys = shape.hidden_size, shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    matrices = 3 if shape.gated_mlp else 2
    sparse = moe_layers(shape)
    mlp = (shape.layers - sparse) * (shape.mlp_size + width)
    shared = sparse * (shape.shared_expert_mlp_size + width) if shape.shared_expert_mlp_size else 0
    routed = sparse * shape.experts_per_token * (shape.expert_mlp_size + width)
    return float(shape.layers * (4 * width + 2 * queries + 2 * keys) + matrices * (mlp + shared + routed))


def adapter_parameters(shape: ModelShape, rank: int) -> float:
    """Weights of one adapter on every linear layer except the head: rank x (inputs + outputs) of each."""
    visited = moe_layers(shape) * (3 if shape.gated_mlp else 2) * (shape.expert_mlp_size + shape.hidden_size)
    return rank * (adapter_features(shape) + visited * (shape.experts - shape.experts_per_token))


def attention_flops(shape: ModelShape, ctx_tokens: int) -> float:
    """FLOPs of one forward of attention per token, over all layers, with the extra cost of sliding windows.

    Two matrix products of 2 FLOPs per score: over half the context where it is causal, over all of it in an encoder.
    """
    if shape.encoder is not None:
        return 4.0 * shape.layers * ctx_tokens * shape.heads * shape.head_dim
    full_layers = max(0, shape.layers - shape.sliding_layers - shape.linear_layers)
    sliding = min(ctx_tokens / 2, _SLIDING_COST * mean_span(ctx_tokens, shape.sliding_window))
    span = full_layers * ctx_tokens / 2 + shape.sliding_layers * sliding
    return 4 * span * shape.heads * shape.head_dim


def mean_span(ctx_tokens: int, window: int) -> float:
    """Mean number of tokens that a token of a causal sequence attends to."""
    if window <= 0 or window >= ctx_tokens:
        return ctx_tokens / 2
    return window - window * window / (2 * ctx_tokens)
