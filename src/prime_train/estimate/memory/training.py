"""Estimates the memory of a training on one GPU as named terms: those of its highest phase. Pure.

Five phases of a step may be the highest: the head, with all activations and the logits; the first block of the
backward; the last block, with gradients in place of activations; the embedding, whose gradient is not sharded; and the
optimizer's update. Gradients exist from the start if a step has several micro-batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from prime_train.core.units import GIB
from prime_train.estimate.memory.activations import block_terms, layers_on_gpu, logits_terms, saved_terms, stream_terms
from prime_train.estimate.memory.bundled import bundled_terms
from prime_train.estimate.memory.clips import input_terms, objective_terms
from prime_train.estimate.memory.coefficients import Coefficients, Fitted, fitted_entry
from prime_train.estimate.memory.sharding import (
    QUANTIZED_BYTES,
    Groups,
    block_gather_terms,
    block_reduction_terms,
    bucket_terms,
    groups_of,
    load_copy_terms,
    quantized_bytes,
    root_gather_terms,
    root_gradient_terms,
)
from prime_train.estimate.memory.train_setup import COMPILATION, AdapterSize, TrainSetup, features_of
from prime_train.estimate.values import ZERO, Hardware, Interval, RoleMemory, Term
from prime_train.estimate.verdict import SAFE_SHARE

MODEL_STATES = "ZeRO, arXiv 1910.02054, s. 3.1"
_STAYS = frozenset(
    {"parameters", "frozen base", "adapter parameters", "gradients", "optimizer states", "trained embeddings",
     "master weights", "whole model at load", "reference model", "engine's weights", "engine's KV cache",
     "engine's memory"}
)  # fmt: skip
# Beginnings of the names of terms that grow with the length of a micro-batch.
_OF_LENGTH = ("saved ", "offloaded residuals", "recomputed", "gradients of a block's", "hidden states", "logits")
ZERO3_SUBGROUP = 1e9  # numbers updated at a time: DeepSpeed's stage3 sub_group_size
WIDER = 1.25  # for each of model family and compilation that no measured run had
LEAST_UNLIKE = 1.5  # factor between the estimate and each end of the interval if no measured run is like this one
CACHED = "cached segments"


class MemoryPhase(NamedTuple):
    """One phase of a step and the memory that is alive in it."""

    name: str
    terms: tuple[Term, ...]

    @property
    def bytes(self) -> float:
        return sum(term.bytes for term in self.terms)


def training_memory(setup: TrainSetup, hardware: Hardware, entry: Fitted | None = None) -> RoleMemory:
    """Memory of the trainer on each of its GPUs, in bytes, with the terms of the highest phase.

    `entry` replaces that of the registry, for a fit without some rows.
    """
    entry = entry or fitted_entry(setup.program, setup.era)
    peak = peak_of(setup, entry.coefficients)
    *tensors, reserve = peak.terms
    outside = outside_terms(setup)
    room = hardware.usable_bytes - sum(term.bytes for term in outside) if hardware.usable_bytes else 0.0
    tensors_bytes = sum(term.bytes for term in tensors)
    unlike = entry.unlike(setup)
    factors = factors_of(setup, entry, setup.method)
    memory = RoleMemory("trainer", setup.layout.gpus, peak.terms, ZERO, outside, peak.name, None, unlike, SAFE_SHARE)
    if not entry.coefficients.cached:
        terms = (*tensors, trim_reserve(reserve, tensors_bytes, room))
        reserved = interval_around(sum(term.bytes for term in terms), peak.bytes, factors)
        return memory._replace(terms=terms, reserved=reserved, allocated=reserved if entry.allocated else None)
    allocated = interval_around(peak.bytes, peak.bytes, factors)
    cached = cached_term(peak.terms, entry.coefficients)
    terms = (*peak.terms, trim_reserve(cached, peak.bytes, room))
    whole = interval_around(peak.bytes + terms[-1].bytes, peak.bytes + cached.bytes, factors_of(setup, entry, "cached"))
    most = max(allocated.high, min(whole.high, room or whole.high))  # what is cached is freed before the GPU is full
    reserved = Interval(min(whole.low, allocated.low), whole.typical, max(whole.typical, most))
    return memory._replace(terms=terms, reserved=reserved, allocated=allocated)


def peak_of(setup: TrainSetup, k: Coefficients) -> MemoryPhase:
    """The highest phase, with the allocator's reserve as its last term."""
    whole = (MemoryPhase(phase.name, (*phase.terms, reserve_term(phase.terms, k))) for phase in phases(setup, k))
    return max(whole, key=lambda phase: phase.bytes)


