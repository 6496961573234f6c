"""Scales and narrows an estimate by the measurements of an earlier run. Pure; reads no file."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import is_dataclass
from typing import Any, NamedTuple

from prime_train.core.errors import ExitCode, UserError
from prime_train.core.units import GIB
from prime_train.estimate.values import Interval, RoleMemory
from prime_train.spec import RunSpec
from prime_train.spec.answers import part_of, prime_rl_of

# What the estimate counts in full, so that a measurement carries over: sizes of a batch, of the layout, of an adapter.
_SCALED: dict[str, tuple[str, ...]] = {
    "model": ("lora",),
    "data": ("ctx_tokens",),
    "batch": ("micro_batch", "global_batch", "global_batch_tokens"),
    "parallel": ("processes", "dp_replicate", "dp_shard"),
    "deployment": ("train_gpus", "infer_gpus", "train_nodes"),
    "lora": ("rank", "target_modules"),
    "finetune": ("ctx_tokens", "batch_sequences", "micro_batch_sequences"),
    "trainer": ("ctx_tokens", "dp_replicate", "context_parallel", "expert_parallel", "activation_checkpointing"),
    "recipe": ("gpus", "shards", "replicas", "ctx_tokens", "micro_batch", "micro_batches_per_step", "adapter_rank"),
}
# What changes the memory or the speed by more than sizes do: the ratio of another run does not hold for this one.
_REFUSED: dict[str, tuple[str, ...]] = {
    "model": ("path", "layers", "hidden_size", "heads", "kv_heads", "head_dim", "mlp_size", "compile"),
    "precision": ("compute", "fp8"),
    "trainer": ("model_name", "impl", "attention", "compile", "optimization_dtype", "optimizer", "quantization",
                "optim_cpu_offload", "fsdp_cpu_offload", "activation_offloading"),
    "recipe": ("program", "model_name", "weight_dtype", "base_dtype", "compute_dtype", "optimizer", "adapter",
               "quantization", "head", "activation_checkpointing", "sharding", "tensor_parallel", "pipeline_parallel",
               "compile", "attention"),
}  # fmt: skip


class ScaledDifference(NamedTuple):
    """A RunSpec field with the value of the measured run and of this one."""

    field: str
    measured: Any
    here: Any

    def text(self) -> str:
        return f"{self.field} was {self.measured} and is {self.here}"


def scaled_differences(measured: RunSpec, here: RunSpec, source: str) -> tuple[ScaledDifference, ...]:
    """What differs and can be scaled. Raises UserError with the fields that differ and cannot."""
    refused = list(_differences(_REFUSED, measured, here))
    if measured.format != here.format:
        refused.insert(0, ScaledDifference("the program", measured.format, here.format))
    trained, adapted = prime_rl_of(measured).lora, prime_rl_of(here).lora
    if (trained is None) != (adapted is None):
        refused.append(ScaledDifference("lora", _present(trained), _present(adapted)))
    if refused:
        raise UserError(
            what=f"the measured run has another config: {'; '.join(one.text() for one in refused)}",
            where=f"--calibrate {source}",
            why="a measurement is scaled to other sizes of batch, sequence and layout, not to another model or program",
            fix="name a run of this model and program, or leave --calibrate out",
            exit_code=ExitCode.FINDINGS,
        )
    return tuple(_differences(_SCALED, measured, here))


def _present(part: object) -> str:
    return "off" if part is None else "on"


def _differences(fields: dict[str, tuple[str, ...]], measured: RunSpec, here: RunSpec) -> Iterator[ScaledDifference]:
    for part, names in fields.items():
        before, after = part_of(measured, part), part_of(here, part)
        if before is None or after is None:
            continue
        for name in names:
            was, value = getattr(before, name, None), getattr(after, name, None)
            if was != value:
                shown = ["on" if is_dataclass(one) else "unset" if one is None else one for one in (was, value)]
                yield ScaledDifference(f"{part}.{name}", *shown)


# Keys of a metrics line: of the bundled trainer, of prime-rl (perf/..., time/...) and of a plain JSON of numbers.
_RESERVED = ("peak_reserved_gib", "max_memory_reserved_gib", "perf/peak_memory")
_ALLOCATED = ("peak_allocated_gib", "max_memory_allocated_gib", "peak_memory_gib")
_STEP = ("step_s", "time/step")
ALLOCATOR = "allocator reserve"  # the term that separates reserved from allocated memory

_WARM_UP_STEPS = 2  # compilation and first allocations; prime-rl's own benchmark skips the first step
_LEAST_STEPS = 3
# No estimate of the measured rows is off by nearly a factor of 3, so the figures are of another run. If the config of
# the measured run is not known, a figure outside the interval, and 15 %, counts as that of another one: a wrong
# calibration is worse than none.
_WRONG_RUN, _LEAST_FAR = math.log(3.0), math.log(1.15)
# Measured: bench/calibrate_memory.py on 252 pairs of prime-rl's benchmarks, one calibrated by the other. For sizes that
# differ by less than 10 %, the error falls from 1.7 % to 0.7 % and 93 % lie in an interval a fifth as wide; from a
# factor of 1.5 on the measurement adds nothing to the estimate.
_LEAST_SPREAD = 0.02
_UNLIKE = math.log(1.5)


class MeasuredRun(NamedTuple):
    """What a run used. `is_reserved`: the peak is torch's max_memory_reserved, else the lower max_memory_allocated."""

    peak_bytes: float | None
    is_reserved: bool
    step_s: tuple[float, ...]
    source: str


