"""Renders an Estimate as text: memory terms with bars, the verdict, speed, cost. Computes only changes of unit."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from prime_train.core.units import GIB, counted, format_bytes, format_count, format_seconds
from prime_train.estimate.cost.run_cost import Cost
from prime_train.estimate.estimate import Estimate
from prime_train.estimate.memory.roles import Role, Sharing
from prime_train.estimate.serving.server_memory import ServeMemory
from prime_train.estimate.spot.advice import SpotSaves, describe_excess
from prime_train.estimate.time.run_time import Time
from prime_train.estimate.time.scaling import ScaledLayout
from prime_train.estimate.values import Interval, Term
from prime_train.estimate.verdict import Verdict, need_of
from prime_train.views.estimate.document import UNLIMITED
from prime_train.views.text import Paint

SCALING = ("layout", "GPUs", "GiB each", "fits", "best/largest micro-batch", "tokens/s", "sent per step", "at least")
SCALING_RIGHT = frozenset((1, 2, 4, 5, 6, 7))
SCALING_LEAST = (7,)  # the column that a narrow terminal leaves out
_BAR = 24  # characters of a bar that stands for a whole GPU or more
_LEAST_SHOWN = 0.05 * GIB  # without --by-term, smaller terms share one line


def text(estimate: Estimate, paint: Paint, *, by_term: bool = False) -> str:
    """The text of `estimate`: a block for each role, the verdict, speed, cost and assumptions."""
    blocks = [
        "\n".join(_head(estimate, paint)),
        *("\n".join(_role(role, estimate.hardware.usable_bytes, paint, by_term)) for role in estimate.memory.roles),
        "\n".join(_verdict(estimate, paint)),
        "\n".join(_speed_and_cost(estimate, paint)),
        "\n".join(_bullets("assumed", estimate.assumptions, paint)),
    ]
    return "\n\n".join(block for block in blocks if block)


def _head(estimate: Estimate, paint: Paint) -> Iterator[str]:
    shape, hardware = estimate.shape, estimate.hardware
    usable = f"{hardware.usable_bytes / GIB:.1f} GiB each for torch"
    yield f"{paint(shape.name, 'bold')}, {format_count(shape.parameters)} parameters"
    yield f"on {hardware.gpus} x {hardware.id}, {usable}"


def _role(role: Role, usable_bytes: float, paint: Paint, by_term: bool) -> Iterator[str]:
    memory = role.memory
    gpus = counted(memory.gpus, "GPU")
    at = f", highest in the {memory.phase}" if memory.phase else ""
    reserved = memory.reserved
    yield (
        f"{paint(memory.role, 'bold')} on {gpus}: {_gib(reserved.typical)} on each "
        f"({reserved.low / GIB:.1f} to {reserved.high / GIB:.1f}){at}"
    )
    rows = [*_shown(memory.terms, by_term), *(term._replace(name=f"+ {term.name}") for term in memory.outside)]
    width = max(len(term.name) for term in rows)
    for term in rows:
        bar = "#" * round(_BAR * min(1.0, max(0.0, term.bytes) / usable_bytes))
        name = term.name.replace("_", " ")
        yield f"  {name:<{width}}  {format_bytes(term.bytes):>10}  {paint(bar, 'cyan')}".rstrip()
        if by_term and term.formula:
            yield f"  {'':<{width}}    {paint(f'= {term.formula}  [{term.source}]', 'dim')}"
    if role.served is not None:
        yield from _served(role.served)


def _shown(terms: Iterable[Term], by_term: bool) -> list[Term]:
    """The terms, largest first; without `by_term` the smallest ones are summed into one."""
    ordered = sorted(terms, key=lambda term: -term.bytes)
    if by_term:
        return ordered
    small = [term for term in ordered if abs(term.bytes) < _LEAST_SHOWN]
    if len(small) < 2:
        return ordered
    kept = [term for term in ordered if abs(term.bytes) >= _LEAST_SHOWN]
    return [*kept, Term(f"{len(small)} smaller ones", sum(term.bytes for term in small), "", "")]


def _served(served: ServeMemory) -> Iterator[str]:
    yield (
        f"  KV cache: {served.kv_tokens:,} tokens, {served.max_concurrency:.1f} full-length sequences; "
        f"max_model_len can be at most {served.longest_ctx_tokens:,}"
    )
    if not served.starts:
        yield "  vLLM would refuse to start: the KV cache is too small for one full-length sequence"


def _verdict(estimate: Estimate, paint: Paint) -> Iterator[str]:
    memory, hardware = estimate.memory, estimate.hardware
    if not memory.enough_gpus:
        yield paint("does not fit", "red") + f": the run needs {memory.gpus.all} GPUs, but {hardware.gpus} are given"
    for role in memory.roles:
        needed = f"needs up to {_gib(role.memory.needed_bytes)} of {_gib(hardware.usable_bytes)}"
        if role.fits:
            free = f"{_gib(role.headroom_bytes)} free" + (" beside the other role" if memory.gpus.shared else "")
            yield f"{paint('fits', 'green')}: {role.memory.role} {needed}, {free}"
        elif role.chance.verdict is Verdict.LIKELY:
            typical = f"typically {_gib(need_of(role.memory).typical)}, up to {_gib(role.memory.needed_bytes)}"
            room = f"{_gib(hardware.usable_bytes)}" + (" beside the other role" if memory.gpus.shared else "")
            yield f"{paint(role.chance.text, 'yellow')}: {role.memory.role} needs {typical} of {room}"
        elif role.headroom_bytes < 0:
            excess = f"{_gib(-role.headroom_bytes)} too much" + (" for both roles" if memory.gpus.shared else "")
            yield f"{paint('does not fit', 'red')}: {role.memory.role} {needed}, {excess}"
        else:
            yield f"{paint('does not fit', 'red')}: {role.memory.role} {needed}, but {_other_reason(role)}"
    sharing = memory.sharing
    if sharing is not None:
        yield from _sharing(sharing)
    yield from _bullets("advice", estimate.advice, paint)


def _sharing(sharing: Sharing) -> Iterator[str]:
    """How both roles can share one GPU; shown even if the run fits as configured."""
    low, high = sharing.window
    window = _inside(low, high) if sharing.window.is_open else "none"
    yield f"one GPU for both: start {sharing.starts_first} first; gpu_memory_utilization that fits: {window}"
    if sharing.window.is_open:
        rollouts = f"{sharing.rollouts} rollouts in a batch, {sharing.group_size} per example, "
        yield (
            f"  recommended: {sharing.fraction:.2f}, {rollouts if sharing.rollouts else ''}at most "
            f"{sharing.ctx_tokens:,} tokens each, {sharing.sequences} at once"
        )


def _inside(low: float, high: float) -> str:
    """Both ends rounded inwards, so a fraction that is shown as fitting fits."""
    digits = next((digits for digits in (2, 3, 4, 5) if _up(low, digits) <= _down(high, digits)), 6)
    return f"between {_up(low, digits):.{digits}f} and {_down(high, digits):.{digits}f}"


def _up(value: float, digits: int) -> float:
    return math.ceil(value * 10.0**digits - 1e-9) / 10.0**digits


def _down(value: float, digits: int) -> float:
    return math.floor(value * 10.0**digits + 1e-9) / 10.0**digits


def _other_reason(role: Role) -> str:
    """Why a role does not fit although it has enough memory by itself."""
    if role.served is not None and not role.served.starts:
        return "its KV cache is too small for one full-length sequence"
    return "not together with the other role on the same GPU"


def _speed_and_cost(estimate: Estimate, paint: Paint) -> Iterator[str]:
    time = estimate.time
    if time is None:
        return
    throughput = time.throughput
    speed = f"{format_count(round(throughput.tokens_per_s.typical))} tokens/s, MFU {throughput.mfu:.0%}"
    # A step of RL also waits for rollouts, so the speed belongs to the trainer's line.
    is_rl = time.overlap is not None and throughput.broadcast_s is not None
    yield f"{paint('step', 'bold')} {_seconds(time.step_s)}" + ("" if is_rl else f", {speed}")
    if throughput.broadcast_s is not None:
        trainer = f"trainer {_seconds(throughput.step_s)}" + (f", {speed}" if is_rl else "")
        yield f"  {trainer}; weights to inference {_seconds(throughput.broadcast_s)}"
    if time.rollouts is not None and time.overlap is not None:
        limit = f"{time.rollouts.concurrency} at a time on each server, limited by {time.rollouts.limited_by}"
        yield f"  rollouts {_seconds(time.rollouts.seconds)}, {limit}"
        idle = f"trainer {_percent(time.overlap.trainer_idle)}, inference {_percent(time.overlap.inference_idle)}"
        yield f"  idle: {idle}; bound by {time.overlap.bound_by}"
    yield f"  {paint(throughput.basis, 'dim')}"
    if not estimate.costs and estimate.is_refused:
        yield f"{paint('cost', 'bold')} none: the run does not fit"
    elif not estimate.costs:
        what = f"not known: no price of {estimate.hardware.id}"
        yield f"{paint('cost', 'bold')} {what}; to add prices: prime-train prices import FILE"
    for cost in estimate.costs:
        yield from _cost(cost, time, paint)
    if estimate.spot_saves is not None:
        yield from _spot_saves_lines(estimate.spot_saves)


def _cost(cost: Cost, time: Time, paint: Paint) -> Iterator[str]:
    kind = "spot" if cost.spot else "on demand"
    if cost.usd.typical >= UNLIMITED:
        why = "the run never ends, because interruptions come before the next checkpoint"
        yield f"{paint('cost', 'bold')} {kind}: {why}"
        return
    steps = f"{time.steps:,} steps" + (" (assumed: the config sets no last step)" if time.is_endless else "")
    yield f"{paint('cost', 'bold')} {kind}: {_interval(cost.usd, ' USD')} for {steps}"
    offers = counted(cost.offers, "offer")
    dates = f"prices of {cost.prices_as_of} and later" if cost.prices_as_of else "prices without a date"
    price = _interval(cost.usd_per_gpu_hour, " USD")
    yield f"  {_interval(cost.gpu_hours)} GPU hours at {price} an hour: {offers}, {dates}"
    if cost.spot:
        interruptions, lost = _interval(cost.interruptions), _interval(cost.lost_gpu_hours)
        yield f"  including {interruptions} interruptions, which lose {lost} GPU hours"


def _spot_saves_lines(found: SpotSaves) -> Iterator[str]:
    """How often to save on spot machines, and what the run's own interval costs."""
    advice, basis = found.advice, "measured" if found.measured else "assumed"
    stall, write = format_seconds(found.saves.stall_s), format_seconds(found.saves.write_s)
    if advice.reason == "run":
        yield "  a save at the end loses least, because interruptions are rare"
    else:
        yield (
            f"  save every {advice.interval_steps:,} steps ({format_seconds(advice.interval_s)}); up to "
            f"{found.longest_steps:,} steps cost at most 1 % more time"
        )
    if found.excess is not None and found.is_far:
        yield f"  the {found.interval_steps:,} steps of this config cost {describe_excess(found.excess)}"
    yield f"    at {found.per_hour * 24:.3g} interruptions a day, {basis} saves of {stall} and writes of {write}"


