"""Makes the JSON document of an Estimate, which its text renders. Computes only changes of unit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from prime_train.core.units import GIB
from prime_train.estimate.cost.run_cost import Cost
from prime_train.estimate.estimate import Estimate
from prime_train.estimate.memory.roles import RoleEstimate, Sharing
from prime_train.estimate.spot.advice import SpotSaves
from prime_train.estimate.time.run_time import Time
from prime_train.estimate.time.scaling import ScaledLayout
from prime_train.estimate.values import Interval, RoleMemory, Term
from prime_train.estimate.verdict import Chance
from prime_train.views.text import pick

UNLIMITED = 1e12  # dollars, hours or seconds: the run never ends, because interruptions undo all progress


def document(estimate: Estimate, scaling: Sequence[ScaledLayout] = ()) -> dict[str, Any]:
    """The document of `estimate --json`. `scaling`: the layouts of --scaling."""
    time = estimate.time
    extra: dict[str, Any] = {}
    if scaling:
        extra["scaling"] = [_scaled_json(way) for way in scaling]
    if estimate.spot_saves is not None:
        extra["spot_checkpoints"] = _spot_saves_json(estimate.spot_saves)
    return {
        "version": 1,
        "model": {"id": estimate.shape.name, "params": estimate.shape.parameters, "source": estimate.shape.source},
        "memory": {
            "gpu": estimate.hardware.id,
            "gpus": estimate.hardware.gpus,
            "usable_gib": _gib(estimate.hardware.usable_bytes),
            "roles": [_role_json(role) for role in estimate.memory.roles],
            "fits": estimate.fits,
            **chance_json(estimate.chance),
            "shared": estimate.memory.gpus.shared,
            "sharing": None if estimate.memory.sharing is None else _sharing_json(estimate.memory.sharing),
            "gpus_needed": estimate.memory.gpus.all,
            "advice": list(estimate.advice),
        },
        "throughput": None if time is None else _time_json(time),
        "cost": _cost_json(estimate.costs[0]) if estimate.costs else None,
        "costs": [_cost_json(cost) for cost in estimate.costs],
        "assumptions": list(estimate.assumptions),
        **extra,
    }


def _spot_saves_json(found: SpotSaves) -> dict[str, Any]:
    """How often to save on spot machines."""
    return {
        "interval_steps": found.advice.interval_steps,
        "interval_s": finite(found.advice.interval_s),
        "young_s": finite(found.advice.young_s),
        "decided_by": found.advice.reason,
        "longest_interval_steps": found.longest_steps,
        "own_interval_steps": found.interval_steps,
        "own_excess": None if found.excess is None else finite(found.excess),
        "save_stall_s": finite(found.saves.stall_s),
        "save_write_s": finite(found.saves.write_s),
        "measured": found.measured,
        "interruptions_per_day": finite(found.per_hour * 24),
    }


def _sharing_json(sharing: Sharing) -> dict[str, Any]:
    """How to share one GPU: the fractions that fit, and the recommended settings."""
    return {
        **pick(sharing, "starts_first", "why_first"),
        "smallest_fraction": six_digits(sharing.window.smallest),
        "largest_fraction": six_digits(sharing.window.largest),
        "fits_as_asked": sharing.fits,
        "recommended": {
            "gpu_memory_utilization": sharing.fraction,
            "max_model_len": sharing.ctx_tokens,
            "batch_size": sharing.rollouts or None,
            "rollouts_per_example": sharing.group_size or None,
            "max_num_seqs": sharing.sequences,
        }
        if sharing.window.is_open
        else None,
    }


def _scaled_json(way: ScaledLayout) -> dict[str, Any]:
    return {
        **pick(way, "strategy", "gpus"),
        "needed_gib": _gib(way.memory.needed_bytes),
        "fits": way.fits,
        "largest_micro_batch": way.largest_micro_batch,
        "best_micro_batch": way.best_micro_batch or None,
        "tokens_per_s": finite(way.tokens_per_s) if way.tokens_per_s else None,
        "sent_gib_per_gpu_and_step": _gib(way.sent_bytes),
        "least_traffic_s": finite(way.least_s),
        "transfers": [
            {"name": part.name, "gib": _gib(part.bytes), **pick(part, "formula", "source")} for part in way.transfers
        ],
    }


def _role_json(role: RoleEstimate) -> dict[str, Any]:
    memory = role.memory
    document: dict[str, Any] = {
        "role": memory.role,
        "gpus": memory.gpus,
        "per_gpu": {
            "reserved_gib": _gib(memory.reserved.typical),
            "low_gib": _gib(memory.reserved.low),
            "high_gib": _gib(memory.reserved.high),
            "outside_allocator_gib": _gib(memory.outside_bytes),
            **_figures_json(memory),
            "phase": memory.phase or None,
            "terms": [_term_json(term) for term in memory.terms],
            "outside_terms": [_term_json(term) for term in memory.outside],
        },
        "fits": role.fits,
        **chance_json(role.chance),
        "headroom_gib": _gib(role.headroom_bytes),
    }
    if role.host is not None:
        document["host_memory"] = {f"{name}_gib": _gib(value) for name, value in role.host._asdict().items()}
    served = role.served
    if served is not None:
        document |= {
            "kv_cache_gib": _gib(served.kv_bytes.typical),
            **pick(served, "kv_tokens", "full_length_sequences"),
            "max_concurrency": round(served.max_concurrency, 2),
            **pick(served, "longest_ctx_tokens", "starts"),
        }
    return document


def _figures_json(memory: RoleMemory) -> dict[str, Any]:
    """The same need as other programs show it: nvidia-smi, and torch's allocated memory where it is known."""
    shown: dict[str, Any] = {"nvidia_smi_gib": _gib(memory.shown.typical)}
    if memory.allocated is not None:
        shown |= {f"allocated_{name}_gib": _gib(value) for name, value in memory.allocated._asdict().items()}
    return shown | {"decided_by": "allocated" if memory.allocated is not None else "reserved"}