def phases(setup: TrainSetup, k: Coefficients) -> tuple[MemoryPhase, ...]:
    """The phases of a step that may be the highest."""
    groups = groups_of(setup.shape)
    states = (*_states(setup, groups, k), *setup.beside, *load_copy_terms(setup, groups, k), *bucket_terms(setup, k))
    gradients = _gradients(setup)
    early = gradients if setup.micro_batches > 1 or setup.layout.sharding == "ddp" else ()
    layers = layers_on_gpu(setup)
    kept = saved_terms(setup, k, layers)
    piped = saved_terms(setup, k, layers, setup.layout.in_flight, backward=True)
    last = saved_terms(setup, k, min(1.0, layers))
    stream = stream_terms(setup, k)
    block = (*block_terms(setup, k), *stream)
    root = root_gather_terms(setup, groups, k)
    gathered = block_gather_terms(setup, groups, k)
    reduced = block_reduction_terms(setup, groups, k)
    head_gradient = root_gradient_terms(setup, groups, k)
    ends = () if setup.layout.ends_apart else (*root, *head_gradient)  # which stay until the root's backward is over
    own = bundled_terms(setup, groups, early)
    inputs = input_terms(setup)
    kept, piped, last = (*kept, *inputs), (*piped, *inputs), (*last, *inputs)
    head = (*logits_terms(setup, k), *objective_terms(setup, k))
    return (
        MemoryPhase("head", (*states, *early, *kept, *head, *stream, *root, *head_gradient, *own.head)),
        MemoryPhase("first block", (*states, *early, *piped, *block, *gathered, *reduced, *ends, *own.first)),
        MemoryPhase("last block", (*states, *gradients, *last, *block, *gathered, *reduced, *ends, *own.last)),
        MemoryPhase("embedding", (*states, *gradients, *own.embedding)),
        MemoryPhase("update", (*states, *gradients, *_returned_states(setup), *_update(setup, k))),
    )


def _states(setup: TrainSetup, groups: Groups, k: Coefficients) -> tuple[Term, ...]:
    """Weights and optimizer states, which stay from step to step."""
    numerics, layout, offload = setup.numerics, setup.layout, setup.offload
    if setup.adapter is not None:
        terms = _adapter_states(setup, setup.adapter, groups, k)
    elif offload.parameters:
        terms = []
    else:
        terms = [_split_term("parameters", groups.total, numerics.weight, layout.weight_parts)]
    if not (offload.optimizer and updates_on_host(setup)):
        terms.append(_split_term("master weights", setup.trained, numerics.master, layout.state_parts))
    if not offload.optimizer and not offload.parameters:
        terms.append(_split_term("optimizer states", setup.trained, numerics.state, layout.state_parts))
    return tuple(term for term in terms if term.bytes)


def _adapter_states(setup: TrainSetup, adapter: AdapterSize, groups: Groups, k: Coefficients) -> list[Term]:
    numerics, parts = setup.numerics, setup.layout.weight_parts
    base = _split_term("frozen base", groups.total, numerics.base, parts)
    if setup.quantization in QUANTIZED_BYTES:
        ends = numerics.quantized_ends
        size = quantized_bytes(setup.shape, setup.quantization, ends, head=numerics.quantizes_head) / parts
        formula = f"{groups.total / 1e9:.2f} B in {setup.quantization}, embeddings in {ends:g} B, / {parts}"
        base = base._replace(bytes=size, formula=formula)
    weights = _split_term("adapter parameters", adapter.parameters, numerics.weight, parts, adapter.slots)
    terms = [] if setup.offload.parameters else [base]
    slots = f"{adapter.slots} slots x {weights.formula}"
    terms.append(weights._replace(formula=slots, source="LoRA, arXiv 2106.09685, s. 4"))
    if adapter.trains_embeddings:
        terms.append(_split_term("trained embeddings", groups.embedding + groups.head, k.embeddings_trained, parts))
    return terms


def updates_on_host(setup: TrainSetup) -> bool:
    """Whether an offloaded optimizer updates on the host, which then has masters and gradients too: DeepSpeed's does.

    Source: ZeRO-Offload, arXiv 2101.06840, s. 3.
    """
    return bool(setup.numerics.master)


def _gradients(setup: TrainSetup) -> tuple[Term, ...]:
    """All gradients of a step; none if the backward uses and drops each of them."""
    if setup.optimizer_in_backward or setup.offload.parameters or (setup.offload.optimizer and updates_on_host(setup)):
        return ()
    parts = setup.layout.weight_parts if setup.layout.sharding == "zero1" else setup.layout.state_parts
    slots = setup.adapter.slots if setup.adapter else 1
    term = _split_term("gradients", setup.trained, setup.numerics.gradient, parts, slots)
    return (term._replace(formula=f"{slots} x {term.formula}"),)


def _update(setup: TrainSetup, k: Coefficients) -> tuple[Term, ...]:
    """Temporary memory of the update: a foreach implementation copies every trained number."""
    on_host = setup.offload.parameters or (setup.offload.optimizer and setup.program != "prime-rl")
    in_place = setup.fused_optimizer or "8bit" in setup.optimizer  # a kernel for each tensor of bitsandbytes, torchao
    if in_place or setup.optimizer_in_backward or on_host:
        return ()
    weight_parts = setup.layout.weight_parts
    trained = setup.trained / weight_parts * (weight_parts / setup.layout.state_parts)
    if setup.layout.sharding == "zero3":
        trained = min(trained, ZERO3_SUBGROUP)
    temporary = (k.optimizer_temporary_16 if setup.numerics.weight == 2 else 0.0) or k.optimizer_temporary
    each = temporary + (4.0 if setup.layout.sharding == "zero3" and setup.numerics.master else 0.0)
    formula = f"{trained / 1e6:.1f} M x {each:.2f} B"
    return (Term("optimizer temporaries", trained * each, formula, "torch.optim.AdamW(foreach=True)"),)


