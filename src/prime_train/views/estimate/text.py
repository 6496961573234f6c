"""Renders the document of an estimate as text: memory terms with bars, the verdict, speed, cost. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from prime_train.core.units import GIB, counted, format_bytes, format_count, format_seconds
from prime_train.estimate.spot.advice import describe_excess, is_far
from prime_train.estimate.verdict import Chance, MemoryVerdict
from prime_train.views.text import Paint

SCALING = ("layout", "GPUs", "GiB each", "fits", "best/largest micro-batch", "tokens/s", "sent per step", "at least")
SCALING_RIGHT = frozenset((1, 2, 4, 5, 6, 7))
SCALING_LEAST = (7,)  # the column that a narrow terminal leaves out
_BAR = 24  # characters of a bar that stands for a whole GPU or more
_LEAST_SHOWN_GIB = 0.05  # without --by-term, smaller terms share one line
_SHORT = re.compile(r"\b(cuda|nccl|kv)\b")  # words of names that are written in capitals

Document = Mapping[str, Any]


def text(document: Document, paint: Paint, *, by_term: bool = False) -> str:
    """`document`: that of `estimate --json`. A block for each role, the verdict, speed, cost and assumptions."""
    memory = document["memory"]
    blocks = [
        "\n".join(_head(document, paint)),
        *("\n".join(_role(role, memory["usable_gib"], paint, by_term)) for role in memory["roles"]),
        "\n".join(_verdict(memory, paint)),
        "\n".join(_speed_and_cost(document, paint)),
        "\n".join(_bullets("assumed", document["assumptions"], paint)),
    ]
    return "\n\n".join(block for block in blocks if block)


def _head(document: Document, paint: Paint) -> Iterator[str]:
    model, memory = document["model"], document["memory"]
    yield f"{paint(model['id'], 'bold')}, {format_count(model['params'])} parameters"
    yield f"on {memory['gpus']} x {memory['gpu']}, {memory['usable_gib']:.1f} GiB each for torch"


def _role(role: Document, usable_gib: float, paint: Paint, by_term: bool) -> Iterator[str]:
    each = role["per_gpu"]
    at = f", highest in the {each['phase']}" if each["phase"] else ""
    yield (
        f"{paint(role['role'], 'bold')} on {counted(role['gpus'], 'GPU')}: {each['reserved_gib']:.1f} GiB on each "
        f"({each['low_gib']:.1f} to {each['high_gib']:.1f}){at}"
    )
    yield f"  {paint(_figures(each), 'dim')}"
    terms = [(_name(term), term) for term in _shown(each["terms"], by_term)]
    terms += [(f"+ {_name(term)}", term) for term in each["outside_terms"]]
    width = max(len(name) for name, _ in terms)
    for name, term in terms:
        bar = "#" * round(_BAR * min(1.0, max(0.0, term["gib"]) / usable_gib))
        yield f"  {name:<{width}}  {format_bytes(term['gib'] * GIB):>10}  {paint(bar, 'cyan')}".rstrip()
        if by_term and term["formula"]:
            origin = f"= {term['formula']}  [{term['source']}]"
            yield f"  {'':<{width}}    {paint(origin, 'dim')}"
    if "host_memory" in role:
        low, high = (format_bytes(role["host_memory"][bound] * GIB) for bound in ("low_gib", "high_gib"))
        yield f"  host memory of each machine: {low} at least, up to {high} when it loads and saves"
    if "kv_tokens" in role:
        yield from _served(role)


def _figures(each: Document) -> str:
    """The figure above by its name, and how other programs show the same need."""
    shown = f"reserved by torch; nvidia-smi shows {each['nvidia_smi_gib']:.1f} GiB"
    if each["decided_by"] != "allocated":
        return shown
    return (
        f"{shown}; allocated {each['allocated_typical_gib']:.1f} GiB ({each['allocated_low_gib']:.1f} to "
        f"{each['allocated_high_gib']:.1f}), which decides, because torch frees the rest before it fails"
    )


def _name(term: Document) -> str:
    """Example: "KV cache" for the term "kv_cache"."""
    return _SHORT.sub(lambda found: found[0].upper(), term["name"].replace("_", " "))


def _shown(terms: Iterable[Document], by_term: bool) -> list[Document]:
    """The terms, largest first; without `by_term` the smallest ones are summed into one."""
    ordered = sorted(terms, key=lambda term: -term["gib"])
    small = [term for term in ordered if abs(term["gib"]) < _LEAST_SHOWN_GIB]
    if by_term or len(small) < 2:
        return ordered
    kept = [term for term in ordered if term not in small]
    return [*kept, {"name": f"{len(small)} smaller ones", "gib": sum(term["gib"] for term in small)}]


def _served(role: Document) -> Iterator[str]:
    yield (
        f"  KV cache: {role['kv_tokens']:,} tokens, {role['max_concurrency']:.1f} full-length sequences; "
        f"max_model_len can be at most {role['longest_ctx_tokens']:,}"
    )
    if not role["starts"]:
        yield "  vLLM would refuse to start: the KV cache is too small for one full-length sequence"


def _verdict(memory: Document, paint: Paint) -> Iterator[str]:
    if memory["gpus_needed"] > memory["gpus"]:
        needs = f"the run needs {memory['gpus_needed']} GPUs, but {memory['gpus']} are given"
        yield f"{paint('does not fit', 'red')}: {needs}"
    for role in memory["roles"]:
        yield _role_verdict(role, memory, paint)
    if memory["sharing"] is not None:
        yield from _sharing(memory["sharing"])
    yield from _bullets("advice", memory["advice"], paint)


def _role_verdict(role: Document, memory: Document, paint: Paint) -> str:
    each, name, headroom_gib = role["per_gpu"], role["role"], role["headroom_gib"]
    bounds = ("high_gib", "reserved_gib")
    if each["decided_by"] == "allocated":
        bounds = ("allocated_high_gib", "allocated_typical_gib")
    high, typical = (_gib(each[bound] + each["outside_allocator_gib"]) for bound in bounds)
    usable, beside = _gib(memory["usable_gib"]), " beside the other role" if memory["shared"] else ""
    needs = f"{name} needs up to {high} of {usable}"
    if role["fits"]:
        return f"{paint('fits', 'green')}: {needs}, {_gib(headroom_gib)} free{beside}"
    if role["verdict"] == MemoryVerdict.LIKELY:
        needs = f"{name} needs typically {typical}, up to {high} of {usable}{beside}"
        return f"{paint(chance_text(role), 'yellow')}: {needs}"
    if headroom_gib < 0:
        why = f"{_gib(-headroom_gib)} too much" + (" for both roles" if memory["shared"] else "")
    elif not role.get("starts", True):
        why = "but its KV cache is too small for one full-length sequence"
    else:
        why = "but not together with the other role on the same GPU"
    return f"{paint('does not fit', 'red')}: {needs}, {why}"


def chance_text(judged: Document) -> str:
    """Example: "likely fits (probability 81 %)", of an entry with a verdict and its probability."""
    return Chance(MemoryVerdict(judged["verdict"]), judged["probability"]).text


def _sharing(sharing: Document) -> Iterator[str]:
    """How both roles can share one GPU; shown even if the run fits as configured."""
    best = sharing["recommended"]
    window = "none" if best is None else _inside(sharing["smallest_fraction"], sharing["largest_fraction"])
    yield f"one GPU for both: start {sharing['starts_first']} first; gpu_memory_utilization that fits: {window}"
    if best is not None:
        rollouts = f"{best['batch_size']} rollouts in a batch, {best['rollouts_per_example']} per example, "
        yield (
            f"  recommended: {best['gpu_memory_utilization']:.2f}, {rollouts if best['batch_size'] else ''}at most "
            f"{best['max_model_len']:,} tokens each, {best['max_num_seqs']} at once"
        )


def _inside(low: float, high: float) -> str:
    """Both ends rounded inwards, so a fraction that is shown as fitting fits."""
    digits = next((digits for digits in (2, 3, 4, 5) if _up(low, digits) <= _down(high, digits)), 6)
    return f"between {_up(low, digits):.{digits}f} and {_down(high, digits):.{digits}f}"


def _up(value: float, digits: int) -> float:
    return math.ceil(value * 10.0**digits - 1e-9) / 10.0**digits


def _down(value: float, digits: int) -> float:
    return math.floor(value * 10.0**digits + 1e-9) / 10.0**digits


def _speed_and_cost(document: Document, paint: Paint) -> Iterator[str]:
    time, memory, title = document["throughput"], document["memory"], paint("cost", "bold")
    if time is None:
        return
    yield from _speed(time, paint)
    if not document["costs"]:
        is_refused = memory["verdict"] == MemoryVerdict.DOES_NOT_FIT
        none = "none: the run does not fit" if is_refused else f"not known: no price of {memory['gpu']}"
        yield f"{title} {none}" + ("" if is_refused else "; to add prices: prime-train prices import FILE")
    for cost in document["costs"]:
        yield from _cost(cost, time, title)
    if "spot_checkpoints" in document:
        yield from _spot_saves(document["spot_checkpoints"])


def _speed(time: Document, paint: Paint) -> Iterator[str]:
    """A step of RL also waits for rollouts, so the speed belongs to the trainer's line."""
    rollouts, broadcast_s = time["rollouts"], time["broadcast_s"]
    speed = f", {format_count(round(time['tokens_per_s']['typical']))} tokens/s, MFU {time['mfu']:.0%}"
    is_rl = rollouts is not None and broadcast_s is not None
    yield f"{paint('step', 'bold')} {_seconds(time['step_s'])}" + ("" if is_rl else speed)
    if broadcast_s is not None:
        trainer = f"trainer {_seconds(time['trainer_step_s'])}" + (speed if is_rl else "")
        yield f"  {trainer}; weights to inference {_seconds(broadcast_s)}"
    if rollouts is not None:
        limit = f"{rollouts['concurrency']} at a time on each server, limited by {rollouts['limited_by']}"
        yield f"  rollouts {_seconds(rollouts['step_s'])}, {limit}"
        idle = f"trainer {_percent(rollouts['trainer_idle'])}, inference {_percent(rollouts['inference_idle'])}"
        yield f"  idle: {idle}; bound by {rollouts['bound_by']}"
    yield f"  {paint(time['basis'], 'dim')}"


