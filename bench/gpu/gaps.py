"""How long the GPU idles within and between optimizer steps, which kernels it runs, and where the host waits for it."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch.autograd import DeviceType  # type: ignore[attr-defined]  # public, and not in its __all__ (torch 2.13)
from torch.profiler import ProfilerActivity, profile

from gpu.bench import Bench
from gpu.training import (
    batch_of,
    describe_speed,
    pick_device,
    scale_of,
    take_steps,
    time_steps,
    training_of,
)
from prime_train.trainer.batch import MicroBatch
from prime_train.trainer.loops.step import Training

PROFILED_STEPS = 3
TOP = 12
_SYNC = "called a synchronizing CUDA operation"  # torch, c10/cuda/CUDAFunctions.cpp


def measure(bench: Bench) -> None:
    scale, device = scale_of(bench, "124m"), pick_device(bench)
    for documents, what in ((4, "four documents in a row"), (1, "one document in a row")):
        with bench.case(what):
            training, batch = training_of(scale, device), batch_of(scale, documents)
            timed = time_steps(bench, lambda count: take_steps(training, [batch], count))  # noqa: B023 - called at once
            bench.emit(f"speed: {what}", **describe_speed(bench, device, scale, timed))
            bench.emit(what, **_profile(bench, training, batch), **_count_syncs(bench, training, batch))


def _profile(bench: Bench, training: Training, batch: MicroBatch) -> dict[str, Any]:
    """The part of the time in which a kernel ran, and those that took most. On a CPU: its operations."""
    kind = ProfilerActivity.CUDA if bench.on_gpu else ProfilerActivity.CPU  # both would slow down the host
    with profile(activities=[kind]) as profiled:
        take_steps(training, [batch], PROFILED_STEPS)
        bench.synchronise()
    events = profiled.events()
    assert events is not None
    wanted = DeviceType.CUDA if bench.on_gpu else DeviceType.CPU
    kernels = [event for event in events if event.device_type == wanted and is_kernel(event)]
    spans = [(event.time_range.start, event.time_range.end) for event in kernels]  # microseconds
    took_us: Counter[str] = Counter()
    for event in kernels:
        took_us[event.name[:80]] += event.time_range.elapsed_us() if bench.on_gpu else event.self_cpu_time_total
    return {
        "busy_ratio": round(busy_ratio(spans), 4) if bench.on_gpu else None,  # a CPU is busy by definition
        "kernels_a_step": round(len(kernels) / PROFILED_STEPS),
        "top_ms_a_step": {name: round(us / PROFILED_STEPS / 1e3, 3) for name, us in took_us.most_common(TOP)},
    }


def is_kernel(event: Any) -> bool:
    """Neither a copy nor a span that the program named, which covers gaps."""
    return not event.is_user_annotation and not event.name.startswith(("Memcpy", "Memset"))


def busy_ratio(spans: Iterable[tuple[float, float]]) -> float:
    """The part of the time from the first start to the last end that is in at least one span."""
    ordered = sorted(spans)
    busy, reached = 0.0, ordered[0][0]
    for start, end in ordered:
        busy += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return busy / (reached - ordered[0][0])


def _count_syncs(bench: Bench, training: Training, batch: MicroBatch) -> dict[str, Any]:
    """How often a step makes the host wait for the device, and in which lines. Only CUDA reports it."""
    if not bench.on_gpu:
        return {"host_syncs": None}
    take_steps(training, [batch], 1)
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            take_steps(training, [batch], PROFILED_STEPS)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    waits = [one for one in caught if _SYNC in str(one.message)]
    places = Counter(f"{Path(one.filename).name}:{one.lineno}" for one in waits)
    return {"host_syncs": round(len(waits) / PROFILED_STEPS, 2), "sync_places": dict(places.most_common(TOP))}
