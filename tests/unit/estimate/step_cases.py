"""Shapes and setups of training steps for the tests of time."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from prime_train.estimate import hardware
from prime_train.estimate.model.shape import ModelShape, shape_from_registry
from prime_train.estimate.time.step_flops import StepSetup

GPUS = tuple(
    hardware.hardware_from_name(f"8x{name}") for name in ("a100-80gb", "h100-80gb", "h200", "b200", "rtx-a6000")
)


def known(name: str) -> ModelShape:
    shape = shape_from_registry(name)
    assert shape is not None
    return shape


LLAMA_1B = known("meta-llama/Llama-3.2-1B-Instruct")
QWEN_30B = known("Qwen/Qwen3-30B-A3B-Instruct-2507")
OLMO_7B = known("allenai/OLMo-3-7B-Instruct")


def step(shape: ModelShape = LLAMA_1B, **changes: Any) -> StepSetup:
    """Two micro-batches of one sequence of 8192 tokens on eight GPUs."""
    return StepSetup(shape, 8192, 8192, micro_batches=2, dp_shard=8)._replace(**changes)


def changed(setup: StepSetup, field: str, value: int) -> StepSetup:
    fields: dict[str, Any] = {field: value}
    return setup._replace(**fields)


def dense(layers: int, width: int, vocab_size: int) -> ModelShape:
    block = 4 * width**2 + 3 * width * 4 * width
    return ModelShape(
        name="made up",
        vocab_size=vocab_size,
        layers=layers,
        hidden_size=width,
        heads=max(1, width // 64),
        kv_heads=max(1, width // 64),
        head_dim=64,
        mlp_size=4 * width,
        parameters=layers * block + vocab_size * width,
        tie_embeddings=True,
        source="a test",
        dense_layers=layers,
    )


def mixture(layers: int, width: int, experts: int) -> ModelShape:
    attention, expert = 4 * width**2, 3 * width * width
    return dense(layers, width, 32000)._replace(
        mlp_size=0,
        dense_layers=0,
        experts=experts,
        experts_per_token=min(8, experts),
        expert_mlp_size=width,
        parameters=layers * (attention + experts * expert) + 32000 * width,
    )


def shapes() -> st.SearchStrategy[ModelShape]:
    layers, widths = st.integers(1, 100), st.integers(1, 128).map(lambda n: 64 * n)
    return st.one_of(
        st.builds(dense, layers, widths, st.integers(256, 300_000)),
        st.builds(mixture, layers, widths, st.integers(1, 256)),
        st.sampled_from((LLAMA_1B, QWEN_30B, OLMO_7B)),
    )


def setups() -> st.SearchStrategy[StepSetup]:
    powers = st.sampled_from((1, 2, 4, 8))
    return st.builds(
        StepSetup,
        shape=shapes(),
        ctx_tokens=st.integers(1, 262_144),
        micro_batch_tokens=st.integers(1, 524_288),
        micro_batches=st.integers(1, 64),
        dp_shard=st.sampled_from((1, 2, 8, 64)),
        dp_replicate=powers,
        tp=powers,
        cp=powers,
        pp=powers,
        ep=powers,
        trainer=st.sampled_from(("prime-rl", "llm-foundry", "bundled", "hf")),
        generation=st.sampled_from(("", "2026-01", "2026-08")),
        objective=st.sampled_from(("pretrain", "sft", "rl")),
        recompute=st.sampled_from(("none", "selective", "full")),
        activation_offload=st.booleans(),
        optimizer_offload=st.booleans(),
        parameter_offload=st.booleans(),
        lora_rank=st.sampled_from((0, 8, 64)),
        head=st.sampled_from(("full", "in_place", "vocab_chunked", "token_chunked", "tiled")),
        kernel=st.sampled_from(("fa2", "fa3", "fa4", "triton", "sdpa", "eager")),
        fused=st.booleans(),
        precision=st.sampled_from(("bf16", "fp8")),
    )
