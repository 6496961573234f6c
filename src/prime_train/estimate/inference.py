"""Estimates the memory of a vLLM server on one of its GPUs: weights, profile run, graphs, and the KV cache. Pure."""

from __future__ import annotations

from typing import NamedTuple

from prime_train.estimate.inference_cache import bytes_for, capacity_of, token_bytes
from prime_train.estimate.inference_engine import table_text
from prime_train.estimate.inference_profile import activation_bytes, explain_activation, graph_bytes, non_torch_bytes
from prime_train.estimate.inference_setup import ServeSetup
from prime_train.estimate.inference_weights import adapter_term, weight_terms
from prime_train.estimate.values import Hardware, Interval, RoleMemory, Term

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
    others = setup.resident_bytes if setup.engine.counts_others else 0.0
    taken = needs.budgeted
    if setup.cache_bytes:  # vLLM then ignores the fraction
        budget = others + taken.high + setup.cache_bytes
        kv = Interval(*3 * (float(setup.cache_bytes),))
    else:
        budget = setup.gpu_memory_fraction * hardware.usable_bytes
        kv = Interval(*(max(0.0, budget - others - size) for size in (taken.high, taken.typical, taken.low)))
    capacity, low = capacity_of(setup, kv.typical), capacity_of(setup, kv.low)
    return ServeMemory(
        memory=_role(setup, needs, kv),
        kv_bytes=kv,
        kv_tokens=capacity.tokens,
        kv_tokens_low=low.tokens,
        full_length_sequences=min(setup.sequences, int(capacity.concurrency)),
        max_concurrency=capacity.concurrency,
        longest_ctx_tokens=min(capacity.longest_ctx_tokens, setup.shape.ctx_tokens or capacity.longest_ctx_tokens),
        starts=capacity.concurrency >= 1 and setup.resident_bytes + budget <= hardware.usable_bytes,
    )


def smallest_fraction(setup: ServeSetup, hardware: Hardware, ctx_tokens: int, requests: float) -> float:
    """The smallest gpu_memory_utilization with which `requests` requests of ctx_tokens run at once.

    Uses the upper bound of the profile run. A result above 1 means that no fraction is enough.
    """
    others = setup.resident_bytes if setup.engine.counts_others else 0.0
    needed = _needs_of(setup).budgeted.high + others + bytes_for(setup, ctx_tokens, requests)
    return needed / hardware.usable_bytes


def budgeted_bytes(setup: ServeSetup) -> Interval:
    """Bytes beside the cache that count against the fraction: weights, adapters, profile run, NCCL, and graphs if the
    vLLM version counts them."""
    return _needs_of(setup).budgeted


def beyond_budget_bytes(setup: ServeSetup) -> float:
    """Upper bound of the bytes outside the fraction: CUDA graphs of a vLLM that captures them afterwards."""
    return 0.0 if setup.engine.graphs_in_budget else graph_bytes(setup).high


def _needs_of(setup: ServeSetup) -> _Needs:
    adapters = adapter_term(setup)
    held = weight_terms(setup) + ((adapters,) if adapters is not None else ())
    held_bytes = sum(term.bytes for term in held)
    activation, rest, graphs = activation_bytes(setup), non_torch_bytes(setup), graph_bytes(setup)
    counted = graphs if setup.engine.graphs_in_budget else Interval(0.0, 0.0, 0.0)
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
