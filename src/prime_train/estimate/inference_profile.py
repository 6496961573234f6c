"""Estimates what vLLM's profile run finds beside weights and cache: activations, CUDA graphs, NCCL. Pure."""

from __future__ import annotations

from prime_train.estimate.inference_engine import (
    is_at_least,
    table_interval,
    table_interval_bytes,
    table_number,
    table_text,
)
from prime_train.estimate.inference_setup import ServeSetup
from prime_train.estimate.values import Interval

_FP32_BYTES = 4


def activation_bytes(setup: ServeSetup) -> Interval:
    """The peak of the profile run: the larger of sampling a full batch and its forward through one block.

    A vision tower runs its largest item too; its peak is known only within wide bounds.
    """
    peaks = [sampler_bytes(setup), forward_bytes(setup)]
    if setup.shape.vision_parameters:
        peaks.append(table_interval_bytes("activation", "vision_encoder"))
    return Interval(*(max(ends) for ends in zip(*peaks, strict=True)))


def sampler_bytes(setup: ServeSetup) -> Interval:
    """Copies of the fp32 logits of a full batch: sequences x vocabulary, complete on every GPU."""
    rows = min(setup.sequences, setup.batched_tokens)
    return table_interval("activation", "sampler_copies").times(rows * setup.shape.vocab_size * _FP32_BYTES)


def forward_bytes(setup: ServeSetup) -> Interval:
    """A full batch of tokens in one block: rows of the residual stream, and of the MLP or its experts."""
    shape = setup.shape
    mlp_rows = table_number("activation", "mlp_rows")
    inner = mlp_rows * shape.mlp_size / setup.tensor_parallel
    if shape.is_moe:
        share = 1 if setup.expert_parallel else setup.expert_gpus
        routed = shape.experts_per_token * (mlp_rows * shape.expert_mlp_size / share + shape.hidden_size)
        inner = max(inner if shape.dense_layers else 0.0, routed)
    streams = table_interval("activation", "hidden_rows").times(shape.hidden_size)
    token = Interval(*(inner + stream for stream in streams))
    return token.times(setup.batched_tokens * setup.number_bytes)


def explain_activation(setup: ServeSetup) -> tuple[str, str]:
    """(formula, source) of the largest part of the peak."""
    sampler, forward = sampler_bytes(setup).typical, forward_bytes(setup).typical
    if setup.shape.vision_parameters and activation_bytes(setup).typical > max(sampler, forward):
        return "the vision tower's largest item", table_text("activation", "vision_source")
    if sampler >= forward:
        rows = min(setup.sequences, setup.batched_tokens)
        copies = table_interval("activation", "sampler_copies").typical
        formula = f"{copies:g} x {rows} sequences x {setup.shape.vocab_size} x 4 B"
        return formula, table_text("activation", "sampler_source")
    formula = f"{setup.batched_tokens} tokens through one block x {setup.number_bytes:g} B"
    return formula, table_text("activation", "token_source")


def non_torch_bytes(setup: ServeSetup) -> Interval:
    """Memory allocated outside torch: NCCL, workspaces, growth of the CUDA context."""
    if setup.tensor_parallel * setup.pipeline_parallel == 1:
        return table_interval_bytes("non_torch", "one_gpu")
    switched = setup.multicast and is_at_least(setup.version, table_text("non_torch", "multicast_from"))
    return table_interval_bytes("non_torch", "multicast" if switched else "several_gpus")


def graph_bytes(setup: ServeSetup) -> Interval:
    """CUDA graphs of the decode batches; none with enforce_eager."""
    if setup.eager:
        return Interval(0.0, 0.0, 0.0)
    kind = "one_gpu" if setup.gpus == 1 else "several_gpus"
    return table_interval_bytes("graphs", kind).times(setup.shape.layers / setup.pipeline_parallel)
