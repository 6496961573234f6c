"""Six layers of the billion-parameter model in fp8, beside the same layers in bf16. A CPU emulates the rounding."""

from __future__ import annotations

from dataclasses import replace

from gpu.bench import Bench
from gpu.training import batch_of, describe_speed, pick_device, scale_of, take_steps, time_steps, training_of

KINDS = ("none", "tensorwise", "rowwise")


def measure(bench: Bench) -> None:
    scale, device = scale_of(bench, "1b"), pick_device(bench)
    if not bench.tiny:
        scale = scale._replace(model=replace(scale.model, layers=6))
    batch = batch_of(scale, documents=4)
    bf16_ms: float | None = None
    for kind in KINDS:
        what = "bf16" if kind == "none" else f"fp8, {kind}"
        with bench.case(what):
            training = training_of(scale, device, fp8=kind)
            timed = time_steps(bench, lambda count: take_steps(training, [batch], count))  # noqa: B023 - called at once
            (loss,) = take_steps(training, [batch], 1)
            values = describe_speed(bench, device, scale, timed)
            bf16_ms = values["step_ms"] if kind == "none" else bf16_ms
            bench.emit(what, **values, loss=loss, speed_of_bf16=bf16_ms and round(bf16_ms / values["step_ms"], 4))
