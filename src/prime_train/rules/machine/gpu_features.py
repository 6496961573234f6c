"""What GPUs, driver, CUDA and torch support together, compared with what the run needs. Pure: the facts are given."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prime_train.core.findings import Problem, Severity
from prime_train.rules.rule import Problems, facts_rule, known
from prime_train.rules.training.run_needs import anchor
from prime_train.spec import FP8_CAPABILITY, RunSpec
from prime_train.spec.answers import prime_rl_of, traits_of

if TYPE_CHECKING:
    from prime_train.facts.facts import Facts

# Feature -> lowest compute capability, first one that is too high (0 = none), name in messages.
_FEATURES = {
    "bf16": ((8, 0), (0, 0), "bf16"),
    "fp8": (FP8_CAPABILITY, (0, 0), "fp8"),
    "mxfp8": ((10, 0), (0, 0), "mxfp8"),
    "flash_attention_2": ((8, 0), (0, 0), "flash attention 2"),
    "flash_attention_3": ((9, 0), (10, 0), "flash attention 3"),
    "flash_attention_4": ((9, 0), (12, 0), "flash attention 4"),
}


@facts_rule("GPU005", Severity.ERROR, needs=("gpus",))
def gpu_without_the_feature(run: RunSpec, facts: Facts) -> Problems:
    """The GPUs must support what the config needs: bf16, fp8, flash attention 3 or 4.

    the kernels are not built for other GPUs: the first step ends with "no kernel image", or is refused

    bf16 and flash attention 2 need compute capability 8.0, fp8 8.9, mxfp8 10.0; flash attention 3 needs 9.0 exactly,
    4 needs 9.0 to 11.0 and does not run on workstation Blackwell, 12.0. fp8 weights below 8.9 are a warning, because
    vLLM falls back to 16-bit products.

    Source: CUDA C++ programming guide, compute capabilities; README of Dao-AILab/flash-attention; its CLAUDE.md
    ("Targets Hopper (SM90) and Blackwell (SM100/SM110) GPUs"), and pypi.org/project/flash-attn-4.

    Bad (prime-rl 2026-08):
        [deployment]
        num_train_gpus = 1
        num_infer_gpus = 1
        [inference.vllm]
        data_parallel_size = 1
        [trainer.model]
        attn = "flash_attention_4"
        [facts.gpus]
        devices = [
            {name = "NVIDIA RTX PRO 6000", memory_bytes = 102641958912, compute_capability = [12, 0]},
            {name = "NVIDIA RTX PRO 6000", memory_bytes = 102641958912, compute_capability = [12, 0]},
        ]
    Bad (prime-rl 2026-08):
        [trainer.model]
        attn = "flash_attention_3"
        [facts.gpus]
        devices = [
            {name = "NVIDIA L40S", memory_bytes = 48305799168, compute_capability = [8, 9]},
            {name = "NVIDIA L40S", memory_bytes = 48305799168, compute_capability = [8, 9]},
            {name = "NVIDIA L40S", memory_bytes = 48305799168, compute_capability = [8, 9]},
            {name = "NVIDIA L40S", memory_bytes = 48305799168, compute_capability = [8, 9]},
        ]
    Good (prime-rl 2026-08):
        [trainer.model]
        attn = "flash_attention_3"
    """
    devices = [gpu for gpu in known(facts.gpus).devices if not gpu.fault]
    for field, feature, severity in _needed_features(run):
        lowest, too_high, name = _FEATURES[feature]
        unfit = [
            gpu for gpu in devices if gpu.compute_capability < lowest or (0, 0) < too_high <= gpu.compute_capability
        ]
        if unfit:
            version = ".".join(str(part) for part in unfit[0].compute_capability)
            below = "" if too_high == (0, 0) else f" or above, below {too_high[0]}.{too_high[1]}"
            needed = f"{lowest[0]}.{lowest[1]}{below}"
            yield Problem(
                field,
                f"{unfit[0].name} has compute capability {version}, and {name} needs {needed}",
                fix=f"another value of `{field}`, or another GPU",
                severity=severity,
            )


def _needed_features(run: RunSpec) -> Iterator[tuple[str, str, Severity]]:
    """(RunSpec field, feature, severity) of each hardware feature that the config needs."""
    parts = prime_rl_of(run)
    if parts.trainer is not None:
        if parts.trainer.attention in _FEATURES:
            yield "trainer.attention", parts.trainer.attention, Severity.ERROR
        if parts.trainer.quantization in _FEATURES:
            yield "trainer.quantization", parts.trainer.quantization, Severity.ERROR
    if run.inference is not None:
        if run.inference.quantization == "fp8":
            yield "inference.quantization", "fp8", Severity.WARNING
        if run.inference.dtype in ("bfloat16", "bf16"):
            yield "inference.dtype", "bf16", Severity.ERROR


@facts_rule("GPU006", Severity.ERROR, needs=("interpreter",))
def flash_attention_missing(run: RunSpec, facts: Facts) -> Problems:
    """The flash attention of the config must be installed in the interpreter of the run.

    it is not part of torch: without the package the model does not load

    Source: prime-rl, model.attn; the packages flash-attn, flash-attn-interface and flash-attn-4.

    Bad (prime-rl 2026-08):
        [trainer.model]
        attn = "flash_attention_2"
        [facts.interpreter]
        faults = [{module = "flash_attn", fault = "it is not installed"}]
    Bad (prime-rl 2026-08):
        [trainer.model]
        attn = "flash_attention_4"
        [facts.interpreter]
        faults = [{module = "flash_attn.cute", fault = "it is not installed"}]
    Good (prime-rl 2026-08):
        [trainer.model]
        attn = "flash_attention_2"
    """
    parts = prime_rl_of(run)
    modules = {
        "flash_attention_2": "flash_attn",
        "flash_attention_3": "flash_attn_interface",
        "flash_attention_4": "flash_attn.cute",
    }
    wanted = modules.get(parts.trainer.attention or "") if parts.trainer is not None else None
    interpreter = known(facts.interpreter)
    for missing in interpreter.faults:
        if missing.module == wanted:
            yield Problem(
                "trainer.attention",
                f"{interpreter.python} cannot import {wanted}: {missing.fault}",
                fix='install it there, or `trainer.attention` = "sdpa"',
            )


@facts_rule("GPU007", Severity.ERROR, needs=("gpus", "interpreter"))
def driver_too_old(run: RunSpec, facts: Facts) -> Problems:
    """The driver must be new enough for the CUDA that torch is built for.

    torch then finds no GPU: "The NVIDIA driver on your system is too old"

    Within one major version of CUDA an older driver works; across major versions it works only with NVIDIA's forward
    compatibility package.

    Source: CUDA compatibility guide, minor version compatibility.

    Bad:
        [facts.gpus]
        driver = "550.54.15"
        driver_cuda = [12, 4]
        devices = [{name = "NVIDIA H200"}]
        [facts.interpreter]
        torch_cuda = "13.0"
    Good:
        [facts.gpus]
        driver = "550.54.15"
        driver_cuda = [12, 4]
        devices = [{name = "NVIDIA H200"}]
        [facts.interpreter]
        torch_cuda = "12.8"
    """
    gpus, interpreter = known(facts.gpus), known(facts.interpreter)
    major = interpreter.torch_cuda.partition(".")[0]
    if not gpus.devices or gpus.driver_cuda is None or not major.isdigit() or gpus.driver_cuda[0] >= int(major):
        return
    newest = ".".join(str(part) for part in gpus.driver_cuda)
    yield Problem(
        anchor(run),
        f"driver {gpus.driver} runs CUDA {newest} at most, and torch in {interpreter.python} is built for CUDA "
        f"{interpreter.torch_cuda}",
        fix=f"a newer driver, or a torch wheel for CUDA {gpus.driver_cuda[0]}",
    )


@facts_rule("GPU008", Severity.ERROR, needs=("gpus", "interpreter"))
def torch_without_cuda(run: RunSpec, facts: Facts) -> Problems:
    """On a machine with GPUs, torch should be built with CUDA.

    a torch for CPUs sees no GPU: prime-rl ends at once, the bundled trainer runs on the CPU

    For the bundled trainer it is a warning: the run works, slowly.

    Source: pytorch.org, get started (builds for CPU and for each CUDA).

    Bad:
        [facts.gpus]
        devices = [{name = "NVIDIA H200"}]
        [facts.interpreter]
        torch_cuda = "none"
    Good:
        [facts.interpreter]
        torch_cuda = "none"
    """
    interpreter = known(facts.interpreter)
    if known(facts.gpus).devices and interpreter.torch_cuda == "none":
        yield Problem(
            anchor(run),
            f"torch in {interpreter.python} is built without CUDA, and there are {len(known(facts.gpus).devices)} GPUs",
            fix="install torch from PyPI, without +cpu",
            severity=Severity.WARNING if traits_of(run).runs_without_gpu else None,
        )


@facts_rule("GPU009", Severity.ERROR, needs=("gpus", "cuda_context"))
def no_cuda_context(run: RunSpec, facts: Facts) -> Problems:
    """A process must be able to compute on each GPU.

    a driver that lists its GPUs may still be unable to use them: no fabric manager, another library version

    Judged only with --deep: torch creates a context on each GPU, in a separate process.

    Source: CUDA driver API, cuCtxCreate.

    Bad:
        [facts.gpus]
        devices = [{name = "NVIDIA H200"}]
        [facts.cuda_context]
        devices = 0
        failure = "RuntimeError: CUDA error: system not yet initialized"
    Good:
        [facts.gpus]
        devices = [{name = "NVIDIA H200"}]
        [facts.cuda_context]
        devices = 1
    """
    context = known(facts.cuda_context)
    if known(facts.gpus).devices and context.failure:
        yield Problem(anchor(run), context.failure, fix="nvidia-smi; systemctl status nvidia-fabricmanager; dmesg")
