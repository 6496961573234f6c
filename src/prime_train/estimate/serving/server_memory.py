"""Estimates the memory of a vLLM server on one of its GPUs: weights, profile run, graphs, and the KV cache. Pure."""

from __future__ import annotations

from typing import NamedTuple

from prime_train.estimate.serving.server_cache import bytes_for, capacity_of, token_bytes
from prime_train.estimate.serving.server_setup import (
    ServeSetup,
    is_at_least,
    table_interval,
    table_interval_bytes,
    table_number,
    table_text,
)
from prime_train.estimate.serving.server_weights import adapter_term, weight_terms
from prime_train.estimate.values import ZERO, Hardware, Interval, RoleMemory, Term

_BUDGET = "vLLM v1/worker/gpu_worker.py determine_available_memory"


class ServeMemory(NamedTuple):
    """Memory of one GPU of a server.

    `kv_tokens` and `max_concurrency` are the values that vLLM prints when it starts; `kv_tokens_low` is the value if
    the profile run uses its upper bound. `full_length_sequences` sequences of ctx_tokens run at once without
    preemption. `longest_ctx_tokens` is the longest max_model_len that fits, at most the model's own. `starts`: one
    request of ctx_tokens fits, which vLLM requires to start.
    """

    memory: RoleMemory
    kv_bytes: Interval
    kv_tokens: int
    kv_tokens_low: int
    full_length_sequences: int
    max_concurrency: float
    longest_ctx_tokens: int
    starts: bool


class _Needs(NamedTuple):
    """Memory beside the cache. `budgeted` is the part that counts against the fraction."""

    held: tuple[Term, ...]
    activation: Interval
    outside: tuple[Term, ...]
    budgeted: Interval


def inference_memory(setup: ServeSetup, hardware: Hardware) -> ServeMemory:
    """The memory of one GPU of the server. The terms add up to what torch reserves; NCCL and graphs are outside.

    If the weights alone exceed the budget, the cache is empty and `starts` is False.
    """
    needs = _needs_of(setup)
    taken = needs.budgeted
    if setup.cache_bytes:  # vLLM then ignores the fraction
        budget = taken.high + setup.cache_bytes
        kv = Interval(*3 * (float(setup.cache_bytes),))
    else:
        budget = setup.gpu_memory_fraction * hardware.usable_bytes
        kv = Interval(*(max(0.0, budget - size) for size in (taken.high, taken.typical, taken.low)))
    capacity, low = capacity_of(setup, kv.typical), capacity_of(setup, kv.low)
    return ServeMemory(
        memory=_role(setup, needs, kv),
        kv_bytes=kv,
        kv_tokens=capacity.tokens,
        kv_tokens_low=low.tokens,
        full_length_sequences=min(setup.sequences, int(capacity.concurrency)),
        max_concurrency=capacity.concurrency,
        longest_ctx_tokens=min(capacity.longest_ctx_tokens, setup.shape.ctx_tokens or capacity.longest_ctx_tokens),
        starts=capacity.concurrency >= 1 and budget <= hardware.usable_bytes,
    )


def smallest_fraction(setup: ServeSetup, hardware: Hardware, ctx_tokens: int, requests: float) -> float:
    """The smallest gpu_memory_utilization with which `requests` requests of ctx_tokens run at once.

    Uses the upper bound of the profile run. A result above 1 means that no fraction is enough.
    """
    return (_needs_of(setup).budgeted.high + bytes_for(setup, ctx_tokens, requests)) / hardware.usable_bytes


def budgeted_bytes(setup: ServeSetup) -> Interval:
    """Bytes beside the cache that count against the fraction.

    These are weights, adapters, profile run, NCCL, and graphs if the vLLM version counts them.
    """
    return _needs_of(setup).budgeted


def beyond_budget_bytes(setup: ServeSetup) -> float:
    """Upper bound of the bytes outside the fraction: CUDA graphs of a vLLM that captures them afterwards."""
    return 0.0 if setup.engine.graphs_in_budget else graph_bytes(setup).high


