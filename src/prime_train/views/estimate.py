"""Shows an Estimate to people: terms with bars, the verdict, speed, cost. Reckons nothing but changes of unit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from prime_train.estimate.cost import Cost
from prime_train.estimate.estimate import Estimate
from prime_train.estimate.estimate_exact import Comparison
from prime_train.estimate.estimate_memory import Role
from prime_train.estimate.estimate_time import Time
from prime_train.estimate.scaling import ScaledLayout
from prime_train.estimate.sharing import Sharing
from prime_train.estimate.values import Interval, Term
from prime_train.units import GIB, counted, format_bytes, format_count, format_seconds
from prime_train.views.estimate_json import WITHOUT_END

Paint = Callable[[str, str], str]
SCALING = ("way", "GPUs", "GiB each", "fits", "largest micro-batch", "sent per GPU and step", "at least")
SCALING_RIGHT = frozenset((1, 2, 4, 5, 6))
_BAR = 24  # characters for a whole GPU, and for what is more than that
_LEAST_SHOWN = 0.05 * GIB  # smaller terms are told together, but with --by-term


def text(estimate: Estimate, paint: Paint, *, by_term: bool = False) -> str:
    """The estimate as people read it: a block for each role, the verdict, speed, cost, what was assumed."""
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
        f"{paint(memory.role, 'bold')} on {gpus}: {_told(reserved.typical)} on each "
        f"({_told(reserved.low, unit=False)} to {_told(reserved.high, unit=False)}){at}"
    )
    rows = [*_shown(memory.terms, by_term), *(term._replace(name=f"+ {term.name}") for term in memory.outside)]
    width = max(len(term.name) for term in rows)
    for term in rows:
        bar = "#" * round(_BAR * min(1.0, max(0.0, term.bytes) / usable_bytes))
        yield f"  {_words(term.name):<{width}}  {format_bytes(term.bytes):>10}  {paint(bar, 'cyan')}".rstrip()
        if by_term and term.formula:
            yield f"  {'':<{width}}    {paint(f'= {term.formula}  [{term.source}]', 'dim')}"
    if role.served is not None:
        yield from _served(role)


def _shown(terms: Iterable[Term], by_term: bool) -> list[Term]:
    """The terms, largest first; the smallest ones as one."""
    ordered = sorted(terms, key=lambda term: -term.bytes)
    if by_term:
        return ordered
    small = [term for term in ordered if abs(term.bytes) < _LEAST_SHOWN]
    if len(small) < 2:
        return ordered
    kept = [term for term in ordered if abs(term.bytes) >= _LEAST_SHOWN]
    return [*kept, Term(f"{len(small)} smaller ones", sum(term.bytes for term in small), "", "")]


def _served(role: Role) -> Iterator[str]:
    served = role.served
    assert served is not None
    yield (
        f"  the cache holds {served.kv_tokens:,} tokens: {served.max_concurrency:.1f} sequences of full length; "
        f"max_model_len may be {served.longest_ctx_tokens:,}"
    )
    if not served.starts:
        yield "  vLLM would refuse to start: not one sequence of full length fits the cache"


def _verdict(estimate: Estimate, paint: Paint) -> Iterator[str]:
    memory, hardware = estimate.memory, estimate.hardware
    if not memory.enough_gpus:
        yield paint("does not fit", "red") + f": it asks for {memory.gpus.all} GPUs, and there are {hardware.gpus}"
    for role in memory.roles:
        needed = f"{_told(role.memory.needed_bytes)} at most of {_told(hardware.usable_bytes)}"
        if role.fits:
            spare = _told(role.headroom_bytes) + (" to spare beside the other" if memory.gpus.shared else " to spare")
            yield f"{paint('fits', 'green')}: {role.memory.role}, {needed}, {spare}"
        elif role.headroom_bytes < 0:
            lacking = _told(-role.headroom_bytes) + (" too much for both" if memory.gpus.shared else " too much")
            yield f"{paint('does not fit', 'red')}: {role.memory.role}, {needed}: {lacking}"
        else:
            yield f"{paint('does not fit', 'red')}: {role.memory.role}, {needed}, but {_other_reason(role)}"
    sharing = memory.sharing
    if sharing is not None:
        yield from _shared(sharing)
    yield from _bullets("advice", estimate.advice, paint)


def _shared(sharing: Sharing) -> Iterator[str]:
    """How to share one GPU, whether the run fits as it is or not."""
    low, high = sharing.window
    window = f"between {low:.2f} and {high:.2f}" if sharing.window.is_open else "none"
    yield f"one GPU for both: start {sharing.starts_first} first; gpu_memory_utilization that fits: {window}"
    if sharing.window.is_open:
        yield (
            f"  recommended: {sharing.fraction:.2f}, {sharing.rollouts} rollouts in a batch, {sharing.group_size} of "
            f"an example, at most {sharing.ctx_tokens:,} tokens each, {sharing.sequences} at once"
        )


def _other_reason(role: Role) -> str:
    """Why a role does not fit that has memory enough by itself."""
    if role.served is not None and not role.served.starts:
        return "its cache holds not one sequence of full length"
    return "not beside the other role on the same GPU"


def _speed_and_cost(estimate: Estimate, paint: Paint) -> Iterator[str]:
    time = estimate.time
    if time is None:
        return
    throughput = time.throughput
    speed = f"{format_count(round(throughput.tokens_per_s.typical))} tokens/s, MFU {throughput.mfu:.0%}"
    is_rl = (
        time.overlap is not None and throughput.broadcast_s is not None
    )  # whose step waits for rollouts too: the speed is the trainer's
    yield f"{paint('step', 'bold')} {_seconds(time.step_s)}" + ("" if is_rl else f", {speed}")
    if throughput.broadcast_s is not None:
        trainer = f"trainer {_seconds(throughput.step_s)}" + (f", {speed}" if is_rl else "")
        yield f"  {trainer}; weights to inference {_seconds(throughput.broadcast_s)}"
    if time.rollouts is not None and time.overlap is not None:
        held = f"{time.rollouts.concurrency} at a time on each server, held there by {time.rollouts.limited_by}"
        yield f"  rollouts {_seconds(time.rollouts.seconds)}, {held}"
        idle = f"trainer {_percent(time.overlap.trainer_idle)}, inference {_percent(time.overlap.inference_idle)}"
        yield f"  idle: {idle}; bound by {time.overlap.bound_by}"
    yield f"  {paint(throughput.basis, 'dim')}"
    if not estimate.costs:
        yield f"{paint('cost', 'bold')} not known: no price of {estimate.hardware.id}; prime-train prices import FILE"
    for cost in estimate.costs:
        yield from _cost(cost, time, paint)


def _cost(cost: Cost, time: Time, paint: Paint) -> Iterator[str]:
    kind = "spot" if cost.spot else "on demand"
    if cost.usd.typical >= WITHOUT_END:
        yield f"{paint('cost', 'bold')} {kind}: it never ends; it is interrupted before it gets to the next checkpoint"
        return
    of = f"{time.steps:,} steps" + (", for the config sets no end" if time.is_endless else "")
    yield f"{paint('cost', 'bold')} {kind}: {_usd(cost.usd)} for {of}"
    offers = counted(cost.offers, "offer")
    dated = f"prices of {cost.prices_as_of} and later" if cost.prices_as_of else "prices without a date"
    yield f"  {_hours(cost.gpu_hours)} GPU hours at {_usd(cost.usd_per_gpu_hour)} an hour: {offers}, {dated}"
    if cost.spot:
        lost = _hours(cost.lost_gpu_hours)
        yield f"  with {_hours(cost.interruptions)} interruptions and {lost} GPU hours lost to them"


def exact(traced: Sequence[Comparison]) -> str:
    """What --exact counted; "" where it was not asked for."""
    if not traced:
        return ""
    lines = ["traced on tensors without data, in eager mode, without what the allocator adds"]
    for part in traced:
        off = f"{part.term_bytes / part.traced_bytes - 1:+.0%}" if part.traced_bytes else "nothing"
        lines.append(f"  {part.name}: {_told(part.traced_bytes)}; the terms say {_told(part.term_bytes)} ({off})")
    return "\n".join(lines)


def scaling_rows(ways: Iterable[ScaledLayout]) -> list[tuple[str, ...]]:
    """Rows under SCALING: each way of laying the training over GPUs."""
    return [
        (
            way.strategy,
            str(way.gpus),
            f"{way.memory.needed_bytes / GIB:.1f}",
            "yes" if way.fits else "no",
            str(way.largest_micro_batch),
            format_bytes(way.sent_bytes),
            format_seconds(way.least_s),
        )
        for way in ways
    ]


def _bullets(title: str, lines: Iterable[str], paint: Paint) -> Iterator[str]:
    told = list(lines)
    if told:
        yield paint(title, "bold")
    yield from (f"  {line}" for line in told)


def _words(name: str) -> str:
    return name.replace("_", " ")


def _told(size_bytes: float, *, unit: bool = True) -> str:
    return f"{size_bytes / GIB:.1f}" + (" GiB" if unit else "")


def _seconds(interval: Interval) -> str:
    low, typical, high = (format_seconds(value) for value in interval)
    return f"{typical} ({low} to {high})"


def _percent(interval: Interval) -> str:
    return f"{interval.typical:.0%} ({interval.low:.0%} to {interval.high:.0%})"


def _usd(interval: Interval) -> str:
    low, typical, high = (_number(value) for value in interval)
    return f"{typical} USD ({low} to {high})"


def _hours(interval: Interval) -> str:
    low, typical, high = (_number(value) for value in interval)
    return f"{typical} ({low} to {high})"


def _number(value: float) -> str:
    """ "0.05", "2.45", "317", "12,400", "without end"."""
    if value >= WITHOUT_END:
        return "without end"
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.2f}" if value >= 0.01 or value == 0 else f"{value:.1g}"
