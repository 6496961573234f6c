"""The machine's GPUs: enough for the run, without faults, and free. Pure: the facts are given."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prime_train.core.findings import Problem, Severity
from prime_train.core.units import GIB, format_bytes
from prime_train.rules.rule import Problems, facts_rule, known
from prime_train.rules.training.run_needs import anchor
from prime_train.spec import RunSpec
from prime_train.spec.answers import machine_gpus, prime_rl_of, traits_of

if TYPE_CHECKING:
    from prime_train.facts.facts import Facts
    from prime_train.facts.machine import Gpu

_IN_USE_BYTES = GIB  # a CUDA context or a desktop takes a few hundred MiB
_DEFAULT_MEMORY_FRACTION = 0.9  # vLLM's gpu_memory_utilization, in every generation of prime-rl


@facts_rule("GPU001", Severity.ERROR, needs=("gpus",))
def gpu_lost(run: RunSpec, facts: Facts) -> Problems:
    """Every visible GPU must answer the driver.

    CUDA also counts a lost GPU: the first process on it ends, and the launch with it

    Source: NVML API reference, nvmlReturn_t (NVML_ERROR_GPU_IS_LOST).

    Bad:
        [facts.gpus]
        devices = [{fault = "GPU is lost"}]
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
def fewer_gpus_than_asked(run: RunSpec, facts: Facts) -> Problems:
    """A run must not use more GPUs than the machine has.

    the launcher refuses to start, or the last rank finds no device

    Source: prime-rl's "Requested N GPUs via deployment settings, but only M physical GPU(s)".

    Bad (prime-rl 2026-08):
        [facts.gpus]
        devices = [{name = "NVIDIA H200"}]
    Bad (prime-rl 2026-01):
        [facts.gpus]
        devices = []
        reason = "no NVIDIA driver"
    Good (prime-rl 2026-08):
        [deployment]
        num_infer_gpus = 2
    """
    requested, gpus = machine_gpus(run), known(facts.gpus)
    if requested is None or traits_of(run).runs_without_gpu or requested <= len(gpus.devices):
        return
    there = f"{len(gpus.devices)} visible" if gpus.devices else f"none visible: {gpus.reason}"
    yield Problem(
        anchor(run), f"the run takes {requested} GPUs, and there are {there}", fix="fewer GPUs, or another machine"
    )


@facts_rule("GPU003", Severity.WARNING, needs=("gpus",))
def gpus_in_use(run: RunSpec, facts: Facts) -> Problems:
    """The GPUs of a run should be free of other processes.

    other processes take memory and time from every step, and all ranks wait for the slowest one

    Source: NVML API reference, nvmlDeviceGetComputeRunningProcesses.

    Bad:
        [[facts.gpus.devices]]
        name = "NVIDIA H200"
        used_bytes = 9000000000
        users = [{pid = 4711, used_bytes = 9000000000, name = "python"}]
    Good:
        [facts.gpus]
        devices = [{name = "NVIDIA H200"}]
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
def memory_for_inference_taken(run: RunSpec, facts: Facts) -> Problems:
    """The part of a GPU's memory that vLLM reserves must be free.

    vLLM ends at its start if less is free than gpu_memory_utilization requests

    Source: vLLM's "Free memory on device ... is less than desired GPU memory utilization".

    Bad (prime-rl 2026-08):
        [facts.gpus]
        devices = [
            {name = "NVIDIA H200", used_bytes = 90000000000},
            {name = "NVIDIA H200"}, {name = "NVIDIA H200"}, {name = "NVIDIA H200"},
        ]
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
            fix=f"`inference.gpu_memory_fraction` = {fits:.2f} or less, or end the other processes on that GPU",
        )


def _memory_fraction(run: RunSpec) -> float:
    stated = run.inference.gpu_memory_fraction if run.inference is not None else None
    return stated or _DEFAULT_MEMORY_FRACTION


def _too_full_for_inference(run: RunSpec, devices: tuple[Gpu, ...]) -> list[tuple[int, Gpu]]:
    """The GPUs with less free memory than vLLM reserves."""
    part = _memory_fraction(run)
    if run.inference is None or not 0 < part <= 1:
        return []
    return [
        (number, gpu)
        for number, gpu in _inference_gpus(run, devices)
        if not gpu.fault and gpu.memory_bytes - gpu.used_bytes < part * gpu.memory_bytes
    ]


def _inference_gpus(run: RunSpec, devices: tuple[Gpu, ...]) -> list[tuple[int, Gpu]]:
    """The GPUs that vLLM gets: those with the ids in the file, or else the first `infer_gpus`."""
    numbered = list(enumerate(devices))
    deployment = prime_rl_of(run).deployment
    if deployment is not None and deployment.infer_gpu_ids is not None:
        return [(number, gpu) for number, gpu in numbered if number in deployment.infer_gpu_ids]
    if deployment is not None and deployment.infer_gpus is not None:
        return numbered[: deployment.infer_gpus]
    return numbered