def _needs_of(setup: ServeSetup) -> _Needs:
    adapters = adapter_term(setup)
    held = weight_terms(setup) + ((adapters,) if adapters is not None else ())
    held_bytes = sum(term.bytes for term in held)
    activation, rest, graphs = activation_bytes(setup), non_torch_bytes(setup), graph_bytes(setup)
    counted = graphs if setup.engine.graphs_in_budget else ZERO
    budgeted = Interval(*(held_bytes + sum(parts) for parts in zip(activation, rest, counted, strict=True)))
    graph_size = graphs.typical if setup.engine.graphs_in_budget else graphs.high
    place = "inside the fraction" if setup.engine.graphs_in_budget else "beyond the fraction"
    outside = (
        Term("non_torch", rest.typical, f"{setup.gpus} GPUs", table_text("non_torch", "source")),
        Term("cuda_graphs", graph_size, f"{setup.shape.layers} layers, {place}", table_text("graphs", "source")),
    )
    return _Needs(held, activation, outside, budgeted)


def _role(setup: ServeSetup, needs: _Needs, kv_bytes: Interval) -> RoleMemory:
    """The terms, the cache last. A larger profile run shrinks the cache, so the bound grows only without a cache."""
    activation = Term("activation_peak", needs.activation.typical, *explain_activation(setup))
    size = "set in the config" if setup.cache_bytes else f"the rest of {setup.gpu_memory_fraction:g} x GPU"
    formula = f"{size}; {token_bytes(setup):.6g} B for each token"
    terms = (*needs.held, activation, Term("kv_cache", kv_bytes.typical, formula, _BUDGET))
    typical = sum(term.bytes for term in terms)
    held = sum(term.bytes for term in needs.held)
    high = max(typical, held + needs.activation.high + kv_bytes.low)
    low = min(typical, held + needs.activation.low + kv_bytes.high)
    return RoleMemory("inference", setup.gpus, terms, Interval(low, typical, high), needs.outside)


_FP32_BYTES = 4


def activation_bytes(setup: ServeSetup) -> Interval:
    """The peak of the profile run: the larger of sampling a full batch and its forward through one block.

    A vision tower runs its largest item too; its peak is known only within wide bounds.
    """
    return Interval(*(max(ends) for ends in zip(*(part.size for part in _activation_parts(setup)), strict=True)))


def explain_activation(setup: ServeSetup) -> tuple[str, str]:
    """(formula, source) of the largest part of the peak."""
    largest = max(_activation_parts(setup), key=lambda part: part.size.typical)
    return largest.formula, table_text("activation", largest.source_key)


class _ActivationPart(NamedTuple):
    size: Interval
    formula: str
    source_key: str


def _activation_parts(setup: ServeSetup) -> tuple[_ActivationPart, ...]:
    """The fp32 logits of a full batch, which are whole on every GPU; the forward; the vision tower, if there is one."""
    rows, vocab = min(setup.sequences, setup.batched_tokens), setup.shape.vocab_size
    copies = table_interval("activation", "sampler_copies")
    logits = f"{copies.typical:g} x {rows} sequences x {vocab} x 4 B"
    tokens = f"{setup.batched_tokens} tokens through one block x {setup.number_bytes:g} B"
    parts = (
        _ActivationPart(copies.times(rows * vocab * _FP32_BYTES), logits, "sampler_source"),
        _ActivationPart(forward_bytes(setup), tokens, "token_source"),
    )
    if not setup.shape.vision_parameters:
        return parts
    vision = table_interval_bytes("activation", "vision_encoder")
    return (*parts, _ActivationPart(vision, "the vision tower's largest item", "vision_source"))


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
    return streams.plus(Interval(inner, inner, inner)).times(setup.batched_tokens * setup.number_bytes)


def non_torch_bytes(setup: ServeSetup) -> Interval:
    """Memory allocated outside torch: NCCL, workspaces, growth of the CUDA context."""
    if setup.tensor_parallel * setup.pipeline_parallel == 1:
        return table_interval_bytes("non_torch", "one_gpu")
    switched = setup.multicast and is_at_least(setup.version, table_text("non_torch", "multicast_from"))
    return table_interval_bytes("non_torch", "multicast" if switched else "several_gpus")


def graph_bytes(setup: ServeSetup) -> Interval:
    """CUDA graphs of the decode batches; none with enforce_eager."""
    if setup.eager:
        return ZERO
    kind = "one_gpu" if setup.gpus == 1 else "several_gpus"
    return table_interval_bytes("graphs", kind).times(setup.shape.layers / setup.pipeline_parallel)