def chance_json(chance: Chance) -> dict[str, Any]:
    """The verdict and its probability, which `chance_text` shows."""
    return {"verdict": chance.verdict.value, "probability": round(chance.probability, 3)}


def _term_json(term: Term) -> dict[str, Any]:
    name = term.name.lower().replace(" ", "_").replace("-", "_")
    return {"name": name, "gib": _gib(term.bytes), "formula": term.formula, "source": term.source}


def _time_json(time: Time) -> dict[str, Any]:
    throughput = time.throughput
    return {
        "step_s": interval_json(time.step_s),
        "trainer_step_s": interval_json(throughput.step_s),
        "broadcast_s": None if throughput.broadcast_s is None else interval_json(throughput.broadcast_s),
        "rollouts": _rollouts_json(time),
        "tokens_per_s": interval_json(throughput.tokens_per_s),
        "mfu": round(throughput.mfu, 4),
        "basis": throughput.basis,
        "steps": time.steps,
        "is_endless": time.is_endless,
    }


def _rollouts_json(time: Time) -> dict[str, Any] | None:
    rollouts, overlap = time.rollouts, time.overlap
    if rollouts is None or overlap is None:
        return None
    return {
        "step_s": interval_json(rollouts.seconds),
        "tokens_per_s": interval_json(rollouts.tokens_per_s),
        **pick(rollouts, "concurrency", "limited_by", "basis"),
        "trainer_idle": interval_json(overlap.trainer_idle),
        "inference_idle": interval_json(overlap.inference_idle),
        "bound_by": overlap.bound_by,
    }


def _cost_json(cost: Cost) -> dict[str, Any]:
    intervals = pick(cost, "usd_per_gpu_hour", "gpu_hours", "run_hours", "usd", "interruptions", "lost_gpu_hours")
    return {
        **pick(cost, "spot", "offers"),
        **{name: interval_json(interval) for name, interval in intervals.items()},
        "prices_as_of": cost.prices_as_of,
        "undated_prices": cost.undated,
        "sources": list(cost.sources),
    }


def interval_json(interval: Interval) -> dict[str, float | None]:
    """A value without limit is null, because JSON has no infinity."""
    return {name: finite(value) for name, value in interval._asdict().items()}


def finite(value: float) -> float | None:
    """The value with six digits; None if it is unlimited."""
    return six_digits(value) if abs(value) < UNLIMITED else None


def _gib(size_bytes: float) -> float:
    return six_digits(size_bytes / GIB)


def six_digits(value: float) -> float:
    return float(f"{value:.6g}")
