"""Memory of a vLLM server on one of its GPUs: weights, trial run, graphs, and the KV cache that is left. Pure."""

from __future__ import annotations

from typing import NamedTuple

from prime_train.estimate import inference_profile as profile
from prime_train.estimate.inference_cache import bytes_for, capacity_of, token_bytes
from prime_train.estimate.inference_engine import words
from prime_train.estimate.inference_setup import ServeSetup as ServeSetup
from prime_train.estimate.inference_setup import plain_setup as plain_setup
from prime_train.estimate.inference_setup import serve_setup_of as serve_setup_of
from prime_train.estimate.inference_weights import adapter_term, weight_terms
from prime_train.estimate.values import Hardware, Interval, RoleMemory, Term

_BUDGET = "vLLM v1/worker/gpu_worker.py determine_available_memory"


class ServeMemory(NamedTuple):
    """What one GPU of a server holds.

    `kv_tokens` and `max_concurrency` are what vLLM prints when it starts; `kv_tokens_low` is the same where the trial
    run takes the most it was seen to take, and `kv_bytes` is high where it takes little. `full_length_sequences` of
    ctx_tokens run at once without preemption. `longest_ctx_tokens` is the longest max_model_len that fits, at most what
    the model was made for. `starts` says whether one request of ctx_tokens fits, without which vLLM does not start.
    """

    memory: RoleMemory
    budget_bytes: float
    kv_bytes: Interval
    kv_tokens: int
    kv_tokens_low: int
    full_length_sequences: int
    max_concurrency: float
    longest_ctx_tokens: int
    starts: bool


class _Needs(NamedTuple):
    """What is taken before the cache gets the rest; `budgeted` is what of it counts against the fraction."""

    held: tuple[Term, ...]
    activation: Interval
    outside: tuple[Term, ...]
    budgeted: Interval


def inference_memory(setup: ServeSetup, hardware: Hardware) -> ServeMemory:
    """The memory of one GPU of the server. Its terms add up to what torch reserves; NCCL and graphs are outside.

    Raises nothing: where weights alone are more than the budget, the cache is empty and `starts` is False.
    """
    needs = _needs_of(setup)
    others = setup.resident_bytes if setup.engine.counts_others else 0.0
    taken = needs.budgeted
    if setup.cache_bytes:  # vLLM then never looks at the fraction
        budget = others + taken.high + setup.cache_bytes
        kv = Interval(*3 * (float(setup.cache_bytes),))
    else:
        budget = setup.gpu_memory_fraction * hardware.usable_bytes
        kv = Interval(*(max(0.0, budget - others - size) for size in (taken.high, taken.typical, taken.low)))
    capacity, low = capacity_of(setup, kv.typical), capacity_of(setup, kv.low)
    return ServeMemory(
        memory=_role(setup, needs, kv),
        budget_bytes=budget,
        kv_bytes=kv,
        kv_tokens=capacity.tokens,
        kv_tokens_low=low.tokens,
        full_length_sequences=min(setup.sequences, int(capacity.concurrency)),
        max_concurrency=capacity.concurrency,
        longest_ctx_tokens=min(capacity.longest_ctx_tokens, setup.shape.ctx_tokens or capacity.longest_ctx_tokens),
        starts=capacity.concurrency >= 1 and setup.resident_bytes + budget <= hardware.usable_bytes,
    )


def smallest_fraction(setup: ServeSetup, hardware: Hardware, ctx_tokens: int, requests: float) -> float:
    """The smallest gpu_memory_utilization with which so many requests of ctx_tokens run at once.

    From the upper bound of the trial run. May be above 1: then no fraction does.
    """
    others = setup.resident_bytes if setup.engine.counts_others else 0.0
    needed = _needs_of(setup).budgeted.high + others + bytes_for(setup, ctx_tokens, requests)
    return needed / hardware.usable_bytes


def budgeted_bytes(setup: ServeSetup) -> Interval:
    """What counts against the fraction beside the cache: weights, adapters, the trial run, NCCL, and graphs where the
    version counts them."""
    return _needs_of(setup).budgeted


def beyond_budget_bytes(setup: ServeSetup) -> float:
    """What the server takes beyond its fraction at most: CUDA graphs, in a vLLM that captures them afterwards."""
    return 0.0 if setup.engine.graphs_in_budget else profile.graph_bytes(setup).high


def _needs_of(setup: ServeSetup) -> _Needs:
    adapters = adapter_term(setup)
    held = weight_terms(setup) + ((adapters,) if adapters is not None else ())
    held_bytes = sum(term.bytes for term in held)
    activation, rest, graphs = (
        profile.activation_bytes(setup),
        profile.non_torch_bytes(setup),
        profile.graph_bytes(setup),
    )
    counted = graphs if setup.engine.graphs_in_budget else Interval(0.0, 0.0, 0.0)
    budgeted = Interval(
        *(held_bytes + sum(parts) for parts in zip(activation, rest, counted, strict=True)),
    )
    graph_size = graphs.typical if setup.engine.graphs_in_budget else graphs.high
    place = "inside the fraction" if setup.engine.graphs_in_budget else "beyond the fraction"
    outside = (
        Term("non_torch", rest.typical, f"{setup.gpus} GPUs", words("non_torch", "source")),
        Term("cuda_graphs", graph_size, f"{setup.shape.layers} layers, {place}", words("graphs", "source")),
    )
    return _Needs(held, activation, outside, budgeted)


def _role(setup: ServeSetup, needs: _Needs, kv_bytes: Interval) -> RoleMemory:
    """The terms with the cache last. The upper bound differs only where no cache is left to give way."""
    activation = Term(
        "activation_peak",
        needs.activation.typical,
        profile.activation_formula(setup),
        profile.activation_source(setup),
    )
    given = "as the config says" if setup.cache_bytes else f"the rest of {setup.gpu_memory_fraction:g} x GPU"
    formula = f"{given}; {token_bytes(setup):.6g} B for each token"
    terms = (*needs.held, activation, Term("kv_cache", kv_bytes.typical, formula, _BUDGET))
    typical = sum(term.bytes for term in terms)
    held = sum(term.bytes for term in needs.held)
    high = max(typical, held + needs.activation.high + kv_bytes.low)
    low = min(typical, held + needs.activation.low + kv_bytes.high)
    return RoleMemory("inference", setup.gpus, terms, Interval(low, typical, high), needs.outside)