def _returned_states(setup: TrainSetup) -> tuple[Term, ...]:
    """Optimizer states that prime-rl keeps on the host between updates and copies back for the update."""
    if setup.program != "prime-rl" or not setup.offload.optimizer or setup.offload.parameters:
        return ()
    states = _split_term("returned optimizer states", setup.trained, setup.numerics.state, setup.layout.state_parts)
    return (states._replace(source="prime-rl optim_cpu_offload"),)


def _split_term(name: str, numbers: float, each: float, parts: int, slots: int = 1) -> Term:
    """Numbers of `each` bytes for each slot, split into `parts` parts. One GPU holds one part."""
    size = slots * numbers * each / parts
    return Term(name, size, f"{numbers / 1e6:.1f} M x {each:g} B / {parts}", MODEL_STATES)


def factors_of(setup: TrainSetup, entry: Fitted, method: str) -> tuple[float, float]:
    """The factors between the estimate and the ends of its interval, wider where nothing similar was measured."""
    low, high = entry.interval_of(method)
    family = setup.shape.name.split("/")[-1].split("-")[0].lower()
    others = features_of(setup) & COMPILATION <= entry.features, family in entry.models
    widened = WIDER ** sum(not same for same in others) if entry.models else 1.0
    low, high = max(0.0, 1 - (1 - low) * widened), 1 + (high - 1) * widened
    if entry.unlike(setup):
        low, high = min(low, 1 / LEAST_UNLIKE), max(high, LEAST_UNLIKE)
    return low, high


# What nvidia-smi shows above max_memory_reserved: 0.45 to 0.6 GiB per process for the CUDA context (Ampere to
# Blackwell), 0.2 to 1.0 GiB for NCCL, depending on the number of communicators and channels.
CUDA_CONTEXT_BYTES = 0.55 * GIB
NCCL_BYTES = 0.6 * GIB
_SEEN = "nvidia-smi less torch.cuda.max_memory_reserved"


def reserve_term(terms: Sequence[Term], k: Coefficients) -> Term:
    """Memory the allocator holds beyond the terms: rounding, free parts of its segments, and library workspaces."""
    staying = sum(term.bytes for term in terms if term.name in _STAYS)
    moving = sum(term.bytes for term in terms) - staying
    varying = sum(term.bytes for term in terms if term.name.startswith(_OF_LENGTH))
    size = (k.reserve - 1) * moving + (k.reserve_static - 1) * staying + k.workspace_bytes
    size += k.reserve_lengths * varying
    formula = (
        f"{k.reserve - 1:.1%} of the {moving / GIB:.1f} GiB that come and go, {k.reserve_static - 1:.1%} of the "
        f"{staying / GIB:.1f} GiB that stay, and {k.workspace_bytes / GIB:.2f} GiB"
    )
    if k.reserve_lengths:
        formula += f"; {k.reserve_lengths:.0%} of {varying / GIB:.1f} GiB left by shorter micro-batches"
    return Term("allocator reserve", size, formula, "fitted: registry/memory.toml")


def cached_term(terms: Sequence[Term], k: Coefficients) -> Term:
    """Segments of the allocator that hold no tensor at the peak: freed temporaries of other moments of a step."""
    short = sum(term.bytes for term in terms if term.name not in _STAYS and not term.name.startswith("saved"))
    formula = f"{k.cached:.0%} of the {short / GIB:.1f} GiB that do not outlive a block"
    return Term(CACHED, k.cached * short, formula, "fitted: registry/memory.toml")


def trim_reserve(term: Term, tensors_bytes: float, room_bytes: float) -> Term:
    """The reserve, cut to the free memory of a nearly full GPU, because the allocator frees cached segments first.

    `room_bytes` is what the process may allocate; 0 for an unknown GPU.
    Source: CUDACachingAllocator, release_cached_blocks before an out-of-memory.
    """
    left = room_bytes - tensors_bytes
    if not room_bytes or term.bytes <= left:
        return term
    size = max(0.0, left)
    return term._replace(bytes=size, formula=f"{term.formula}, cut to the free {size / GIB:.2f} GiB of the GPU")


def outside_terms(setup: TrainSetup) -> tuple[Term, ...]:
    """GPU memory that a process holds outside the allocator."""
    context = Term("CUDA context", CUDA_CONTEXT_BYTES, "0.45 to 0.6 GiB a process", _SEEN)
    if setup.layout.gpus == 1:
        return (context,)
    return (context, Term("NCCL", NCCL_BYTES, "0.2 to 1.0 GiB a process", _SEEN))


def interval_around(typical: float, untrimmed: float, factors: tuple[float, float]) -> Interval:
    """The interval that holds nine runs in ten. `untrimmed` is the estimate on a GPU without a memory limit."""
    low, high = untrimmed * factors[0], untrimmed * factors[1]
    return Interval(min(low, typical), typical, max(high, typical))
