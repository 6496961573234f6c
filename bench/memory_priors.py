"""The coefficients that fit_memory fits for each trainer: their values from counting, and their plausible errors.

Counts: a recomputed block holds, in bytes of bf16, its saved tensors and the gradients of its two largest ones (10 to
16 B per inner value of the MLP, less if a compiler fuses them); no compiler fuses an expert's grouped product (14 B).
transformers computes one expert after another: only the gradients of one are alive, and frozen experts keep no input of
their last product, so gate, its activation and the other half stay (6.5 B).

fp32 logits, log-softmax, gradient and logits in their own type make 14 B per logit, and 12 B if the logits are dropped
before the backward (transformers' Trainer, torchtitan): log-softmax, its gradient and that of the loss. A kernel that
overwrites the logits leaves them and their shifted copy: 8 B. These are whole tensors of a known type, so their spread
is small. A final norm that is not fused holds up to 16 B per number of the hidden state, with gradients. The current
and the prefetched block make two gathered blocks (FSDP2). Spreads are a quarter to a half of the value if the count is
uncertain.
A longer micro-batch than all before gets segments of its own, and the longest one before was half as long in the mean:
where lengths are not padded, the allocator holds 1 + 1/2 + 1/4 + ... = 2 times the activations and logits.
"""

from __future__ import annotations

from typing import NamedTuple


class Free(NamedTuple):
    """A coefficient to fit: its theoretical value, its plausible error, and the era from which it applies."""

    name: str
    prior: float
    spread: float
    since: str = ""
    low: float = 0.0


class Priors(NamedTuple):
    """The fitted and the fixed coefficients of one trainer, and the programs whose rows are used."""

    programs: tuple[str, ...]
    free: tuple[Free, ...]
    fixed: dict[str, float]
    figure: str = "reserved"  # that the rows have: "reserved" or "allocated"; others are only compared


def _reserve(prior: float, spread: float) -> tuple[Free, ...]:
    return (
        Free("reserve", prior, spread, low=1.0),
        Free("reserve_static", 1.02, 0.02, low=1.0),
    )