def scaling_rows(ways: Iterable[ScaledLayout]) -> list[tuple[str, ...]]:
    """Rows under SCALING: each layout of the training over GPUs."""
    return [
        (
            way.strategy,
            str(way.gpus),
            f"{way.memory.needed_bytes / GIB:.1f}",
            "yes" if way.fits else "no",
            f"{way.best_micro_batch or '-'}/{way.largest_micro_batch}",
            format_count(round(way.tokens_per_s)) if way.tokens_per_s else "-",
            format_bytes(way.sent_bytes),
            format_seconds(way.least_s),
        )
        for way in ways
    ]


def _bullets(title: str, lines: Iterable[str], paint: Paint) -> Iterator[str]:
    listed = list(lines)
    if listed:
        yield paint(title, "bold")
    yield from (f"  {line}" for line in listed)


def _gib(size_bytes: float) -> str:
    return f"{size_bytes / GIB:.1f} GiB"


def _seconds(interval: Interval) -> str:
    low, typical, high = (format_seconds(value) for value in interval)
    return f"{typical} ({low} to {high})"


def _percent(interval: Interval) -> str:
    return f"{interval.typical:.0%} ({interval.low:.0%} to {interval.high:.0%})"


def _interval(interval: Interval, unit: str = "") -> str:
    low, typical, high = (_number(value) for value in interval)
    return f"{typical}{unit} ({low} to {high})"


def _number(value: float) -> str:
    """Examples: "0.05", "2.45", "317", "12,400", "unlimited"."""
    if value >= UNLIMITED:
        return "unlimited"
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.2f}" if value >= 0.01 or value == 0 else f"{value:.1g}"
