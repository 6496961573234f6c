"""Memory estimates of other tools: accelerate, DeepSpeed and fitcheck-llm, by their own code if installed.

LLaMA-Factory's README has a table instead.

Each function takes the resolved setup and returns bytes on one GPU, or None if the tool does not support such a row.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import NamedTuple

from prime_train.estimate.memory.sharding import ALL_LINEAR, groups_of
from prime_train.estimate.memory.train_setup import TrainSetup

MIB = 2**20
Answer = Callable[[TrainSetup], float | None]


class Tool(NamedTuple):
    """A tool: its name in the table and its estimate."""

    name: str
    bytes_of: Answer


@cache
def tools() -> tuple[Tool, ...]:
    """All tools. The name contains the installed version, or that the published formula is used."""
    return (
        Tool(_named("accelerate", "accelerate estimate-memory"), _accelerate),
        Tool(_named("deepspeed", "DeepSpeed estimate_zero3"), _deepspeed),
        Tool("LLaMA-Factory README, Hardware Requirement", _readme),
        *((Tool(_named("fitcheck-llm", "fitcheck-llm"), _fitcheck),) if _installed("fitcheck-llm") else ()),
    )


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _named(package: str, name: str) -> str:
    found = _installed(package)
    return f"{name} {found}" if found else f"{name} (its formula)"


def _accelerate(setup: TrainSetup) -> float | None:
    """Training with Adam: the largest of its four values, divided by the GPUs that share the states.

    Formula if it is not installed: huggingface/accelerate, commands/estimate.py, estimate_training_usage, float32:
    four times the weights.
    """
    if setup.adapter is not None:
        return None
    fp32_bytes = 4 * setup.shape.parameters
    if _installed("accelerate"):
        usage = import_module("accelerate.commands.estimate").estimate_training_usage(fp32_bytes, "float32")
        return float(max(usage.values())) / setup.layout.state_parts
    return 4.0 * fp32_bytes / setup.layout.state_parts


def _deepspeed(setup: TrainSetup) -> float | None:
    """Weights, gradients and Adam's states under ZeRO-3.

    Formula if it is not installed: deepspeed, runtime/zero/stage3.py, estimate_zero3_model_states_mem_needs: 4 B for
    each parameter of the largest layer, plus 18 B for each parameter over the GPUs (2 B with the optimizer on the CPU).
    """
    if setup.adapter is not None or (setup.layout.shards == 1 and setup.layout.gpus > 1):
        return None
    groups = groups_of(setup.shape)
    largest, gpus = int(max(groups.block, groups.root)), setup.layout.state_parts
    if _installed("deepspeed"):
        needs = import_module("deepspeed.runtime.zero.stage3").estimate_zero3_model_states_mem_needs
        offloaded = setup.offload.optimizer
        answer = needs(setup.shape.parameters, largest, gpus, 1, cpu_offload=offloaded, cpu_offload_params=False)
        return float(answer[1])
    return 4.0 * largest + (2.0 if setup.offload.optimizer else 18.0) * setup.shape.parameters / gpus


def _readme(setup: TrainSetup) -> float | None:
    """Gigabytes per billion parameters by method, over the GPUs that share them.

    Source: hiyouga/LLaMA-Factory README.md at ff6d4d12e: 18x in full, 8x in pure bf16, 2x for LoRA, x and x/2 for QLoRA
    in 8 and 4 bits.
    """
    pure = 8.0 if setup.numerics.weight == 2 and not setup.numerics.master else 18.0
    quantized = {"": 2.0, "int8": 1.0}.get(setup.quantization, 0.5)
    each = pure if setup.adapter is None else quantized
    return each * setup.shape.parameters / setup.layout.state_parts


def _fitcheck(setup: TrainSetup) -> float | None:
    """Its estimate for one GPU of a dense model, with the settings of the run that it supports."""
    shape, adapter = setup.shape, setup.adapter
    frozen_but_no_lora = adapter is not None and not adapter.rank
    if setup.layout.gpus > 1 or shape.is_moe or frozen_but_no_lora:
        return None
    fitcheck = import_module("fitcheck")
    model = fitcheck.ModelConfig(
        name=shape.name,
        num_params=shape.parameters,
        hidden_size=shape.hidden_size,
        num_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_kv_heads=shape.kv_heads,
        intermediate_size=shape.mlp_size,
        vocab_size=shape.vocab_size,
        head_dim=shape.head_dim,
        tie_word_embeddings=shape.tie_embeddings,
    )
    quantization = {"nf4": "nf4", "nf4-dq": "nf4", "int4": "nf4", "int8": "int8"}.get(setup.quantization, "none")
    states = "fp32" if setup.numerics.state >= 8 else "bf16"
    training = fitcheck.TrainingConfig(
        precision="bf16" if adapter is not None or setup.numerics.weight == 2 else "fp32",
        quantization=quantization,
        double_quant=setup.quantization == "nf4-dq",
        optimizer="adamw8bit" if "8bit" in setup.optimizer else "adamw",
        optimizer_dtype=states,
        batch_size=max(1, setup.tokens // setup.ctx_tokens),
        seq_len=setup.ctx_tokens,
        lora_rank=adapter.rank if adapter is not None else None,
        lora_targets=[name for name in ALL_LINEAR if name != "experts"],
        grad_checkpoint=setup.checkpointing == "full",
        flash_attn=True,
        grad_accum_steps=setup.micro_batches,
    )
    return float(fitcheck.estimate(model, training, fitcheck.get_gpu("a100-80")).total_mib) * MIB
