"""Processors for the run: a GPU or core for each process, and what they compute in. Pure: the facts are given."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prime_train.findings import Problem, Severity
from prime_train.rules.base import facts_rule, if_known, known
from prime_train.spec import RunSpec

if TYPE_CHECKING:
    from prime_train.facts.facts import Facts

_BF16_CAPABILITY = (8, 0)  # Ampere. Source: NVIDIA CUDA programming guide, compute capabilities


@facts_rule("PAR002", Severity.ERROR, needs=("gpus",), uses=("cpu",))
def more_processes_than_devices(run: RunSpec, facts: Facts) -> Iterator[Problem]:
    """There must be a GPU for every process; without GPUs there should be a core.

    a rank without a GPU of its own ends the launch

    On a machine without GPUs, more processes than cores is a warning: they take turns.

    Source: trainer/device.py (one GPU per rank).

    Bad:
        [parallel]
        processes = 16
    Bad:
        [parallel]
        processes = 16
        [facts.gpus]
        devices = [{name = "NVIDIA H200", memory_bytes = 150754820096, compute_capability = [9, 0]}]
    Good:
        [parallel]
        processes = 2
    """
    processes, gpus = run.parallel.processes, len(known(facts.gpus).devices)
    cpu = if_known(facts, "cpu")  # of another machine only its GPUs are known
    cores = cpu.cores if cpu is not None else processes
    if processes <= (gpus or cores):
        return
    plain = run.parallel.dp_shard == 1 and run.parallel.dp_replicate is None and run.batch.global_batch is None
    patch = {"parallel.processes": gpus or cores} if plain and run.batch.global_batch_tokens is None else {}
    if gpus:
        what = f"{processes} processes, and {gpus} GPU{'s are' if gpus > 1 else ' is'} visible"
        yield Problem("parallel.processes", what, "`parallel.processes` <= GPUs" if not patch else "", patch)
    else:
        yield Problem(
            "parallel.processes",
            f"{processes} processes share {cores} core{'s' if cores > 1 else ''}, and no GPU is visible",
            "`parallel.processes` <= cores" if not patch else "",
            patch,
            why="they take turns: more processes are no faster, and each holds its own memory",
            severity=Severity.WARNING,
        )


@facts_rule("HST004", Severity.NOTE, needs=("cpu",))
def fewer_cores_than_workers(run: RunSpec, facts: Facts) -> Iterator[Problem]:
    """There should be a core for every loader worker.

    workers that take turns with the trainer slow the step that they are to feed

    Source: trainer/data/loader.py (workers are processes that compute).

    Bad:
        [data]
        loader_workers = 32
    Good:
        [data]
        loader_workers = 2
    """
    workers, cores = run.parallel.processes * run.data.loader_workers, known(facts.cpu).cores
    if workers > max(cores, run.parallel.processes):
        yield Problem(
            "data.loader_workers",
            f"{run.parallel.processes} x {run.data.loader_workers} workers, and there are {cores} cores",
            patch={"data.loader_workers": max(1, cores // run.parallel.processes - 1)},
        )


@facts_rule("PRE001", Severity.ERROR, needs=("gpus", "cpu"))
def bf16_in_software(run: RunSpec, facts: Facts) -> Iterator[Problem]:
    """bf16 needs hardware that computes in it.

    emulated, a step takes 5 to 40 times as long as in fp32: the trainer refuses to start

    That is a GPU of compute capability 8.0 or more, or an x86 CPU with avx512_bf16 or amx_bf16. The times
    were measured with torch 2.13 on AVX2 cores: 5 to 7 times for products forward, 42 times backward.

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
    yield Problem("precision.compute", what, patch={"precision.compute": "auto"})