_PRIME_RL = (
    Free("gather_alone", 1, 0.3),
    Free("gather", 2, 0.5),
    Free("root_gather_alone", 1, 0.3),
    Free("root_gather", 2, 0.5),
    Free("embedding_gather", 1, 0.5),
    Free("root_gradient", 4, 2),
    Free("block_hidden", 16, 8),
    Free("block_hidden", 8, 4, since="2026-05", low=4.0),  # at least the residual stream and its gradient
    Free("block_query", 8, 3),
    Free("block_kv", 6, 3),
    Free("block_mlp", 8, 3),
    Free("expert_hidden", 12, 3),
    Free("expert_mlp", 14, 3),
    Free("adapter_hidden", 12, 6),
    Free("adapter_mlp", 0, 2),
    Free("adapter_mlp", 2, 2, since="2026-02"),
    Free("in_flight", 4, 1),
    Free("logit", 14, 2),
    Free("chunk_logit", 24, 4),
    Free("tile_logit", 9, 2),
    Free("head_hidden", 10, 4),
    *_reserve(1.10, 0.03),
)
_HF = (
    Free("block_hidden", 24, 8),
    Free("block_mlp", 12, 3),
    Free("logit", 14, 3),
    Free("head_hidden", 8, 4),
    Free("residual", 1.3, 0.5),
    Free("workspace_bytes", 1.5e9, 0.7e9),
    *_reserve(1.08, 0.04),
)
_ZERO = (
    Free("embeddings_trained", 12, 2),
    Free("optimizer_temporary", 4, 1),
    Free("gather", 3, 1),
    Free("root_gather", 2, 1),
    Free("bucket_bytes", 3e9, 1.5e9),
)
_TRAINER = (  # transformers' Trainer of 2024 and later; its rows have the peak of allocated memory
    Free("block_hidden", 24, 8),
    Free("block_mlp", 12, 3),
    Free("logit", 12, 0.7),
    Free("logit_fused", 8, 0.5),
    Free("head_hidden", 16, 8),
    Free("residual", 1, 0.2),
    Free("residual_sharded", 1.5, 0.5, low=1.0),
    Free("expert_hidden", 4, 2),
    Free("expert_mlp", 6.5, 2),
    Free("gather", 2, 0.5),
    Free("root_gather", 2, 0.5),
    Free("workspace_bytes", 0.2e9, 0.15e9),
    *_reserve(1.02, 0.02),
)
_EAGER = {"eager_hidden": 16.0, "eager_mlp": 6.0}  # the additional coefficients of uncompiled trainers
PRIORS: dict[str, Priors] = {
    "prime-rl": Priors(("prime-rl",), _PRIME_RL, {"workspace_bytes": 5e7, **_EAGER}),
    "torchtitan": Priors(
        ("torchtitan",),
        (
            Free("kept_hidden", 4, 0.5),
            Free("kept_eager", 6, 2),
            Free("kept_mlp", 4, 0.4),
            Free("kept_selective", 0.38, 0.05),
            Free("tensor_gather", 5, 2),
            Free("logit", 12, 1),
            Free("workspace_bytes", 0.2e9, 0.15e9),
            *_reserve(1.05, 0.03),
        ),
        {"root_gather": 2.0, "block_mlp": 12.0},
    ),
    "torchtune": Priors(
        ("torchtune",),
        (
            Free("kept_hidden", 4, 0.7),
            Free("kept_eager", 6, 2),
            Free("kept_query", 2, 0.4),
            Free("kept_mlp", 4, 0.4),
            Free("logit", 11, 2),
            Free("chunks_kept", 2, 0.3),
            Free("gather", 1.5, 0.5),
            Free("root_gather", 1, 0.5),
            Free("workspace_bytes", 0.2e9, 0.15e9),
            *_reserve(1.04, 0.02),
        ),
        {"block_mlp": 12.0},
    ),
    "litgpt": Priors(
        ("litgpt",),
        (
            Free("kept_hidden", 6, 1.5),
            Free("kept_query", 2.5, 0.7),
            Free("kept_kv", 1.5, 0.5),
            Free("kept_mlp", 4, 0.4),
            Free("adapter_kept", 1, 1),
            Free("scaled_kept", 1.5, 0.5),
            Free("kept_quantized", 1.5, 1),
            Free("kept_quantized", 4, 1, since="2024-03"),
            Free("logit", 6, 3),
            Free("logit", 10, 3, since="2024-03"),
            Free("adapter_kept", 3, 1, since="2024-03"),  # the input of each adapter after its dropout
            Free("gather", 2, 0.7),
            Free("whole_copy", 1, 0.1),
            *_reserve(1.03, 0.02),
        ),
        {"kept_eager": 0.0, "workspace_bytes": 5e7},
        "allocated",
    ),
    "ms-swift-2024": Priors(
        ("ms-swift-2024",),
        (*_HF, Free("optimizer_temporary", 2, 0.5), Free("reserve_lengths", 1, 0.5)),
        {"block_query": 8, "block_kv": 6},
    ),
    "qwen-finetune": Priors(("qwen-finetune",), (*_HF, *_ZERO), {"block_query": 8, "block_kv": 6}),
    "hf": Priors(
        ("hf", "peft", "ms-swift"),
        _TRAINER,
        # cached: the least mean error of 105 figures of nvidia-smi beside the allocated ones, and of 17 of ms-swift
        # bucket_bytes: DeepSpeed's reduce_bucket_size of 5e8 numbers in 16 bits
        {"block_query": 8, "block_kv": 6, "optimizer_temporary_16": 2, "cached": 0.5, "bucket_bytes": 1e9},
        "allocated",
    ),
}
# No row measures these programs: their coefficients are counts, and their interval is that of all left-out models.
COUNTED: dict[str, tuple[str, dict[str, float]]] = {
    "bundled": (
        "counted from src/prime_train/trainer",
        {
            "kept_eager": 0.0,  # its norms keep their input without a type conversion
            "head_hidden": 4.0,
            "reserve": 1.08,
            "workspace_bytes": 0.1e9,
        },
    ),
    "nanochat": (
        "counted from nanochat/gpt.py: norms without weights, a squared ReLU, compiled",
        # queries and keys before and after their norm; the MLP's numbers before and after its activation; the logits
        # and their gradient in 16 bits, because the compiler fuses soft cap, softmax and loss
        {"kept_query": 3.0, "kept_kv": 1.5, "kept_mlp": 4.0, "kept_eager": 0.0, "logit": 4.0}
        | {"reserve": 1.03, "optimizer_temporary": 0.5},
    ),
    "llm.c": (
        "counted from llm.c train_gpt2.cu: acts of 12 hidden sizes per layer with -r 1, logits in place",
        # two norms, attention output and residual; queries, keys and values; the MLP's inner numbers before GELU
        {"kept_hidden": 5.0, "kept_query": 1.0, "kept_kv": 1.0, "kept_mlp": 2.0, "kept_eager": 0.0, "in_place": 0.0}
        | {"head_hidden": 4.0, "reserve": 1.0, "workspace_bytes": 0.5e9},
    ),
}
# Its terms were compared with its live tensors (bench/live_tensors.py, bench/activation_trace.py), so it needs no rows.
COMPARED = ("bundled",)
# Name -> the fitted entry it is like, why it differs, and the counted numbers that differ. No row measures it.
LIKE_ANOTHER: dict[str, tuple[str, str, dict[str, float]]] = {
    # gate, up and their product, whose gradients overwrite them
    "unsloth": ("hf", "as hf; unsloth/kernels/swiglu.py writes the gradients of the MLP in place", {"block_mlp": 6.0}),
}
