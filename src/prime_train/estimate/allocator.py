"""Adds the reserve of torch's allocator, the memory outside the allocator, and the interval. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from prime_train.estimate.coefficients import Coefficients
from prime_train.estimate.train_setup import TrainSetup
from prime_train.estimate.values import Interval, Term
from prime_train.units import GIB

# What nvidia-smi shows above max_memory_reserved: 0.45 to 0.6 GiB per process for the CUDA context (Ampere to
# Blackwell), 0.2 to 1.0 GiB for NCCL, depending on the number of communicators and channels.
CUDA_CONTEXT_BYTES = 0.55 * GIB
NCCL_BYTES = 0.6 * GIB
_SEEN = "nvidia-smi less torch.cuda.max_memory_reserved"


def reserve_term(terms: Sequence[Term], stays: frozenset[str], k: Coefficients) -> Term:
    """Memory the allocator holds beyond the terms: rounding, free parts of its segments, and library workspaces."""
    staying = sum(term.bytes for term in terms if term.name in stays)
    moving = sum(term.bytes for term in terms) - staying
    size = (k.reserve - 1) * moving + (k.reserve_static - 1) * staying + k.workspace_bytes
    formula = (
        f"{k.reserve - 1:.1%} of the {moving / GIB:.1f} GiB that come and go, {k.reserve_static - 1:.1%} of the "
        f"{staying / GIB:.1f} GiB that stay, and {k.workspace_bytes / GIB:.2f} GiB"
    )
    return Term("allocator reserve", size, formula, "fitted: registry/memory.toml")


def trim_reserve(term: Term, tensors_bytes: float, usable_bytes: float) -> Term:
    """The reserve, cut to the free memory of a nearly full GPU, because the allocator frees cached segments first.

    `usable_bytes` is 0 for an unknown GPU. Source: CUDACachingAllocator, release_cached_blocks before an out-of-memory.
    """
    left = usable_bytes - CUDA_CONTEXT_BYTES - tensors_bytes
    if not usable_bytes or term.bytes <= left:
        return term
    size = max(0.0, left)
    return term._replace(bytes=size, formula=f"{term.formula}, cut to the free {size / GIB:.2f} GiB of the GPU")


def outside_terms(setup: TrainSetup) -> tuple[Term, ...]:
    """GPU memory that a process holds outside the allocator."""
    context = Term("CUDA context", CUDA_CONTEXT_BYTES, "0.45 to 0.6 GiB a process", _SEEN)
    if setup.layout.gpus == 1:
        return (context,)
    return (context, Term("NCCL", NCCL_BYTES, "0.2 to 1.0 GiB a process", _SEEN))


def reserved_interval(typical: float, untrimmed: float, k: Coefficients, widened: float) -> Interval:
    """The interval that holds nine runs in ten. `untrimmed` is the estimate on a GPU without a memory limit.

    `widened` multiplies the distance of both ends if no similar run was measured.
    """
    low = untrimmed * max(0.0, 1 - (1 - k.low) * widened)
    high = untrimmed * (1 + (k.high - 1) * widened)
    return Interval(min(low, typical), typical, max(high, typical))