class Calibration(NamedTuple):
    """Ratios of measured to estimated figures of the measured run; None if not measured.

    `estimated_bytes` and `estimated_step_s` are the estimates for that run. The more another run differs from them, the
    less it is calibrated. `step_low` and `step_high` are the first and last tenth of the steps over their median.
    """

    memory_ratio: float | None
    estimated_bytes: float
    step_ratio: float | None
    estimated_step_s: float
    step_low: float
    step_high: float
    source: str
    scaled: tuple[str, ...] | None = None  # how the measured run differs from this one; None = its config is not known

    def note(self, memory: RoleMemory) -> str:
        """How the measurement was used, if the config of its run differs or is not known; "" for the same config."""
        if self.scaled is None:
            return f"{self.source} names no config: taken as measured with this one"
        if not self.scaled or self.memory_ratio is None:
            return ""
        kept = _uncalibrated_share(memory.reserved.typical, self.estimated_bytes)
        used = f"{1 - kept:.0%} of its ratio of {self.memory_ratio:.2f} is used" if kept < 1 else "it is not used"
        return f"{self.source} measured another config ({'; '.join(self.scaled)}): {used}, and the interval is wider"


def read_measurement(lines: Iterable[Mapping[str, Any]], source: str) -> MeasuredRun:
    """The highest peak and the steps after the warm-up in the lines of a metrics file.

    Raises UserError if they hold neither, or an impossible figure.
    """
    peaks: dict[bool, float] = {}
    steps: list[float] = []
    for line in lines:
        for is_reserved, keys in ((True, _RESERVED), (False, _ALLOCATED)):
            value = _figure(line, keys, source)
            if value is not None:
                peaks[is_reserved] = max(value, peaks.get(is_reserved, 0.0))
        step_s = _figure(line, _STEP, source)
        if step_s is not None:
            steps.append(step_s)
    if not peaks and not steps:
        why = f"at least one line needs one of {', '.join((*_RESERVED, *_ALLOCATED, *_STEP))}"
        fix = '{"peak_reserved_gib": 41.5, "step_s": 3.2} in a file is enough'
        raise _error(source, "it holds no peak memory and no step time", why, fix)
    kept = steps[_WARM_UP_STEPS:] if len(steps) >= _WARM_UP_STEPS + _LEAST_STEPS else steps
    is_reserved = True in peaks
    peak = peaks.get(is_reserved)
    return MeasuredRun(None if peak is None else peak * GIB, is_reserved, tuple(kept), source)


def _figure(line: Mapping[str, Any], keys: tuple[str, ...], source: str) -> float | None:
    key = next((key for key in keys if line.get(key) is not None), None)
    if key is None:
        return None
    value = line[key]
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e9:
        why, fix = "GiB and seconds are positive numbers", f"remove the line, or correct {key}"
        raise _error(source, f"{key} is {value!r}", why, fix)
    return float(value)


def _error(source: str, what: str, why: str, fix: str) -> UserError:
    return UserError(what, f"--calibrate {source}", why, fix, ExitCode.FINDINGS)


