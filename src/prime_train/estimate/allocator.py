"""Adds what torch's allocator holds beyond the tensors, what lies outside it, and the interval. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from prime_train.estimate.coefficients import Coefficients
from prime_train.estimate.train_setup import TrainSetup
from prime_train.estimate.values import Interval, Term
from prime_train.units import GIB

# 0.45 to 0.6 GiB a process on Ampere to Blackwell, 0.2 to 1.0 GiB by number of communicators and channels: what
# nvidia-smi shows beside max_memory_reserved.
CUDA_CONTEXT_BYTES = 0.55 * GIB
NCCL_BYTES = 0.6 * GIB
_SEEN = "nvidia-smi less torch.cuda.max_memory_reserved"


def reserve(terms: Sequence[Term], stays: frozenset[str], k: Coefficients) -> Term:
    """What the allocator keeps beyond the terms: rounded and free parts of its segments, and library workspaces."""
    staying = sum(term.bytes for term in terms if term.name in stays)
    moving = sum(term.bytes for term in terms) - staying
    size = (k.reserve - 1) * moving + (k.reserve_static - 1) * staying + k.workspace_bytes
    formula = (
        f"{k.reserve - 1:.1%} of the {moving / GIB:.1f} GiB that come and go, {k.reserve_static - 1:.1%} of the "
        f"{staying / GIB:.1f} GiB that stay, and {k.workspace_bytes / GIB:.2f} GiB"
    )
    return Term("allocator reserve", size, formula, "fitted: registry/memory.toml")


def trimmed(term: Term, tensors_bytes: float, usable_bytes: float) -> Term:
    """The reserve on a GPU that is nearly full: the allocator gives free segments back before it runs out.

    `usable_bytes` 0 is an unknown GPU. Source: CUDACachingAllocator, release_cached_blocks before an out-of-memory.
    """
    left = usable_bytes - CUDA_CONTEXT_BYTES - tensors_bytes
    if not usable_bytes or term.bytes <= left:
        return term
    size = max(0.0, left)
    return term._replace(bytes=size, formula=f"{term.formula}, of which the GPU has room for {size / GIB:.2f} GiB")


def outside(setup: TrainSetup) -> tuple[Term, ...]:
    """What a process holds of the GPU beside the allocator."""
    context = Term("CUDA context", CUDA_CONTEXT_BYTES, "0.45 to 0.6 GiB a process", _SEEN)
    if setup.layout.gpus == 1:
        return (context,)
    return (context, Term("NCCL", NCCL_BYTES, "0.2 to 1.0 GiB a process", _SEEN))


def interval(typical: float, untrimmed: float, k: Coefficients, widened: float) -> Interval:
    """The interval of nine runs in ten around what an endless GPU would show, as far as its lower end.

    `widened` multiplies its distances where the run lies outside what was measured.
    """
    low = untrimmed * max(0.0, 1 - (1 - k.low) * widened)
    high = untrimmed * (1 + (k.high - 1) * widened)
    return Interval(min(low, typical), typical, max(high, typical))
