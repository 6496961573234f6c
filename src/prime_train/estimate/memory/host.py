"""Estimates the memory of the host that a training on its GPUs needs for what it keeps there. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from prime_train.estimate.memory.setup_from_recipe import loads_in_each_process
from prime_train.estimate.memory.train_setup import TrainSetup
from prime_train.estimate.values import Hardware, Interval, Term

OFFLOAD = "ZeRO-Offload, arXiv 2101.06840, s. 3: fp32 weights, moments and gradients on the host"
_FP32 = 4.0
_PINNED_MOST = 2.0  # torch's pinned allocator rounds each block up to a power of two


def host_terms(setup: TrainSetup, hardware: Hardware) -> tuple[Term, ...]:
    """What stays in the memory of one machine during the training; none without an offload."""
    return tuple(term for term in _list_terms(setup, _machine_gpus(setup, hardware)) if term.bytes)


def host_memory(setup: TrainSetup, hardware: Hardware) -> Interval | None:
    """The memory of one machine for what is offloaded. None without an offload.

    At least the offloaded tensors, at most those in pinned blocks of powers of two, with a copy of the weights in each
    process that loads or saves.
    """
    kept = sum(term.bytes for term in host_terms(setup, hardware))
    if not kept:
        return None
    copies = _machine_gpus(setup, hardware) if loads_in_each_process(setup) else 1
    loaded = copies * setup.shape.parameters * setup.numerics.compute
    return Interval(kept, kept + loaded, _PINNED_MOST * kept + loaded)


def _list_terms(setup: TrainSetup, gpus: int) -> Iterator[Term]:
    numerics, offload, layout = setup.numerics, setup.offload, setup.layout
    if offload.optimizer or offload.parameters:
        # DeepSpeed updates on the host: the masters and an fp32 gradient are there too
        each = numerics.state + (numerics.master + _FP32 if numerics.master else 0.0)
        yield _split("optimizer on the host", setup.trained, each, gpus, layout.state_parts)
    if offload.parameters:
        yield _split("weights on the host", setup.shape.parameters, numerics.weight, gpus, layout.weight_parts)
    if offload.activations:
        size = setup.shape.layers / layout.pipeline * setup.tokens * setup.shape.hidden_size * numerics.compute
        formula = f"{gpus} GPUs x {setup.shape.layers} layers x {setup.tokens} tokens x {setup.shape.hidden_size}"
        yield Term("residuals on the host", gpus * size, formula, OFFLOAD)


def _split(name: str, numbers: float, each: float, gpus: int, parts: int) -> Term:
    formula = f"{gpus} GPUs x {numbers / 1e6:.1f} M x {each:g} B / {parts}"
    return Term(name, gpus * numbers * each / parts, formula, OFFLOAD)


def _machine_gpus(setup: TrainSetup, hardware: Hardware) -> int:
    return min(setup.layout.gpus, hardware.gpus_per_node)
