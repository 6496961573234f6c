"""Settings that take too much memory on any GPU. Pure."""

from __future__ import annotations

from prime_train.config.prime_rl.schema import features_of
from prime_train.core.findings import Problem, Severity
from prime_train.core.units import format_bytes
from prime_train.rules.model.model_sizes import sizes_of
from prime_train.rules.rule import Problems, rule, suggest
from prime_train.spec import RunSpec
from prime_train.spec.answers import prime_rl_of

_MOST_OF_A_GPU = 0.95  # a CUDA context takes 0.5 GiB and graphs 0.2 to 0.8; measured on vLLM's logs
# Per position and token of the vocabulary at the peak: 4 copies in fp32; measured with prime-rl's sft.
_LOGIT_BYTES = 15
_LOGITS_LIMIT = 40 * 2**30
_LONG_TOKENS = 32768


@rule("MEM001", Severity.ERROR)
def fraction_out_of_range(run: RunSpec) -> Problems:
    """gpu_memory_utilization is a fraction of the GPU.

    vLLM refuses values outside 0 to 1; above 0.95 the CUDA context and graphs have no room

    Above 0.95 it is a warning.

    Source: vLLM, CacheConfig.gpu_memory_utilization.

    Bad (prime-rl 2026-08):
        [inference.vllm]
        gpu_memory_utilization = 90.0
    Bad (prime-rl 2026-08):
        [inference.vllm]
        gpu_memory_utilization = 0.98
    Good (prime-rl 2026-08):
        [inference.vllm]
        gpu_memory_utilization = 0.9
    """
    fraction = run.inference.gpu_memory_fraction if run.inference is not None else None
    if fraction is None or 0 < fraction <= _MOST_OF_A_GPU:
        return
    meant = fraction / 100 if 10 <= fraction <= 95 else 0.9  # 90 is a percentage; 1.5 is none of anything
    yield suggest(
        "inference.gpu_memory_fraction",
        f"{fraction:g} leaves too little of the GPU"
        if 0 < fraction <= 1
        else f"{fraction:g} is not a fraction of a GPU",
        meant,
        severity=Severity.WARNING if 0 < fraction <= 1 else None,
    )


@rule("MEM002", Severity.WARNING)
def long_without_checkpointing(run: RunSpec) -> Problems:
    """Long sequences need activation checkpointing.

    the activations of every layer are held until the backward pass: at 32768 tokens they need more than the model

    Source: Reducing Activation Recomputation, arXiv 2205.05198, s. 4.1.

    Bad (prime-rl 2026-05):
        seq_len = 32768
        [model]
        name = "Qwen/Qwen3-0.6B"
        [inference.model]
        max_model_len = 32768
        [trainer.model]
        fused_lm_head_token_chunk_size = 8192
    Good (prime-rl 2026-05):
        seq_len = 32768
        [model]
        name = "Qwen/Qwen3-0.6B"
        [inference.model]
        max_model_len = 32768
        [trainer.model]
        fused_lm_head_token_chunk_size = 8192
        [trainer.model.ac]
        freq = 1
    """
    trainer = prime_rl_of(run).trainer
    if trainer is None or trainer.activation_checkpointing is not False or trainer.ctx_tokens is None:
        return
    if trainer.activation_offloading:
        return
    local_tokens = trainer.ctx_tokens // max(1, trainer.context_parallel or 1)
    if local_tokens >= _LONG_TOKENS:
        yield Problem(
            "trainer.activation_checkpointing",
            f"not set, at {local_tokens} tokens on a GPU",
            fix="add `trainer.activation_checkpointing`",
        )


@rule("MEM003", Severity.WARNING)
def whole_logits(run: RunSpec) -> Problems:
    """Logits of a long sequence should be computed in chunks.

    at their peak they take 15 bytes for each position and token of the vocabulary, more than all else together

    Reported above 40 GiB on a GPU; a model that is not in the registry is not judged.

    Source: measured with prime-rl at 16384 tokens and a vocabulary of 151936: 35 GiB.

    Bad (prime-rl 2026-05):
        seq_len = 32768
        [inference.model]
        max_model_len = 32768
        [trainer.model.ac]
        freq = 1
    Good (prime-rl 2026-05):
        seq_len = 32768
        [inference.model]
        max_model_len = 32768
        [trainer.model]
        fused_lm_head_token_chunk_size = 8192
        [trainer.model.ac]
        freq = 1
    """
    parts = prime_rl_of(run)
    trainer = parts.trainer
    if trainer is None or parts.finetune is not None or parts.rollout is None or trainer.ctx_tokens is None:
        return
    sizes = sizes_of(trainer.model_name)
    if sizes is None or trainer.head_chunk_tokens is not None:
        return
    if features_of(run).head_chunk_vocab:
        return
    logit_bytes = _LOGIT_BYTES * trainer.ctx_tokens // max(1, trainer.context_parallel or 1) * sizes.vocab_size
    if logit_bytes > _LOGITS_LIMIT:
        yield suggest(
            "trainer.head_chunk_tokens",
            f"{trainer.ctx_tokens} tokens x {sizes.vocab_size} of the vocabulary: {format_bytes(logit_bytes)}",
            8192,
        )
