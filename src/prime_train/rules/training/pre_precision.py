"""Precision that the hardware, the packages or the other settings do not allow. Pure: the facts are given."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prime_train.core.findings import Severity
from prime_train.core.installation import install_command
from prime_train.rules.rule import Problems, facts_rule, known, must_be_installed, rule, suggest, unused
from prime_train.spec import FP8_CAPABILITY, RunSpec, hf_config
from prime_train.spec.decoder_size import architecture_from_fields

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
        yield unused("precision.tf32", "true", '`precision.compute` is "bf16"', fix="")


@rule("PRE003", Severity.ERROR)
def fp8_does_not_fit(run: RunSpec) -> Problems:
    """The settings must allow fp8: no adapters and no rewards, bf16, and sizes that are multiples of 16.

    the trainer refuses them

    A layer whose sizes are no multiples of 16 stays in bf16; at least one must be converted.

    Source: spec/hf_config.py; torch._scaled_mm, torch 2.13 (sizes of matrices).

    Bad:
        [model]
        compile = true
        [precision]
        compute = "fp32"
        fp8 = "rowwise"
    Bad:
        [model]
        compile = true
        hidden_size = 200
        heads = 5
        [precision]
        fp8 = "rowwise"
    Bad:
        [model]
        path = "models/mine"
        compile = true
        [tokenizer]
        path = "models/mine"
        [model.lora]
        rank = 8
        [precision]
        fp8 = "tensorwise"
    Bad:
        [model]
        compile = true
        [data]
        ctx_tokens = 1000
        [precision]
        fp8 = "rowwise"
    Good:
        [model]
        compile = true
        [precision]
        fp8 = "rowwise"
    """
    if run.precision.fp8 == "none":
        return
    conflicts = [*hf_config.find_fp8_conflicts(run)]
    if run.model.path is None:
        conflicts += hf_config.find_fp8_size_conflict(run, architecture_from_fields(run.model, 1))
    for conflict in conflicts:
        yield suggest(conflict.at, conflict.what, conflict.value, why=conflict.why)


@facts_rule("PRE004", Severity.ERROR, needs=("gpus",))
def no_gpu_for_fp8(run: RunSpec, facts: Facts) -> Problems:
    """fp8 needs GPUs of compute capability 8.9 or more.

    other devices have no matrix products in fp8: the trainer refuses to start

    Source: NVIDIA CUDA programming guide, compute capabilities.

    Bad:
        [model]
        compile = true
        [precision]
        fp8 = "rowwise"
        [facts.gpus]
        devices = [{name = "NVIDIA A100", memory_bytes = 85899345920, compute_capability = [8, 0]}]
    Bad:
        [model]
        compile = true
        [precision]
        fp8 = "rowwise"
        [facts.gpus]
        devices = []
    Good:
        [model]
        compile = true
        [precision]
        fp8 = "rowwise"
        [facts.gpus]
        devices = [{name = "NVIDIA H100", memory_bytes = 85899345920, compute_capability = [9, 0]}]
    """
    if run.precision.fp8 == "none":
        return
    devices = [gpu for gpu in known(facts.gpus).devices if not gpu.fault]
    weak = [gpu for gpu in devices if gpu.compute_capability < FP8_CAPABILITY]
    if weak:
        version = ".".join(str(part) for part in weak[0].compute_capability)
        yield suggest("precision.fp8", f"{weak[0].name} has compute capability {version}", "none")
    elif not devices:
        yield suggest("precision.fp8", "no GPU is visible", "none")


@facts_rule("PRE005", Severity.ERROR, needs=("part_packages",))
def torchao_not_installed(_run: RunSpec, facts: Facts) -> Problems:
    """fp8 needs the `fp8` extra in the interpreter of the trainer.

    the trainer ends before its first step

    Source: trainer/model/hf_config.py.

    Bad:
        [model]
        compile = true
        [precision]
        fp8 = "rowwise"
        [[facts.part_packages]]
        field = "precision.fp8"
        package = "torchao"
        python = "/venv/bin/python"
        fault = "it is not installed"
    Good:
        [model]
        compile = true
        [precision]
        fp8 = "rowwise"
        [[facts.part_packages]]
        field = "precision.fp8"
        package = "torchao"
        python = "/venv/bin/python"
    """
    yield from must_be_installed(facts, "precision.fp8", lambda _: install_command("fp8"))


@rule("PRE006", Severity.WARNING)
def fp8_without_compile(run: RunSpec) -> Problems:
    """fp8 needs model.compile to be faster than bf16.

    each cast is then several kernels with results of their own, which cost more time than the product gains

    MLPs of four widths took 1.1 to 3.4 times as long as in 16 bits on an L20, and 1.5 to 1.9 times the memory;
    compiled, they took 0.6 to 1.03 times as long and up to 1.1 times the memory.

    Source: github.com/pytorch/ao, issue 685 (August 2024).

    Bad:
        [precision]
        fp8 = "rowwise"
    Good:
        [model]
        compile = true
        [precision]
        fp8 = "rowwise"
    """
    if run.precision.fp8 != "none" and not run.model.compile:
        yield suggest("model.compile", f'false, and `precision.fp8` is "{run.precision.fp8}"', True)