def _cost(cost: Document, time: Document, title: str) -> Iterator[str]:
    kind = "spot" if cost["spot"] else "on demand"
    if cost["usd"]["typical"] is None:
        why = "the run never ends, because interruptions come before the next checkpoint"
        yield f"{title} {kind}: {why}"
        return
    steps = f"{time['steps']:,} steps" + (" (assumed: the config sets no last step)" if time["is_endless"] else "")
    yield f"{title} {kind}: {_interval(cost['usd'], ' USD')} for {steps}"
    offers = counted(cost["offers"], "offer")
    dates = f"prices of {cost['prices_as_of']} and later" if cost["prices_as_of"] else "prices without a date"
    price = _interval(cost["usd_per_gpu_hour"], " USD")
    yield f"  {_interval(cost['gpu_hours'])} GPU hours at {price} an hour: {offers}, {dates}"
    if cost["spot"]:
        interruptions, lost = _interval(cost["interruptions"]), _interval(cost["lost_gpu_hours"])
        yield f"  including {interruptions} interruptions, which lose {lost} GPU hours"


def _spot_saves(found: Document) -> Iterator[str]:
    """How often to save on spot machines, and what the run's own interval costs."""
    if found["decided_by"] == "run":
        yield "  a save at the end loses least, because interruptions are rare"
    else:
        yield (
            f"  save every {found['interval_steps']:,} steps ({_seconds_or_end(found['interval_s'])}); up to "
            f"{found['longest_interval_steps']:,} steps cost at most 1 % more time"
        )
    excess = math.inf if found["own_excess"] is None else found["own_excess"]
    if found["own_interval_steps"] is not None and is_far(excess):
        yield f"  the {found['own_interval_steps']:,} steps of this config cost {describe_excess(excess)}"
    basis, per_day = "measured" if found["measured"] else "assumed", found["interruptions_per_day"]
    stall, write = _seconds_or_end(found["save_stall_s"]), _seconds_or_end(found["save_write_s"])
    yield f"    at {per_day:.3g} interruptions a day, {basis} saves of {stall} and writes of {write}"


