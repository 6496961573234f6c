"""Recognises files for hosted services and for verifiers, which share key names with prime-rl. Judges none of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from prime_train.config.prime_rl.schema import load, newest
from prime_train.core.errors import UserError

# No service has one of these tables; a file with one is a config of prime-rl, even with `model = "NAME"` in it.
_OF_PRIME_RL = frozenset(
    {"trainer", "orchestrator", "inference", "deployment", "trainer_gpu_ids", "inference_gpu_ids", "prime_train"}
    | {"optim", "data", "ckpt", "vllm", "server"}
)
_OF_GEPA = frozenset(("gepa", "reflection_model", "max_total_rollouts", "num_val"))
# Keys of verifiers' EvalConfig that no file of prime-rl has beside a table [env].
_OF_VERIFIERS = frozenset(
    {"model", "num_tasks", "num_rollouts", "num_examples", "rollouts_per_example", "group_size", "batch_size"}
    | {"shuffle", "push", "rich", "client", "sampling", "max_concurrent", "verbose"}
)


class LabFile(NamedTuple):
    """What a file is, and what to do with it. FILE in `fix` stands for its path."""

    kind: str
    fix: str
    why: str = "it has key names of prime-rl with other meanings"


_ENDPOINTS = LabFile("a list of endpoints for evaluations", "prime eval run ENVIRONMENT")
_GEPA = LabFile("a config of prompt optimization (GEPA)", "prime gepa run FILE")
_EVALUATION = LabFile("an evaluation config of verifiers", "prime eval run FILE")
_TASKSET = LabFile("an evaluation config of verifiers", "uv run eval @ FILE")
_HOSTED = LabFile("a config of hosted training", "prime train run FILE")
_NEWER_EVALUATION = LabFile(
    "an evaluation config of a newer prime-rl",
    "prime-train schema import --python PATH --keep, which reads the keys of your prime-rl",
    "no table has a file with [[source]] at its top",
)


def recognise(values: Mapping[str, Any]) -> LabFile | None:
    """The kind of a file that no table of prime-rl has; None for another file.

    Source: docs.primeintellect.ai, Hosted Training, "Advanced Configurations"; verifiers 0.4, configs/ and
    v1/configs/cli/eval.py; docs/legacy/evaluation.md for [[eval]] and [[ablation]]; prime-rl, main, configs/eval.py.
    """
    if not _OF_PRIME_RL.isdisjoint(values):
        return None
    env = values.get("env")
    if _are_tables(values.get("source")) and not _knows_sources():
        return _NEWER_EVALUATION
    if _are_tables(values.get("endpoint")):
        return _ENDPOINTS
    if not _OF_GEPA.isdisjoint(values):
        return _GEPA
    # prime-rl has one table [eval]; verifiers has an array, with an entry for each environment
    if _are_tables(values.get("eval")) or _are_tables(values.get("ablation")) or "env_id" in values:
        return _EVALUATION
    if isinstance(env, dict) and not env.keys().isdisjoint(("id", "taskset")) and not _OF_VERIFIERS.isdisjoint(values):
        return _TASKSET
    # prime-rl has a table [model]
    return _HOSTED if isinstance(values.get("model"), str) and _are_tables(env) else None


def _knows_sources() -> bool:
    """Whether the newest table has a file with [[source]] at its top, as an imported one may have."""
    return any("source" in table.fields for table in load(newest()).roots.values())


def _are_tables(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(entry, dict) for entry in value)


def refuse(values: Mapping[str, Any], path: str) -> None:
    """Raises UserError for a file that no table of prime-rl has."""
    found = recognise(values)
    if found is not None:
        fix = f"{found.fix.replace('FILE', path)}; if it is meant for a known prime-rl: --prime-rl {newest()}"
        raise UserError(f"it is {found.kind}, which prime-train does not judge", path, found.why, fix)