def calibration_of(
    measured: MeasuredRun,
    memory: RoleMemory | None,
    step_s: Interval | None,
    scaled: tuple[str, ...] | None = None,
) -> Calibration:
    """The ratios of measured to estimated figures for the same run. `scaled`: see Calibration.

    Raises UserError if they differ so much that the measurements must be of another run.
    """
    estimated = None if memory is None else memory.reserved.typical
    if memory is not None and not measured.is_reserved:
        estimated = sum(term.bytes for term in memory.terms if term.name != ALLOCATOR)
        estimated = memory.allocated.typical if memory.allocated else estimated
    ratio = measured.peak_bytes / estimated if measured.peak_bytes and estimated else None
    median = statistics.median(measured.step_s) if measured.step_s else None
    step_ratio = median / step_s.typical if median and step_s else None
    _check_same_run(measured, ratio, memory, estimated, is_known=scaled is not None)
    low, high = _first_and_last_tenth(measured.step_s)
    return Calibration(
        memory_ratio=ratio,
        estimated_bytes=memory.reserved.typical if memory else 0.0,
        step_ratio=step_ratio,
        estimated_step_s=step_s.typical if step_s else 0.0,
        step_low=low / median if median else 1.0,
        step_high=high / median if median else 1.0,
        source=measured.source,
        scaled=scaled,
    )


def _check_same_run(
    measured: MeasuredRun, ratio: float | None, memory: RoleMemory | None, estimated: float | None, *, is_known: bool
) -> None:
    if ratio is None or not estimated or not measured.peak_bytes or memory is None:
        return
    low, typical, high = memory.reserved
    far = _WRONG_RUN if is_known else max(_LEAST_FAR, math.log(high / typical if ratio > 1 else typical / low))
    if abs(math.log(ratio)) <= far:
        return
    what = f"{measured.peak_bytes / GIB:.1f} GiB measured, {estimated / GIB:.1f} GiB estimated for the same run"
    why = f"the estimate of a run is rarely off by a factor of {max(ratio, 1 / ratio):.2f}: another config, or a CPU"
    fix = "name a run of this config, a run directory, or the config of these metrics with --calibrate-config"
    raise _error(measured.source, what, why, fix)


def _first_and_last_tenth(values: tuple[float, ...]) -> tuple[float, float]:
    if len(values) < 2:
        return (values[0], values[0]) if values else (1.0, 1.0)
    tenths = statistics.quantiles(values, n=10, method="inclusive")
    return tenths[0], tenths[-1]


def calibrate_memory(memory: RoleMemory, calibration: Calibration | None) -> RoleMemory:
    """The memory with every term scaled, and a narrower interval the more this run is like the measured one."""
    ratio = calibration.memory_ratio if calibration is not None else None
    if calibration is None or ratio is None:
        return memory
    kept = _uncalibrated_share(memory.reserved.typical, calibration.estimated_bytes)
    ratio = 1 + (ratio - 1) * (1 - kept)
    scaled = f"x {ratio:.3f} of {calibration.source}"
    terms = tuple(
        term._replace(bytes=term.bytes * ratio, formula=f"({term.formula}) {scaled}") for term in memory.terms
    )
    typical = sum(term.bytes for term in terms)
    reserved = _narrow(memory.reserved.times(ratio)._replace(typical=typical), kept, 1.0, 1.0)
    allocated = memory.allocated and _narrow(memory.allocated.times(ratio), kept, 1.0, 1.0)
    return memory._replace(
        terms=terms, reserved=reserved, allocated=allocated, unlike=() if kept < 1 else memory.unlike
    )


def calibrate_step(step_s: Interval, calibration: Calibration | None) -> Interval:
    """Seconds of a step, scaled and narrowed to the spread between the measured steps."""
    ratio = calibration.step_ratio if calibration is not None else None
    if calibration is None or ratio is None:
        return step_s
    kept = _uncalibrated_share(step_s.typical, calibration.estimated_step_s)
    ratio = 1 + (ratio - 1) * (1 - kept)
    return _narrow(step_s.times(ratio), kept, calibration.step_low, calibration.step_high)


def _uncalibrated_share(estimated: float, of_measured_run: float) -> float:
    """Share of the uncalibrated estimate to keep: 0 for a run like the measured one, 1 for one 1.5 times as large."""
    if not estimated > 0 or not of_measured_run > 0:
        return 1.0
    return min(1.0, abs(math.log(estimated / of_measured_run)) / _UNLIKE)


def _narrow(wide: Interval, kept: float, low: float, high: float) -> Interval:
    """The interval, never wider than `wide` and never narrower than repeated measurements are."""
    below = max(1 - low, _LEAST_SPREAD) * wide.typical
    above = max(high - 1, _LEAST_SPREAD) * wide.typical
    return Interval(
        max(min(wide.low, wide.typical - below), wide.typical - max(below, kept * (wide.typical - wide.low))),
        wide.typical,
        min(max(wide.high, wide.typical + above), wide.typical + max(above, kept * (wide.high - wide.typical))),
    )
