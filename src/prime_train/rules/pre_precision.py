"""Precision that the hardware does not compute in. Pure: the facts are given."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prime_train.core.findings import Severity
from prime_train.rules.rule import Problems, facts_rule, known, rule, suggest
from prime_train.spec import RunSpec

if TYPE_CHECKING:
    from prime_train.facts.facts import Facts

_BF16_CAPABILITY = (8, 0)  # Ampere. Source: NVIDIA CUDA programming guide, compute capabilities


@facts_rule("PRE001", Severity.ERROR, needs=("gpus", "cpu"))
def bf16_in_software(run: RunSpec, facts: Facts) -> Problems:
    """bf16 needs hardware that computes in it.

    emulated, a step takes 5 to 40 times as long as in fp32: the trainer refuses to start

    bf16 needs a GPU of compute capability 8.0 or more, or an x86 CPU with avx512_bf16 or amx_bf16. The times were
    measured with torch 2.13 on AVX2 cores: 5 to 7 times for products forward, 42 times backward.

    Source: NVIDIA CUDA programming guide, compute capabilities; Intel, AVX512_BF16 and AMX-BF16.

    Bad:
        [precision]
        compute = "bf16"
        [facts.cpu]
        bf16_instruction = ""
    Bad:
        [precision]
        compute = "bf16"
        [facts.gpus]
        devices = [{name = "Tesla V100", memory_bytes = 17179869184, compute_capability = [7, 0]}]
    Good:
        [precision]
        compute = "auto"
        [facts.cpu]
        bf16_instruction = ""
    """
    if run.precision.compute != "bf16":
        return
    devices = known(facts.gpus).devices
    weak = [gpu for gpu in devices if gpu.compute_capability < _BF16_CAPABILITY]
    if weak:
        version = ".".join(str(part) for part in weak[0].compute_capability)
        what = f"{weak[0].name} has compute capability {version}"
    elif not devices and not known(facts.cpu).bf16_instruction:
        what = "this CPU has neither avx512_bf16 nor amx_bf16, and no GPU is visible"
    else:
        return
    yield suggest("precision.compute", what, "auto")


@rule("PRE002", Severity.WARNING)
def tf32_beside_bf16(run: RunSpec) -> Problems:
    """tf32 has an effect only on fp32 matrix products.

    with bf16 the matrix products of the model are computed in bf16

    Source: torch.set_float32_matmul_precision.

    Bad:
        [precision]
        compute = "bf16"
        tf32 = true
    Good:
        [precision]
        compute = "fp32"
        tf32 = true
    """
    if run.precision.tf32 and run.precision.compute == "bf16":
        yield suggest("precision.tf32", 'true is not used: `precision.compute` is "bf16"', None, safe=True)
