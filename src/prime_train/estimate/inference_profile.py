"""What vLLM finds it needs beside weights and cache when it tries a model out: activations, graphs, NCCL. Pure."""

from __future__ import annotations

from prime_train.estimate.inference_engine import interval, interval_gib, is_at_least, number, words
from prime_train.estimate.inference_setup import ServeSetup
from prime_train.estimate.values import Interval

_FP32_BYTES = 4


def activation_bytes(setup: ServeSetup) -> Interval:
    """The peak of the trial run: the larger of a full batch of tokens through a block and of a full batch sampled.

    A vision tower is tried with its largest item before; its peak is known only within wide bounds.
    """
    sampler, forward = sampler_bytes(setup), forward_bytes(setup)
    peak = Interval(*(max(pair) for pair in zip(sampler, forward, strict=True)))
    if not setup.shape.vision_parameters:
        return peak
    encoder = interval_gib("activation", "vision_encoder")
    return Interval(*(max(pair) for pair in zip(peak, encoder, strict=True)))


def sampler_bytes(setup: ServeSetup) -> Interval:
    """Copies of the fp32 logits of a full batch: sequences x vocabulary, which every GPU gathers whole."""
    rows = min(setup.sequences, setup.batched_tokens)
    return interval("activation", "sampler_copies").times(rows * setup.shape.vocab_size * _FP32_BYTES)


def forward_bytes(setup: ServeSetup) -> Interval:
    """A full batch of tokens in one block: rows of the residual stream, and those of the MLP or of its experts."""
    shape = setup.shape
    mlp_rows = number("activation", "mlp_rows")
    inner = mlp_rows * shape.mlp_size / setup.tensor_parallel
    if shape.is_moe:
        share = 1 if setup.expert_parallel else setup.expert_gpus
        routed = shape.experts_per_token * (mlp_rows * shape.expert_mlp_size / share + shape.hidden_size)
        inner = max(inner if shape.dense_layers else 0.0, routed)
    streams = interval("activation", "hidden_rows").times(shape.hidden_size)
    token = Interval(*(inner + stream for stream in streams))
    return token.times(setup.batched_tokens * setup.number_bytes)


def activation_formula(setup: ServeSetup) -> str:
    """Which of the two it is, with its numbers."""
    if setup.shape.vision_parameters and activation_bytes(setup).typical > _text_peak(setup):
        return "the vision tower's largest item"
    if sampler_bytes(setup).typical >= forward_bytes(setup).typical:
        rows = min(setup.sequences, setup.batched_tokens)
        copies = interval("activation", "sampler_copies").typical
        return f"{copies:g} x {rows} sequences x {setup.shape.vocab_size} x 4 B"
    return f"{setup.batched_tokens} tokens through one block x {setup.number_bytes:g} B"


def activation_source(setup: ServeSetup) -> str:
    if setup.shape.vision_parameters and activation_bytes(setup).typical > _text_peak(setup):
        return words("activation", "vision_source")
    sampled = sampler_bytes(setup).typical >= forward_bytes(setup).typical
    return words("activation", "sampler_source" if sampled else "token_source")


def non_torch_bytes(setup: ServeSetup) -> Interval:
    """What is allocated beside torch: NCCL, workspaces, the growth of the CUDA context."""
    if setup.tensor_parallel * setup.pipeline_parallel == 1:
        return interval_gib("non_torch", "one_gpu")
    switched = setup.multicast and is_at_least(setup.version, words("non_torch", "multicast_from"))
    return interval_gib("non_torch", "multicast" if switched else "several_gpus")


def graph_bytes(setup: ServeSetup) -> Interval:
    """CUDA graphs of the decode batches; nothing with enforce_eager."""
    if setup.eager:
        return Interval(0.0, 0.0, 0.0)
    kind = "one_gpu" if setup.gpus == 1 else "several_gpus"
    return interval_gib("graphs", kind).times(setup.shape.layers / setup.pipeline_parallel)


def _text_peak(setup: ServeSetup) -> float:
    return max(sampler_bytes(setup).typical, forward_bytes(setup).typical)
