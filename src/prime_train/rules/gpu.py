"""The GPUs of the machine against what the run asks of them. Pure: the facts are given."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prime_train.findings import Problem, Severity
from prime_train.rules.anchor import anchor, gpus_asked
from prime_train.rules.base import facts_rule, known
from prime_train.spec import RunSpec
from prime_train.units import GIB, format_bytes

if TYPE_CHECKING:
    from prime_train.facts.facts import Facts, Gpu

_IN_USE_BYTES = GIB  # a context of CUDA alone takes a few hundred MiB; a desktop as much
_DEFAULT_MEMORY_FRACTION = 0.9  # vLLM's gpu_memory_utilization, in every generation of prime-rl

# What a feature needs: lowest compute capability, first one too high (0 = none), what it is called.
_FEATURES = {
    "bf16": ((8, 0), (0, 0), "bf16"),
    "fp8": ((8, 9), (0, 0), "fp8"),
    "mxfp8": ((10, 0), (0, 0), "mxfp8"),
    "flash_attention_2": ((8, 0), (0, 0), "flash attention 2"),
    "flash_attention_3": ((9, 0), (10, 0), "flash attention 3"),
}


@facts_rule("GPU001", Severity.ERROR, needs=("gpus",))
def gpu_lost(run: RunSpec, facts: Facts) -> Iterator[Problem]:
    """Every visible GPU must answer the driver.

    CUDA counts a GPU that is lost too: the first process that is given it ends, and the launch with it

    Bad:
        [[facts.gpus.devices]]
        fault = "GPU is lost"
        compute_capability = [0, 0]
    Good:
        [parallel]
        processes = 1
    """
    for number, gpu in enumerate(known(facts.gpus).devices):
        if gpu.fault:
            yield Problem(
                anchor(run),
                f"GPU {number}: {gpu.fault}",
                fix=f"leave it out with CUDA_VISIBLE_DEVICES, and look for its Xid in dmesg: nvidia-smi -i {number} -q",
            )


@facts_rule("GPU002", Severity.ERROR, needs=("gpus",))
def fewer_gpus_than_asked(run: RunSpec, facts: Facts) -> Iterator[Problem]:
    """A run may not ask for more GPUs than there are.

    the launcher refuses to start, or the last rank finds no device

    Bad (prime-rl 2026-08):
        [[facts.gpus.devices]]
        name = "NVIDIA H200"
        memory_bytes = 150754820096
        compute_capability = [9, 0]
    Bad (prime-rl 2026-01):
        [facts.gpus]
        devices = []
        reason = "no NVIDIA driver"
    Good (prime-rl 2026-08):
        [deployment]
        num_infer_gpus = 2
    """
    asked, gpus = gpus_asked(run), known(facts.gpus)
    if asked is None or asked <= len(gpus.devices):
        return
    there = f"{len(gpus.devices)} visible" if gpus.devices else f"none visible: {gpus.reason}"
    yield Problem(
        anchor(run), f"the run takes {asked} GPUs, and there are {there}", fix="fewer GPUs, or another machine"
    )


@facts_rule("GPU003", Severity.WARNING, needs=("gpus",))
def gpus_in_use(run: RunSpec, facts: Facts) -> Iterator[Problem]:
    """The GPUs of a run should be free of other processes.

    they take memory and time from every step, and the slowest rank sets the pace of all

    Bad:
        [[facts.gpus.devices]]
        name = "NVIDIA H200"
        memory_bytes = 150754820096
        compute_capability = [9, 0]
        used_bytes = 9000000000
        users = [{pid = 4711, used_bytes = 9000000000, name = "python"}]
    Good:
        [[facts.gpus.devices]]
        name = "NVIDIA H200"
        memory_bytes = 150754820096
        compute_capability = [9, 0]
    """
    devices = known(facts.gpus).devices
    too_full = {number for number, _ in _too_full_for_inference(run, devices)}
    for number, gpu in enumerate(devices):
        if gpu.used_bytes < _IN_USE_BYTES or number in too_full:
            continue
        users = ", ".join(f"{user.name or 'a process'} (PID {user.pid})" for user in gpu.users) or "another container"
        pids = " ".join(str(user.pid) for user in gpu.users)
        yield Problem(
            anchor(run),
            f"GPU {number} ({gpu.name}) has {format_bytes(gpu.used_bytes)} in use by {users}",
            fix=f"end them if they are yours: kill {pids}"
            if pids
            else "see nvidia-smi on the host, or take other GPUs",
        )


@facts_rule("GPU004", Severity.ERROR, needs=("gpus",))
def memory_for_inference_taken(run: RunSpec, facts: Facts) -> Iterator[Problem]:
    """The part of a GPU's memory that vLLM reserves must be free.

    vLLM ends at its start where less is free than gpu_memory_utilization asks for

    Bad (prime-rl 2026-08):
        [[facts.gpus.devices]]
        name = "NVIDIA H200"
        memory_bytes = 150754820096
        compute_capability = [9, 0]
        used_bytes = 90000000000
        [[facts.gpus.devices]]
        name = "NVIDIA H200"
        memory_bytes = 150754820096
        compute_capability = [9, 0]
        [[facts.gpus.devices]]
        name = "NVIDIA H200"
        memory_bytes = 150754820096
        compute_capability = [9, 0]
        [[facts.gpus.devices]]
        name = "NVIDIA H200"
        memory_bytes = 150754820096
        compute_capability = [9, 0]
    Good (prime-rl 2026-08):
        [inference.vllm]
        gpu_memory_utilization = 0.9
    """
    for number, gpu in _too_full_for_inference(run, known(facts.gpus).devices)[:1]:
        part, free_bytes = _memory_fraction(run), gpu.memory_bytes - gpu.used_bytes
        fits = max(0.0, free_bytes / gpu.memory_bytes - 0.02)
        yield Problem(
            "inference.gpu_memory_fraction",
            f"{part:g} of GPU {number} is {format_bytes(part * gpu.memory_bytes)}, and {format_bytes(free_bytes)} of "
            f"{format_bytes(gpu.memory_bytes)} are free",
            fix=f"`inference.gpu_memory_fraction` = {fits:.2f} or less, or end what else is on that GPU",
        )


def _memory_fraction(run: RunSpec) -> float:
    stated = run.inference.gpu_memory_fraction if run.inference is not None else None
    return stated or _DEFAULT_MEMORY_FRACTION


def _too_full_for_inference(run: RunSpec, devices: tuple[Gpu, ...]) -> list[tuple[int, Gpu]]:
    """The GPUs of which less is free than vLLM will ask for."""
    part = _memory_fraction(run)
    if run.inference is None or not 0 < part <= 1:
        return []
    return [
        (number, gpu)
        for number, gpu in _inference_gpus(run, devices)
        if not gpu.fault and gpu.memory_bytes - gpu.used_bytes < part * gpu.memory_bytes
    ]


def _inference_gpus(run: RunSpec, devices: tuple[Gpu, ...]) -> list[tuple[int, Gpu]]:
    """The GPUs that vLLM gets: those named, else as many as inference asks for from the first on."""
    numbered = list(enumerate(devices))
    deployment = run.deployment
    if deployment is not None and deployment.infer_gpu_ids is not None:
        return [(number, gpu) for number, gpu in numbered if number in deployment.infer_gpu_ids]
    if deployment is not None and deployment.infer_gpus is not None:
        return numbered[: deployment.infer_gpus]
    return numbered


@facts_rule("GPU005", Severity.ERROR, needs=("gpus",))
def gpu_without_the_feature(run: RunSpec, facts: Facts) -> Iterator[Problem]:
    """The GPUs must have what the config asks for: bf16, fp8, flash attention 3.

    the kernels are not built for another architecture: the first step ends in "no kernel image", or in a refusal

    bf16 and flash attention 2 need compute capability 8.0, fp8 8.9, mxfp8 10.0; flash attention 3 is written for
    9.0 alone. With fp8 weights vLLM falls back to 16-bit products below 8.9: a warning.

    Source: CUDA C++ programming guide, compute capabilities; README of Dao-AILab/flash-attention.

    Bad (prime-rl 2026-08):
        [trainer.model]
        attn = "flash_attention_3"
        [[facts.gpus.devices]]
        name = "NVIDIA L40S"
        memory_bytes = 48305799168
        compute_capability = [8, 9]
        [[facts.gpus.devices]]
        name = "NVIDIA L40S"
        memory_bytes = 48305799168
        compute_capability = [8, 9]
        [[facts.gpus.devices]]
        name = "NVIDIA L40S"
        memory_bytes = 48305799168
        compute_capability = [8, 9]
        [[facts.gpus.devices]]
        name = "NVIDIA L40S"
        memory_bytes = 48305799168
        compute_capability = [8, 9]
    Good (prime-rl 2026-08):
        [trainer.model]
        attn = "flash_attention_3"
    """
    devices = [gpu for gpu in known(facts.gpus).devices if not gpu.fault]
    for field, feature, severity in _asked_features(run):
        lowest, too_high, name = _FEATURES[feature]
        unfit = [
            gpu for gpu in devices if gpu.compute_capability < lowest or (0, 0) < too_high <= gpu.compute_capability
        ]
        if unfit:
            version = ".".join(str(part) for part in unfit[0].compute_capability)
            needed = f"{lowest[0]}.{lowest[1]}" + ("" if too_high == (0, 0) else " alone")
            yield Problem(
                field,
                f"{unfit[0].name} has compute capability {version}, and {name} needs {needed}",
                fix=f"another value of `{field}`, or another GPU",
                severity=severity,
            )


def _asked_features(run: RunSpec) -> Iterator[tuple[str, str, Severity]]:
    """(RunSpec field, feature, severity) of what the config asks of the hardware."""
    if run.trainer is not None:
        if run.trainer.attention in _FEATURES:
            yield "trainer.attention", run.trainer.attention, Severity.ERROR
        if run.trainer.quantization in _FEATURES:
            yield "trainer.quantization", run.trainer.quantization, Severity.ERROR
    if run.inference is not None:
        if run.inference.quantization == "fp8":
            yield "inference.quantization", "fp8", Severity.WARNING
        if run.inference.dtype in ("bfloat16", "bf16"):
            yield "inference.dtype", "bf16", Severity.ERROR


@facts_rule("GPU006", Severity.ERROR, needs=("interpreter",))
def flash_attention_missing(run: RunSpec, facts: Facts) -> Iterator[Problem]:
    """The flash attention that the config asks for must be installed where the run runs.

    it is no part of torch: without the package the model does not load

    Bad (prime-rl 2026-08):
        [trainer.model]
        attn = "flash_attention_2"
        [facts.interpreter]
        faults = [{module = "flash_attn", fault = "it is not installed"}]
    Good (prime-rl 2026-08):
        [trainer.model]
        attn = "flash_attention_2"
    """
    modules = {"flash_attention_2": "flash_attn", "flash_attention_3": "flash_attn_interface"}
    wanted = modules.get(run.trainer.attention or "") if run.trainer is not None else None
    interpreter = known(facts.interpreter)
    for missing in interpreter.faults:
        if missing.module == wanted:
            yield Problem(
                "trainer.attention",
                f"{interpreter.python} cannot import {wanted}: {missing.fault}",
                fix='install it there, or `trainer.attention` = "sdpa"',
            )


@facts_rule("GPU007", Severity.ERROR, needs=("gpus", "interpreter"))
def driver_too_old(run: RunSpec, facts: Facts) -> Iterator[Problem]:
    """The driver must be new enough for the CUDA that torch is built for.

    torch then finds no GPU: "The NVIDIA driver on your system is too old"

    Within one major version of CUDA an older driver does; across them it does not, unless NVIDIA's package for
    forward compatibility is installed.

    Source: CUDA compatibility guide, minor version compatibility.

    Bad:
        [facts.gpus]
        driver = "550.54.15"
        driver_cuda = [12, 4]
        [[facts.gpus.devices]]
        name = "NVIDIA H200"
        memory_bytes = 150754820096
        compute_capability = [9, 0]
        [facts.interpreter]
        torch_cuda = "13.0"
    Good:
        [facts.gpus]
        driver = "550.54.15"
        driver_cuda = [12, 4]
        [[facts.gpus.devices]]
        name = "NVIDIA H200"
        memory_bytes = 150754820096
        compute_capability = [9, 0]
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
def torch_without_cuda(run: RunSpec, facts: Facts) -> Iterator[Problem]:
    """On a machine with GPUs, torch should be built with CUDA.

    a torch for CPUs sees no GPU: prime-rl ends at once, the bundled trainer runs on the processor

    For the bundled trainer it is a warning: the run works, slowly.

    Bad:
        [[facts.gpus.devices]]
        name = "NVIDIA H200"
        memory_bytes = 150754820096
        compute_capability = [9, 0]
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
            severity=Severity.WARNING if run.is_native else None,
        )


@facts_rule("GPU009", Severity.ERROR, needs=("gpus", "cuda_context"))
def no_cuda_context(run: RunSpec, facts: Facts) -> Iterator[Problem]:
    """A process must be able to compute on each GPU.

    a driver that lists its GPUs may still be unable to use them: no fabric manager, another library version

    Looked at with --deep alone: torch makes a context on each GPU, in a process of its own.

    Bad:
        [[facts.gpus.devices]]
        name = "NVIDIA H200"
        memory_bytes = 150754820096
        compute_capability = [9, 0]
        [facts.cuda_context]
        devices = 0
        failure = "RuntimeError: CUDA error: system not yet initialized"
    Good:
        [[facts.gpus.devices]]
        name = "NVIDIA H200"
        memory_bytes = 150754820096
        compute_capability = [9, 0]
        [facts.cuda_context]
        devices = 1
    """
    context = known(facts.cuda_context)
    if known(facts.gpus).devices and context.failure:
        yield Problem(anchor(run), context.failure, fix="nvidia-smi; systemctl status nvidia-fabricmanager; dmesg")