def scaling_rows(document: Document) -> list[tuple[str, ...]]:
    """Rows under SCALING: each layout of the training over GPUs."""
    return [
        (
            way["strategy"],
            str(way["gpus"]),
            f"{way['needed_gib']:.1f}",
            "yes" if way["fits"] else "no",
            f"{way['best_micro_batch'] or '-'}/{way['largest_micro_batch']}",
            format_count(round(way["tokens_per_s"])) if way["tokens_per_s"] else "-",
            format_bytes(way["sent_gib_per_gpu_and_step"] * GIB),
            _seconds_or_end(way["least_traffic_s"]),
        )
        for way in document.get("scaling", ())
    ]


def _bullets(title: str, lines: Iterable[str], paint: Paint) -> Iterator[str]:
    listed = list(lines)
    if listed:
        yield paint(title, "bold")
    yield from (f"  {line}" for line in listed)


def _gib(gib: float) -> str:
    return f"{gib:.1f} GiB"


def _seconds(interval: Document) -> str:
    low, typical, high = (_seconds_or_end(interval[bound]) for bound in ("low", "typical", "high"))
    return f"{typical} ({low} to {high})"


def _seconds_or_end(seconds: float | None) -> str:
    """null in the document: without end."""
    return format_seconds(math.inf if seconds is None else seconds)


def _percent(interval: Document) -> str:
    return f"{interval['typical']:.0%} ({interval['low']:.0%} to {interval['high']:.0%})"


def _interval(interval: Document, unit: str = "") -> str:
    low, typical, high = (_number(interval[bound]) for bound in ("low", "typical", "high"))
    return f"{typical}{unit} ({low} to {high})"


def _number(value: float | None) -> str:
    """Examples: "0.05", "2.45", "317", "12,400", "unlimited"."""
    if value is None:
        return "unlimited"
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.2f}" if value >= 0.01 or value == 0 else f"{value:.1g}"
